"""The keys of MindSpeed-MM's data sections: names, defaults and kinds of values, and what was said that is no key.

Decides what each key may hold and which combination of keys contradicts itself. Reads no data.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from thalweg.bind.llamafactory.attributes import COLUMNS, FORMATS, TAGS, Attributes
from thalweg.core.errors import ConfigError, nearest

DATASET_TYPES = ("huggingface",)
MODES = ("base", "sampler")
SAMPLERS = ("BaseRandomBatchSampler",)


@dataclass(frozen=True, slots=True)
class Preprocess:
    """`preprocess_parameters`: the model's own parts and what media are brought to (areas in pixels, rates in Hz)."""

    model_name_or_path: str | None = None
    use_fast_tokenizer: bool = True
    split_special_tokens: bool = False
    use_audio_in_video: bool = False
    image_max_pixels: int = 589_824
    image_min_pixels: int = 1024
    video_max_pixels: int = 65_536
    video_min_pixels: int = 256
    video_fps: float = 2.0
    video_maxlen: int = 128
    audio_sampling_rate: int = 16_000
    trust_remote_code: bool = False
    image_resolution: int = 512
    video_resolution: int = 128
    image_do_pan_and_scan: bool = False
    crop_to_patches: bool = False


@dataclass(frozen=True, slots=True)
class Basic:
    """`basic_parameters`: which data, how they become samples, and how that is run.

    As in LLaMA-Factory, whose names they are, but for one: `cutoff_len` takes the oldest exchanges whole and never cuts
    within a medium, where the original shortens every turn in proportion. `mask_history` trains the last answer alone,
    gives it the budget first, and takes the thoughts out of earlier answers where the template writes thoughts.
    """

    cutoff_len: int = 1024
    template: str | None = None
    chat_template: str | None = None
    enable_thinking: bool | None = True
    train_on_prompt: bool = False
    mask_history: bool = False
    dataset_dir: str = "data"
    dataset: str | list[str] | None = None
    val_dataset: str | list[str] | None = None
    val_max_samples: int | None = None
    val_rate: float | None = None
    cache_dir: str | None = None
    overwrite_cache: bool = False
    preprocessing_batch_size: int = 1000
    preprocessing_num_workers: int | None = None
    preprocess_on_fly: bool = False
    max_samples: int | None = None
    tool_format: str | None = None
    stage: str = "sft"
    packing: bool = False
    neat_packing: bool = False
    streaming: bool = False
    async_preprocess: bool = False
    async_preprocess_buffer_size: int | None = None


@dataclass(frozen=True, slots=True)
class Collate:
    """`collate_param`: the collator by name (`model_name` is its older key) and what padding is."""

    collator_id: str | None = None
    model_name: str | None = None
    ignore_pad_token_for_loss: bool = False
    pad_to_multiple_of: int = 8


@dataclass(frozen=True, slots=True)
class Dataloader:
    """`dataloader_param`; `shuffle_buffer_size` (samples of a stream's window) is a key of ours."""

    dataloader_mode: str = "base"
    drop_last: bool = False
    sampler_type: str | None = None
    pin_memory: bool = False
    shuffle: bool = False
    shuffle_buffer_size: int = 1000
    num_workers: int = 2
    enable_preload: bool = False
    collate_param: Collate = field(default_factory=Collate)


Section = TypeVar("Section", Preprocess, Basic, Collate, Dataloader)
Unknown = list[tuple[str, str]]  # (dotted key, advice)
_KINDS = {"str": str, "bool": bool, "int": int, "float": (int, float), "list[str]": list, "None": type(None)}


def read_section(kind: type[Section], told: Any, where: str, unknown: Unknown) -> Section:
    """Read one section; null stands for the default, and what is no key is noted.

    Raises:
        ConfigError: a value of another kind.
    """
    if told is None:
        told = {}
    if not isinstance(told, Mapping):
        raise ConfigError("this holds no keys", where=where, fix="write key: value below it")
    known = {f.name: f for f in fields(kind)}
    given: dict[str, Any] = {}
    for key, value in told.items():
        if key not in known:
            unknown.append((f"{where}.{key}", nearest(str(key), known)))
        elif key == "collate_param":
            given[key] = read_section(Collate, value, f"{where}.{key}", unknown)
        elif value is not None or "None" in _kinds(known[key].type):
            _check(value, _kinds(known[key].type), f"{where}.{key}")
            given[key] = value
    return kind(**given)


def _kinds(annotation: Any) -> list[str]:
    """Name the kinds of values of a field."""
    return [annotation.__name__] if type(annotation) is type else str(annotation).split(" | ")


def _check(value: Any, wanted: list[str], where: str) -> None:
    for name in wanted:
        kind: Any = _KINDS[name]
        if isinstance(value, kind) and (not isinstance(value, bool) or name == "bool"):
            return
    raise ConfigError(f"{value!r} is {type(value).__name__}, not {' or '.join(wanted)}", where=where)


