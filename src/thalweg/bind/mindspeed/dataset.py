"""`build_mm_dataset`: from `dataset_param` to the samples of this rank, streamed or by index.

Decides the order of the chain (read, align, shard, preprocess), which files are read, and when each key acts. What a
record becomes is `samples`; workers and order are those of the two streaming datasets.
"""

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.bind.llamafactory.align import Align, Aligned
from thalweg.bind.llamafactory.attributes import Attributes
from thalweg.bind.llamafactory.info import load_dataset_info
from thalweg.bind.mindspeed.config import report
from thalweg.bind.mindspeed.distributed import DistributedIterableDataset
from thalweg.bind.mindspeed.keys import Basic, DatasetParam
from thalweg.bind.mindspeed.mapped import AlignedIterable, preprocessed
from thalweg.bind.mindspeed.place import data_parallel_place, place_of
from thalweg.bind.mindspeed.samples import Preprocess
from thalweg.core.errors import ConfigError, InputError, SampleError
from thalweg.core.extras import need
from thalweg.core.sample import Sample
from thalweg.core.state import digest
from thalweg.core.topology import Topology
from thalweg.encode.errors import EncodeError

_ARRAYS = ("input_ids", "labels", "position_ids", "mm_token_type_ids", "image_grid_thw", "video_grid_thw")


def build_mm_dataset(
    dataset_param: Mapping[str, Any],
    *,
    parallel: Mapping[str, Any] | None = None,
    rank: int | None = None,
    world: int | None = None,
) -> Any:
    """Build the dataset of this rank.

    Args:
        dataset_param: as in the configuration file.
        parallel: sizes of the configuration, from which the data-parallel rank is worked out; None asks Megatron's or
            the FSDP2 stack's parallel state.
        rank, world: of this process, with `parallel`; None: RANK and WORLD_SIZE.

    Returns:
        An iterable dataset (streaming), or one with `len` and `[i]`; two of them, training and validation, where
        val_dataset or val_rate asks for that.

    Raises:
        ConfigError: keys that cannot be right together.
        InputError: a file that is not there.
    """
    param = DatasetParam.read(dataset_param)
    report(param.unknown, "dataset_param")
    place = _place(parallel, rank, world)
    basic = param.basic
    files, attributes = _files(basic.dataset, basic, param.attributes)
    param = replace(param, attributes=attributes)
    train = _built(param, files, basic.max_samples, place)
    if basic.val_dataset is not None:
        files, attributes = _files(basic.val_dataset, basic, param.attributes)
        return train, _built(replace(param, attributes=attributes), files, basic.val_max_samples, place)
    if basic.val_rate:
        return train.split(basic.val_rate, basic.val_max_samples)
    return train


def _place(parallel: Mapping[str, Any] | None, rank: int | None, world: int | None) -> Topology:
    if parallel is None:
        size, mine = data_parallel_place()
    else:
        there = Topology.from_env(os.environ)
        size, mine = place_of(
            parallel, there.dp_rank if rank is None else rank, there.dp_size if world is None else world
        )
    return Topology(dp_rank=mine, dp_size=size)


def _files(told: str | Sequence[str] | None, basic: Basic, attributes: Attributes) -> tuple[list[str], Attributes]:
    """Find files by path, under dataset_dir, or by a name of its dataset_info.json."""
    names = [n.strip() for n in told.split(",")] if isinstance(told, str) else list(told or [])
    if not names:
        raise ConfigError("basic_parameters.dataset names no file", where="dataset_param", fix="dataset: ./data/x.json")
    found: list[str] = []
    for name in names:
        path = next((p for p in (Path(name), Path(basic.dataset_dir) / name) if p.exists()), None)
        info = Path(basic.dataset_dir) / "dataset_info.json"
        if path is None and info.is_file() and name in (known := load_dataset_info(info)):
            entry = known[name]
            if attributes != entry.attributes and found:
                raise ConfigError(f"{name!r} keeps its records otherwise than the files before it", where=str(info))
            attributes = entry.attributes
            found += entry.files()
            continue
        if path is None:
            raise InputError("no such file", where=name, fix=f"a path, or a file below {basic.dataset_dir}")
        found += sorted(str(p) for p in path.iterdir() if p.is_file()) if path.is_dir() else [str(path)]
    return found, attributes


def _built(param: DatasetParam, files: list[str], most: int | None, place: Topology) -> Any:
    basic = param.basic
    raw = load_raw(files, basic)
    if not basic.streaming:
        if basic.async_preprocess:
            warnings.warn("async_preprocess does nothing without streaming", UserWarning, stacklevel=4)
        raw = raw if most is None else raw.select(range(min(most, len(raw))))
        preprocess = Preprocess(param, Align(param.attributes, basic.dataset_dir))
        return OnTheFly(raw, preprocess, place) if basic.preprocess_on_fly else MMDataset(raw, preprocess, place)
    raw = raw if most is None else raw.take(most)
    aligned = align_dataset(raw, param.attributes, basic)
    shard = DistributedIterableDataset(aligned, num_dp=place.dp_size, dp_rank=place.dp_rank)
    return preprocessed(
        shard,
        Preprocess(param),
        async_preprocess=basic.async_preprocess,
        buffer_size=basic.async_preprocess_buffer_size,
        num_workers=basic.preprocessing_num_workers,
        batch_size=basic.preprocessing_batch_size,
    )


