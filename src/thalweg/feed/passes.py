"""The passes over data that a plan needs once: keep bits of a filter, samples or lengths behind a map.

Decides what is kept, under which key (data, code, settings), and that a second start finds it. Each result appears
whole under its final name or not at all. Knows no order and no rank.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.core.errors import ConfigError, nearest
from thalweg.core.sample import INPUT_IDS
from thalweg.core.seeds import key64
from thalweg.core.state import digest
from thalweg.feed import stages as st
from thalweg.feed.code import code_of
from thalweg.feed.mapped import Leaf
from thalweg.feed.merge import SampleInfo
from thalweg.feed.rules import names
from thalweg.feed.source import Columns, Source
from thalweg.feed.views import digest_array

Ints = NDArray[np.int64]
CHUNK = 4_096  # samples read at once in a pass


def cache_folder() -> Path:
    """Give the user's cache folder: THALWEG_CACHE, else thalweg below XDG_CACHE_HOME or ~/.cache."""
    own = os.environ.get("THALWEG_CACHE")
    if own:
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "thalweg"


def kept_by(leaf: Leaf, stage: st.Filter) -> NDArray[np.bool_]:
    """Give the keep bits of a filter, bool (n,): from table columns at once, else by one pass that is kept."""
    n = len(leaf.source)
    if stage.columns is not None:
        return _by_columns(leaf, stage, n)
    key = digest(["keep", leaf.source.fingerprint, leaf.code(), code_of(stage.fn)], size=16)
    return stored(cache_folder() / "keep" / f"{key}.npy", lambda: _by_samples(leaf, stage, n)).astype(np.bool_)


def _by_columns(leaf: Leaf, stage: st.Filter, n: int) -> NDArray[np.bool_]:
    facts = leaf.facts
    for name in names(stage.columns):
        if name not in facts:
            raise ConfigError(f"no table column {name!r}", where=str(stage), fix=nearest(name, facts))
    keep = np.asarray(stage.fn(*(facts[name] for name in names(stage.columns))), np.bool_)
    if keep.shape != (n,):
        raise ConfigError(
            f"a filter on table columns must give {n:,} booleans, not shape {keep.shape}", where=str(stage),
            fix="columns come whole: write lambda length: length > 8, with & and | for and, or",
        )  # fmt: skip
    return keep


def _by_samples(leaf: Leaf, stage: st.Filter, n: int) -> NDArray[np.bool_]:
    keep = np.zeros(n, np.bool_)
    for indices in chunks(n):
        ids = leaf.source.ids(indices) if stage.with_info else None
        for i, sample in enumerate(leaf.samples(indices, 0, 0)):
            if sample is None:
                continue
            at = int(indices[i])
            if ids is None:
                keep[at] = bool(stage.fn(sample))
            else:
                keep[at] = bool(stage.fn(sample, SampleInfo(ids[i], leaf.name, at, 0, ("filter", str(stage)))))
    return keep


def chunks(n: int) -> Iterator[Ints]:
    """Give all indices in order, some thousand at a time."""
    for at in range(0, n, CHUNK):
        yield np.arange(at, min(at + CHUNK, n))


def stored(path: Path, make: Callable[[], NDArray[Any]], *, mapped: bool = False) -> NDArray[Any]:
    """Load (or map) an array, or make it and put it whole under its final name. Two makers at once are harmless."""
    if path.exists():
        found: NDArray[Any] = np.load(path, mmap_mode="r" if mapped else None)
        return found
    made = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.{key64(os.urandom(8).hex()):016x}")
    with partial.open("wb") as file:
        np.save(file, made)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    return made


def cached(leaf: Leaf, stage: st.Cache) -> Leaf:
    """Give the leaf behind a cache: its samples written once as records, or only their lengths.

    The key is data, code of the functions, and what is kept. Two that start at once both work, and one result stays.
    """
    key = digest(["cache", leaf.source.fingerprint, leaf.code(), stage.what], size=16)
    folder = (Path(stage.path) if stage.path else cache_folder() / "samples") / key
    if stage.what == "lengths":
        lengths = stored(folder.with_suffix(".npy"), lambda: _lengths(leaf))
        return Leaf(leaf.name, Counted(leaf.source, lengths), leaf.maps, leaf.filters, leaf.shuffle, leaf.repeats)
    records = import_module("thalweg.store.records")  # pyarrow loads here, not before
    if not folder.exists():
        _write(records, leaf, folder)
    source = import_module("thalweg.feed.open").RecordsSource(records.open_records(str(folder)))
    return Leaf(leaf.name, source, [], leaf.filters, leaf.shuffle, leaf.repeats)


def _write(records: Any, leaf: Leaf, folder: Path) -> None:
    """Write all samples behind the functions beside the final folder, then put it in place."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.{key64(os.urandom(8).hex()):016x}")
    with records.create_records(str(partial)) as writer:
        for indices in chunks(len(leaf.source)):
            for name, sample in leaf.outputs(indices):
                writer.write(sample, id=name)
    try:
        partial.rename(folder)
    except OSError:
        if not folder.exists():
            raise
        shutil.rmtree(partial)  # another process was first, with the same samples


def _lengths(leaf: Leaf) -> NDArray[np.int32]:
    out = np.zeros(len(leaf.source), np.int32)
    for indices in chunks(len(leaf.source)):
        for at, sample in zip(indices.tolist(), leaf.samples(indices, 0, 0), strict=True):
            out[at] = 0 if sample is None else len(sample[INPUT_IDS])
    return out


class Counted:
    """A source whose lengths are counted behind functions that run again when a sample is read."""

    def __init__(self, base: Source, lengths: NDArray[np.int32]) -> None:
        self.base, self.lengths = base, lengths

    def __len__(self) -> int:
        return len(self.base)

    @property
    def facts(self) -> Mapping[str, NDArray[Any]]:
        """Only the lengths: what else was known belongs to the samples before the functions."""
        return {"length": self.lengths}

    @property
    def fingerprint(self) -> str:
        """Hash of the base and the lengths."""
        return digest([self.base.fingerprint, digest_array(self.lengths)])

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Columns of the base."""
        return self.base.columns

    @property
    def lineage(self) -> Mapping[str, Any]:
        """Lineage of the base."""
        return self.base.lineage

    def read(self, indices: Ints, columns: Sequence[str] | None = None) -> Columns:
        """Read from the base."""
        return self.base.read(indices, columns)

    def ids(self, indices: Ints) -> list[str]:
        """Ids of the base."""
        return self.base.ids(indices)

    def id_hashes(self, indices: Ints) -> NDArray[np.uint64]:
        """Hashes of the base's ids."""
        return self.base.id_hashes(indices)