@dataclass(frozen=True, slots=True)
class DatasetParam:
    """`dataset_param`, read: sections, where records keep what, and the keys that nobody knows."""

    preprocess: Preprocess
    basic: Basic
    attributes: Attributes
    said: frozenset[str]
    unknown: Unknown

    @classmethod
    def read(cls, told: Mapping[str, Any], where: str = "dataset_param") -> "DatasetParam":
        """Read and check.

        Raises:
            ConfigError: an unknown dataset_type, a value of another kind, keys that contradict each other.
        """
        unknown: Unknown = []
        for key in told:
            if key not in ("dataset_type", "preprocess_parameters", "basic_parameters", "attr"):
                known = ("dataset_type", "preprocess_parameters", "basic_parameters", "attr")
                unknown.append((f"{where}.{key}", nearest(str(key), known)))
        kind = told.get("dataset_type")
        if kind not in DATASET_TYPES:
            raise ConfigError(f"dataset_type {kind!r} is unknown", where=where, fix=nearest(str(kind), DATASET_TYPES))
        basic_told = told.get("basic_parameters") or {}
        preprocess = read_section(
            Preprocess, told.get("preprocess_parameters"), f"{where}.preprocess_parameters", unknown
        )
        basic = read_section(Basic, basic_told, f"{where}.basic_parameters", unknown)
        attributes = _attributes(told.get("attr") or {}, f"{where}.attr", unknown)
        _contradictions(basic, preprocess, where)
        return cls(preprocess, basic, attributes, frozenset(basic_told), unknown)


def _attributes(told: Mapping[str, Any], where: str, unknown: Unknown) -> Attributes:
    """Read `attr`: names as in dataset_info.json, all on one level, ShareGPT where nothing else is said."""
    known = (*COLUMNS, *TAGS, "formatting", "ranking", "packing", "pretrain")
    for key in told:
        if key not in known:
            unknown.append((f"{where}.{key}", nearest(str(key), known)))
    formatting = told.get("formatting") or "sharegpt"
    if formatting not in FORMATS:
        raise ConfigError(f"unknown formatting {formatting!r}", where=where, fix=nearest(formatting, FORMATS))
    return Attributes.read(
        formatting, {k: v for k, v in told.items() if k in COLUMNS}, {k: v for k, v in told.items() if k in TAGS},
        ranking=bool(told.get("ranking")), where=where,
    )  # fmt: skip


def _contradictions(basic: Basic, preprocess: Preprocess, where: str) -> None:
    if basic.train_on_prompt and basic.mask_history:
        raise ConfigError(
            "train_on_prompt and mask_history are both true", where=f"{where}.basic_parameters",
            fix="prompts are trained, or only the last answer is: set one of them to false",
        )  # fmt: skip
    if basic.stage != "sft":
        raise ConfigError(
            f"stage {basic.stage!r} is not of this face", where=f"{where}.basic_parameters",
            fix='"sft"; for texts tw.from_files(...).map(TextEncoder(...)), for pairs ChatEncoder takes them',
        )  # fmt: skip
    for name in ("image_do_pan_and_scan", "crop_to_patches"):
        if getattr(preprocess, name):
            raise ConfigError(f"{name} cuts pictures up, which no model here wants", where=where, fix=f"{name}: false")
    for name in ("max_samples", "val_max_samples", "cutoff_len", "preprocessing_batch_size"):
        value = getattr(basic, name)
        if value is not None and value < 1:
            raise ConfigError(f"{name} is {value}, and must be at least 1", where=f"{where}.basic_parameters")
    if basic.val_rate is not None and basic.streaming:
        raise ConfigError(
            "val_rate needs the number of samples, and a stream has none", where=f"{where}.basic_parameters",
            fix="val_dataset: another file, or streaming: false",
        )  # fmt: skip


def read_dataloader(told: Mapping[str, Any], where: str = "dataloader_param") -> tuple[Dataloader, Unknown]:
    """Read `dataloader_param`.

    Raises:
        ConfigError: an unknown mode or sampler, a value of another kind.
    """
    unknown: Unknown = []
    param = read_section(Dataloader, told, where, unknown)
    if param.dataloader_mode not in MODES:
        raise ConfigError(
            f"dataloader_mode {param.dataloader_mode!r} is unknown",
            where=where,
            fix=nearest(param.dataloader_mode, MODES),
        )
    if param.dataloader_mode == "sampler" and param.sampler_type not in (None, *SAMPLERS):
        raise ConfigError(
            f"sampler_type {param.sampler_type!r} is unknown",
            where=where,
            fix=nearest(str(param.sampler_type), SAMPLERS),
        )
    return param, unknown
