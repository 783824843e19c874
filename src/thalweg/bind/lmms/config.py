"""`DatasetConfig`: one configuration for both datasets, its defaults those of the guide.

Decides which words may be said, of what kind, and which contradict each other. Opens nothing.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from thalweg.core.errors import ConfigError, nearest
from thalweg.store.settings import read_settings

FORMATS = ("json", "jsonl", "csv", "yaml", "hf_dataset", "arrow", "parquet")
_POSITIVE = (
    "packing_length", "filter_overlong_workers", "max_length", "video_max_pixels", "video_max_frames", "frame_num",
    "fps",
)  # fmt: skip
_CHOICES = {
    "dataset_format": FORMATS,
    "object_storage": ("azure", "gcs", "none"),
    "video_sampling_strategy": ("fps", "frame_num"),
    "video_backend": ("decord", "qwen_vl_utils", "qwen_omni_utils", "lmms_video_utils"),
}


@dataclass(frozen=True, init=False)
class DatasetConfig:
    """What is read, what it becomes, and how it is packed. Keywords only.

    Args:
        dataset_type: vision, vision_audio, qwen_omni, fineweb_edu, ... (see `processors.KINDS`).
        dataset_format: json, jsonl, csv, yaml, hf_dataset, arrow or parquet.
        processor_config: {"processor_type": a registered name, "processor_name": the model's folder}.
        dataset_path: a path, or for hf_dataset a hub id.
        datasets: of yaml, inline: [{"path", "data_folder", "data_type"}].
        shuffle: the samples, before they are packed; by `data_seed`, the same on every rank.
        object_storage: "gcs" or "azure": media lie in the bucket (container) `bucket_name`, where their paths start,
            data_folder included; read through fsspec (gcsfs, adlfs), told extra_kwargs["storage_options"].
        packing: put samples into rows of at most `packing_length` tokens.
        packing_strategy: "first_fit" or "window_XX"; the streaming dataset fills rows in the order of arrival.
        filter_overlong: leave out samples that are longer than a row; else each has a row of its own.
        max_length: tokens of a sample at most, where it is below packing_length.
        video_sampling_strategy: "fps" frames a second, or "frame_num" frames.
        extra_kwargs: for processors of your own; `max_bad`: share (or number) of records that may be left out because
            they cannot be encoded, 0.01 (the engine prints a line for each and goes on with what is left).

    Raises:
        ConfigError: an unknown word, with the nearest right one; a value that cannot be right.
    """

    dataset_type: str
    dataset_format: str
    processor_config: dict[str, Any]
    dataset_path: str | None = None
    datasets: list[dict[str, Any]] | None = None
    shuffle: bool = True
    data_seed: int = 42
    eval_dataset_path: str | None = None
    object_storage: str = "none"
    bucket_name: str | None = None
    packing: bool = False
    packing_strategy: str = "first_fit"
    packing_length: int = 32_000
    filter_overlong: bool = True
    filter_overlong_workers: int = 8
    max_length: int | None = None
    video_sampling_strategy: str = "fps"
    video_max_pixels: int = 768 * 28 * 28
    video_max_frames: int = 768
    video_min_pixels: int = 3136
    frame_num: int = 64
    fps: int = 1
    video_backend: str = "qwen_vl_utils"
    extra_kwargs: dict[str, Any] = field(default_factory=dict[str, Any])

    def __init__(self, **told: Any) -> None:
        known = {f.name: f for f in fields(self)}
        for name in told:
            if name not in known:
                raise ConfigError(f"DatasetConfig has no {name!r}", where="DatasetConfig", fix=nearest(name, known))
        for name, f in known.items():
            made: Any = f.default_factory() if f.default_factory is not MISSING else f.default
            value = told.get(name)
            if value is None:
                value = made  # null in YAML stands for the default
            if value is MISSING:
                raise ConfigError(f"DatasetConfig needs {name!r}", where="DatasetConfig")
            object.__setattr__(self, name, value)
        self._check()

    def _check(self) -> None:
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                raise ConfigError(
                    f"{name}={value!r} is unknown", where="DatasetConfig", fix=nearest(str(value), choices)
                )
        for name in _POSITIVE:
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise ConfigError(f"{name} must be a whole number of at least 1, not {value!r}", where="DatasetConfig")
        if not re.fullmatch(r"first_fit|window_0*[1-9]\d*", self.packing_strategy):
            raise ConfigError(
                f"packing_strategy={self.packing_strategy!r} is unknown", where="DatasetConfig",
                fix='"first_fit", or "window_100" with a number of yours',
            )  # fmt: skip
        if self.dataset_path is None and self.datasets is None:
            raise ConfigError(
                "no data", where="DatasetConfig", fix="dataset_path=, or datasets= with dataset_format yaml"
            )
        if (self.object_storage == "none") != (self.bucket_name is None):
            raise ConfigError(
                f"object_storage={self.object_storage!r} and bucket_name={self.bucket_name!r} go together",
                where="DatasetConfig", fix='object_storage="gcs" or "azure" with a bucket_name, or neither',
            )  # fmt: skip

    @property
    def window(self) -> int | None:
        """Samples of a window of packing_strategy, None for first_fit."""
        return int(self.packing_strategy.removeprefix("window_")) if "window" in self.packing_strategy else None

    @property
    def max_bad(self) -> float | int:
        """Share or number of records that may be left out because they cannot be encoded."""
        told: float | int = self.extra_kwargs.get("max_bad", 0.01)
        return told

    @property
    def longest(self) -> int:
        """Tokens of a sample that is not too long."""
        return min(self.packing_length, self.max_length or self.packing_length)

    @classmethod
    def from_yaml(cls, path: str | os.PathLike[str]) -> "DatasetConfig":
        """Read a file that holds the words, at its top or below `dataset`."""
        told = read_settings(os.fspath(path))
        inner = told.get("dataset", told)
        if not isinstance(inner, Mapping):
            raise ConfigError("dataset holds no settings", where=os.fspath(path))
        return cls(**{str(k): v for k, v in inner.items()})
