"""Processors and dataset types: what a record becomes, by the two names that a configuration says.

Decides which types exist, which media each must be able to see, and which of them this face has no targets for.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from thalweg.bind.lmms.config import DatasetConfig
from thalweg.core.errors import ConfigError, nearest
from thalweg.encode.chat import ChatEncoder
from thalweg.encode.media.families import Limits
from thalweg.encode.media.models import media_of
from thalweg.encode.media.references import Folder
from thalweg.encode.media.videos import Sampling
from thalweg.encode.text import TextEncoder

Encoder: TypeAlias = Callable[[Mapping[str, Any]], dict[str, Any] | None]  # None: nothing is left of the record
Make: TypeAlias = Callable[[DatasetConfig], Encoder]

# dataset_type -> what its model must have to see its media; None: text for pretraining
KINDS: dict[str, tuple[str, ...] | None] = {
    "vision": ("image_processor",),
    "qwen3_vl": ("image_processor",),
    "llava_video": ("image_processor",),
    "vision_audio": ("image_processor", "feature_extractor"),
    "qwen_omni": ("image_processor", "feature_extractor"),
    "fineweb_edu": None,
}
_ITERABLE = ("vision_iterable", "qwen3_vl_iterable", "qwen_omni_iterable")
_BUCKETS = {"gcs": "gs", "azure": "az"}  # object_storage -> protocol of fsspec
_REFUSED = {
    "rae": "pictures are its targets: tw.from_dataset(data).map(your_function) with collate=your_function",
    "sit": "pictures and classes are its targets: tw.from_dataset(data).map(your_function) with collate=your_function",
    "bagel": "it makes pictures within text: tw.from_dataset(data).map(your_function) with collate=your_function",
    "bagel_iterable": "it makes pictures within text: tw.from_stream(data).map(your_function), collate=your_function",
}


class UnknownProcessorError(ConfigError, KeyError):
    """A processor_type that nobody registered; also a KeyError, as the engine raises."""

    __str__ = ConfigError.__str__


def kind_of(dataset_type: str) -> tuple[str, ...] | None:
    """Say what a dataset type needs of the model; a streaming name means the same as the other.

    Raises:
        ConfigError: an unknown type, or one that this face has no targets for, with what to do instead.
    """
    if dataset_type in _REFUSED:
        raise ConfigError(
            f"dataset_type {dataset_type!r} trains a model that makes pictures", where="DatasetConfig",
            fix=_REFUSED[dataset_type],
        )  # fmt: skip
    name = dataset_type.removesuffix("_iterable") if dataset_type in _ITERABLE else dataset_type
    if name not in KINDS:
        known = [*KINDS, *_ITERABLE, *_REFUSED]
        raise ConfigError(
            f"unknown dataset_type {dataset_type!r}", where="DatasetConfig", fix=nearest(dataset_type, known)
        )
    return KINDS[name]


def limits(config: DatasetConfig) -> Limits:
    """Give areas and frames of clips."""
    if config.video_sampling_strategy == "frame_num":
        rule = Sampling(fps=1e9, most=config.frame_num, least=config.frame_num)
    else:
        rule = Sampling(fps=float(config.fps), most=config.video_max_frames)
    return Limits(video_max_pixels=config.video_max_pixels, video_min_pixels=config.video_min_pixels, sampling=rule)


def _model(config: DatasetConfig) -> Any:
    name = config.processor_config.get("processor_name")
    if name is None:
        raise ConfigError(
            "processor_config names no model", where="DatasetConfig", fix='"processor_name": the model\'s folder'
        )
    return name


def folder_of(config: DatasetConfig) -> Folder:
    """Say where media lie: in a bucket of object storage, else where relative paths start."""
    root: str | None = config.extra_kwargs.get("media_dir")
    if config.object_storage != "none":
        root = "/".join(filter(None, [f"{_BUCKETS[config.object_storage]}://{config.bucket_name}", root]))
    return Folder(root, dict(config.extra_kwargs.get("storage_options", {})))


def _chat(config: DatasetConfig) -> ChatEncoder:
    """Conversations in any known layout, media as the model sees them."""
    more = {k: v for k, v in config.extra_kwargs.items() if k in {"columns", "train_on", "chat_template"}}
    folder = folder_of(config)
    together = bool(config.extra_kwargs.get("use_audio_in_video", False))
    told: dict[str, Any] = {"folder": folder, "limits": limits(config), "audio_in_video": together}
    model = _model(config)
    return ChatEncoder(model, processor=media_of(model, **told), **more)


def _text(config: DatasetConfig) -> TextEncoder:
    """Texts, every token in the loss, cut at the length of a row as the engine cuts them."""
    return TextEncoder(_model(config), text=config.extra_kwargs.get("text", "text"), max_length=config.packing_length)


PROCESSORS: dict[str, Make] = {
    "chat": _chat, "qwen2_vl": _chat, "qwen2_5_vl": _chat, "qwen3_vl": _chat, "qwen2_5_omni": _chat,
    "qwen3_omni_moe": _chat, "llava": _chat, "pure_text": _text, "text": _text,
}  # fmt: skip


def register_processor(name: str, make: Make) -> None:
    """Give a processor_type a function that makes the encoder of a configuration."""
    PROCESSORS[name] = make


def encoder_of(config: DatasetConfig) -> Encoder:
    """Make what encodes the records of a configuration.

    Raises:
        UnknownProcessorError: a processor_type that nobody registered, with all that are.
        ConfigError: a model without the parts that the dataset type needs.
    """
    needs = kind_of(config.dataset_type)
    name = str(config.processor_config.get("processor_type", "text" if needs is None else "chat"))
    if name not in PROCESSORS:
        known = ", ".join(sorted(PROCESSORS))
        raise UnknownProcessorError(f"unknown processor_type {name!r}", where="processor_config", fix=f"one of {known}")
    encoder = PROCESSORS[name](config)
    media = getattr(encoder, "media", None)
    missing = [part for part in needs or () if media is not None and getattr(media, part, None) is None]
    if missing:
        raise ConfigError(
            f"dataset_type {config.dataset_type!r} needs a model with {missing[0]}", where="processor_config",
            fix="processor_name of such a model",
        )  # fmt: skip
    return encoder
