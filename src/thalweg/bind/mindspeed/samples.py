"""Aligned records become the samples that a model trains on: MindSpeed-MM's preprocess_fn, dict of lists in and out.

Decides how the keys of `preprocess_parameters` and `basic_parameters` become settings of `ChatEncoder`, and that a
record which no rule accepts is left out, counted and named. Reads no file of data.
"""

import threading
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from thalweg.bind.llamafactory.align import Align, conversation
from thalweg.bind.mindspeed.keys import DatasetParam
from thalweg.core.errors import ConfigError
from thalweg.core.extras import need
from thalweg.core.state import digest
from thalweg.encode.chat import ChatEncoder
from thalweg.encode.errors import EncodeError
from thalweg.encode.media.families import Limits, Media
from thalweg.encode.media.references import Folder
from thalweg.encode.media.videos import Sampling

# the same columns for every sample, None where it has none: a map over batches must give lists of one length
COLUMNS = (
    "input_ids", "attention_mask", "labels", "position_ids", "mm_token_type_ids",
    "images", "videos", "audios", "image_grid_thw", "video_grid_thw",
)  # fmt: skip
_REASONS = ("qwen3", "qwen3_vl", "qwen3_omni")  # templates that write thoughts
_GREETED = {"qwen2_vl": "You are a helpful assistant.", "qwen2_omni": "You are a helpful assistant."}


_LOADED: "WeakValueDictionary[tuple[str, bool, bool], Any]" = WeakValueDictionary()


def tokenizer_of(path: str, *, fast: bool = True, trust: bool = False) -> Any:
    """Load the tokenizer of a model's folder, one object for all datasets of this process that name it."""
    key = (path, fast, trust)
    tokenizer = _LOADED.get(key)
    if tokenizer is None:
        transformers = need("transformers", why="model_name_or_path")
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            path, use_fast=fast, local_files_only=True, trust_remote_code=trust
        )
        _LOADED[key] = tokenizer
    return tokenizer