def load_raw(files: Sequence[str], basic: Basic) -> Any:
    """Open JSON or JSONL files with `datasets`: a stream, or a table in the cache folder."""
    datasets = need("datasets", why="dataset_type huggingface")
    return datasets.load_dataset(
        "json", data_files=list(files), split="train", cache_dir=basic.cache_dir, streaming=basic.streaming
    )


def align_dataset(dataset: Any, attributes: Attributes, basic: Basic) -> AlignedIterable:
    """Align the records of a stream; those out of order come with empty turns and are left out when preprocessed."""
    return AlignedIterable(dataset, _Kept(Align(attributes, basic.dataset_dir)))


class _Kept:
    """Aligns, and keeps the place of a record that is out of order: ranks are dealt records, good or bad."""

    def __init__(self, align: Align) -> None:
        self.align = align

    def __call__(self, record: Mapping[str, Any]) -> Aligned:
        """Align one record."""
        try:
            return self.align(record)
        except EncodeError as error:
            return {"_prompt": [], "_response": [], "_system": error.reason, "_tools": None} | dict.fromkeys(
                ("_images", "_videos", "_audios")
            )


class MMDataset:
    """Samples by index: preprocessed once, in the cache folder, by `preprocessing_num_workers` processes.

    Args:
        raw: a `datasets.Dataset` of records.
        preprocess_fn: record columns -> sample columns.
        place: of this rank; a loader shards.
        rows: which samples, None for all.
    """

    def __init__(
        self, raw: Any, preprocess_fn: Preprocess, place: Topology, rows: NDArray[np.int64] | None = None
    ) -> None:
        self.raw, self.preprocess_fn, self.place, self._rows = raw, preprocess_fn, place, rows
        self._made: Any = None

    @property
    def made(self) -> Any:
        """The preprocessed table; made at the first use."""
        if self._made is None:
            basic = self.preprocess_fn.param.basic
            name = digest([self.raw._fingerprint, self.preprocess_fn.fingerprint])  # noqa: SLF001
            rank = int(os.environ.get("RANK", "0"))
            self._made = self.raw.map(
                self.preprocess_fn, batched=True, batch_size=basic.preprocessing_batch_size,
                num_proc=basic.preprocessing_num_workers, remove_columns=self.raw.column_names, new_fingerprint=name,
                load_from_cache_file=not basic.overwrite_cache or rank != 0,
            )  # fmt: skip
            if self._rows is not None:
                self._made = self._made.select(self._rows)
        return self._made

    @property
    def lengths(self) -> NDArray[np.int32]:
        """Tokens of each sample, int32 (n,)."""
        column = self.made.with_format("arrow")
        return np.fromiter((len(v) for v in column["input_ids"]), np.int32, len(column))

    @property
    def fingerprint(self) -> str:
        """Identity of the samples."""
        return str(self.made._fingerprint)  # noqa: SLF001

    def split(self, rate: float, most: int | None) -> "tuple[MMDataset, MMDataset]":
        """Set the last share of the records aside for validation."""
        held = min(max(1, int(len(self.raw) * rate)), most or len(self.raw))
        cut = len(self.raw) - held
        parts = self.raw.select(range(cut)), self.raw.select(range(cut, len(self.raw)))
        return MMDataset(parts[0], self.preprocess_fn, self.place), MMDataset(parts[1], self.preprocess_fn, self.place)

    def __len__(self) -> int:
        return len(self.made)

    def __getitem__(self, index: int) -> Sample:
        """Give one sample."""
        return as_arrays(self.made[int(index)])

    def __iter__(self) -> Iterator[Sample]:
        """Give all in order."""
        return (self[i] for i in range(len(self)))


class OnTheFly(MMDataset):
    """Samples by index, each preprocessed when it is asked for (`preprocess_on_fly`)."""

    lengths = None  # type: ignore[assignment]

    @property
    def fingerprint(self) -> str:
        """Identity of the samples."""
        return digest([self.raw._fingerprint, self.preprocess_fn.fingerprint])  # noqa: SLF001

    def __len__(self) -> int:
        return len(self.raw)

    def __getitem__(self, index: int) -> Sample:
        """Give one sample.

        Raises:
            SampleError: a record that no rule accepts: its place cannot be left out any more.
        """
        sample = self.preprocess_fn.one(self.raw[int(index)])
        if sample is None:
            raise SampleError(f"record {index} cannot be used", fix="preprocess_on_fly: false leaves such records out")
        return as_arrays(sample)


def as_arrays(sample: Mapping[str, Any]) -> Sample:
    """Give a sample as numpy arrays, absent columns left out."""
    kinds = {"input_ids": np.int32}
    out: Sample = {}
    for name, value in sample.items():
        if value is not None:
            out[name] = np.asarray(value, kinds.get(name, np.int64)) if name in _ARRAYS else value
    return out