class Preprocess:
    """Batched: columns of records -> columns of samples. Picklable; the tokenizer loads with the first record.

    Args:
        param: `dataset_param`, read.
        align: how records are read; None: they are aligned already (`_prompt`, `_response`, ...).

    Attributes:
        counts: records left out, by reason; of this process.
    """

    def __init__(self, param: DatasetParam, align: Align | None = None) -> None:
        self.param, self.align = param, align
        self.max_length = param.basic.cutoff_len
        self.counts: Counter[str] = Counter()
        self._lock = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        """Travel as settings."""
        return {k: v for k, v in self.__dict__.items() if k not in {"_encoder", "_media", "_lock"}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Build it again."""
        self.__dict__.update(state)
        self._lock = threading.RLock()

    def for_worker(self) -> "Preprocess":
        """Give the same to every thread: nothing here changes a tokenizer's settings, and a copy costs a second."""
        return self

    def limit(self, tokens: int) -> None:
        """Set the budget of a sample, in tokens: Megatron's seq_length."""
        self.max_length = tokens
        self.__dict__.pop("_encoder", None)

    @property
    def encoder(self) -> ChatEncoder:
        """What encodes one conversation; made once."""
        with self._lock:
            return self._encoder

    @property
    def media(self) -> Media | None:
        """Media parts of the model; None for a model of text.

        Raises:
            ConfigError: audio_sampling_rate is not what the model hears.
        """
        with self._lock:
            return self._media

    @cached_property
    def _media(self) -> Media | None:
        p, basic = self.param.preprocess, self.param.basic
        limits = Limits(
            p.image_max_pixels, p.image_min_pixels, p.video_max_pixels, p.video_min_pixels,
            Sampling(p.video_fps, p.video_maxlen, least=1),
        )  # fmt: skip
        folder = Folder(basic.dataset_dir)
        media = Media.of(self._model(), folder=folder, limits=limits, audio_in_video=p.use_audio_in_video)
        extractor = getattr(media, "feature_extractor", None)
        if extractor is not None and int(extractor.sampling_rate) != p.audio_sampling_rate:
            raise ConfigError(
                f"audio_sampling_rate is {p.audio_sampling_rate}, and the model hears {extractor.sampling_rate}",
                where="preprocess_parameters", fix=f"audio_sampling_rate: {extractor.sampling_rate}",
            )  # fmt: skip
        return media

    def _model(self) -> str:
        path = self.param.preprocess.model_name_or_path
        if path is None or not Path(path).is_dir():
            raise ConfigError(
                f"model_name_or_path {path!r} is no folder", where="preprocess_parameters",
                fix="a folder with the model's tokenizer and processor",
            )  # fmt: skip
        return path

    @cached_property
    def _encoder(self) -> ChatEncoder:
        p, basic = self.param.preprocess, self.param.basic
        tokenizer = tokenizer_of(self._model(), fast=p.use_fast_tokenizer, trust=p.trust_remote_code)
        thinks = basic.chat_template is None and basic.template in _REASONS
        return ChatEncoder(
            tokenizer,
            {"messages": "messages"},
            train_on="all" if basic.train_on_prompt else "last" if basic.mask_history else "assistant",
            max_length=None if basic.packing else self.max_length,
            enable_thinking=basic.enable_thinking if thinks else None,
            processor=self.media,
            chat_template=basic.chat_template or basic.template,
            split_special_tokens=p.split_special_tokens,
            tool_format=basic.tool_format,
        )

    @property
    def fingerprint(self) -> str:
        """Name all that decides the samples; what is overwritten must have the name of what was there."""
        said = None if self.align is None else self.align.fingerprint
        basic = replace(self.param.basic, overwrite_cache=False, cache_dir=None, preprocessing_num_workers=None)
        return digest([self.encoder.digest, repr(self.param.preprocess), repr(basic), said])

    def __call__(self, examples: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
        """Encode records together.

        Args:
            examples: column -> values of n records.

        Returns:
            The columns `COLUMNS` of at most n samples, in order; what a sample lacks is None.
        """
        n = len(next(iter(examples.values()))) if examples else 0
        out: dict[str, list[Any]] = {name: [] for name in COLUMNS}
        for i in range(n):
            sample = self.one({name: values[i] for name, values in examples.items()})
            if sample is not None:
                for name in COLUMNS:
                    out[name].append(sample.get(name))
        return out

    def one(self, record: Mapping[str, Any]) -> dict[str, Any] | None:
        """Encode one record; None where no rule accepts it."""
        try:
            aligned = self._aligned(record)
            template = self.param.basic.template if self.param.basic.chat_template is None else None
            said = conversation(aligned, _GREETED.get(template or ""))
            if self.param.basic.mask_history and template in _REASONS:
                said["messages"] = _last_thought(said["messages"])
            sample = self.encoder(said)
        except EncodeError as error:
            self._left_out(error)
            return None
        sample["attention_mask"] = [1] * len(sample["input_ids"])
        return sample

    def _aligned(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        aligned = record if self.align is None else self.align(record)
        if not aligned["_response"]:
            raise EncodeError(f"its turns are out of order: {aligned['_system']}", reason=str(aligned["_system"]))
        return aligned

    def _left_out(self, error: EncodeError) -> None:
        with self._lock:
            self.counts[error.reason] += 1
            first = self.counts[error.reason] == 1
        if first:
            warnings.warn(
                f"a record is left out: {error}. Others like it are counted (preprocess_fn.counts)",
                UserWarning,
                stacklevel=4,
            )


def _last_thought(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Take the thoughts out of all answers but the last."""
    last = max((i for i, m in enumerate(messages) if m["role"] == "assistant"), default=-1)
    return [
        {**m, "content": m["content"].rpartition("</think>")[2].lstrip("\n")}
        if m["role"] == "assistant" and i < last
        else m
        for i, m in enumerate(messages)
    ]
