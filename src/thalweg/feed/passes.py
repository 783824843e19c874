"""The passes over data that a plan needs once: keep bits of a filter, samples or lengths behind a map.

Decides what is kept, under which key (data, code, settings), and that a second start finds it. Each result appears
whole under its final name or not at all. How a pass runs is `feed.once`. Knows no order and no rank.
"""

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.core.errors import ConfigError, nearest
from thalweg.core.sample import INPUT_IDS, Sample
from thalweg.core.seeds import key64
from thalweg.core.state import digest
from thalweg.feed import stages as st
from thalweg.feed.code import code_of
from thalweg.feed.columns import names
from thalweg.feed.mapped import Leaf
from thalweg.feed.mapread import MapRows, words_of
from thalweg.feed.merge import SampleInfo
from thalweg.feed.once import each, pieces, results, shared, whole_array
from thalweg.feed.source import Columns, Source, label_tokens
from thalweg.feed.views import digest_array
from thalweg.work.percopy import for_worker

Ints = NDArray[np.int64]


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
    call = KeepRows(leaf, stage)

    def make(a: int, b: int) -> NDArray[Any]:
        kept = [bit for bits in each(results(call, words_for(leaf, stage.fn), a, b), call) for bit in bits]
        return np.array(kept, np.bool_)

    path = cache_folder() / "keep" / f"{key}.npy"
    return whole_array(path, n, make, str(stage), stored).astype(np.bool_)


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


class KeepRows(MapRows):
    """Request -> whether the filter keeps each sample.

    Args:
        leaf: the source, with the functions before the filter.
        stage: the filter.
    """

    def __init__(self, leaf: Leaf, stage: st.Filter) -> None:
        super().__init__([leaf], 0)
        self.stage = stage

    def like(self, leaves: Sequence[Leaf]) -> MapRows:
        """Give the same call on another leaf."""
        return KeepRows(leaves[0], replace(self.stage, fn=for_worker(self.stage.fn)))

    def of_leaf(self, leaf: Leaf, index: Ints, epoch: int) -> list[Any]:
        """Ask the filter."""
        made = leaf.samples(index, epoch, self.seed)
        if not self.stage.with_info:
            return [s is not None and bool(self.stage.fn(s)) for s in made]
        infos = [
            SampleInfo(name, leaf.name, i, 0, ("filter", str(self.stage)))
            for name, i in zip(leaf.source.ids(index), index.tolist(), strict=True)
        ]
        return [s is not None and bool(self.stage.fn(s, info)) for s, info in zip(made, infos, strict=True)]


class OutputRows(MapRows):
    """Request -> for each sample the list of (id, sample) that its functions make of it."""

    def like(self, leaves: Sequence[Leaf]) -> MapRows:
        """Give the same call on other leaves."""
        return OutputRows(leaves, self.seed)

    def of_leaf(self, leaf: Leaf, index: Ints, epoch: int) -> list[Any]:
        """Run the functions; what a call gives stands at the first sample of the call."""
        del epoch
        return [list(leaf.outputs(index)), *[[]] * (len(index) - 1)]


def words_for(leaf: Leaf, fn: Any) -> st.Map:
    """Give the words by which a pass runs: those of its functions."""
    return words_of([leaf]) or st.Map(fn)


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
    kept = "lengths and labels" if stage.what == "lengths" else stage.what
    key = digest(["cache", leaf.source.fingerprint, leaf.code(), kept], size=16)
    folder = (Path(stage.path) if stage.path else cache_folder() / "samples") / key
    if stage.what == "lengths":
        counts = _counts(leaf, folder.with_suffix(".npy"))
        return Leaf(leaf.name, Counted(leaf.source, counts), leaf.maps, leaf.filters, leaf.shuffle, leaf.repeats)
    _write(leaf, folder)
    records = import_module("thalweg.store.records")  # pyarrow loads here, not before
    source = import_module("thalweg.feed.open").RecordsSource(records.open_records(str(folder)))
    return Leaf(leaf.name, source, [], leaf.filters, leaf.shuffle, leaf.repeats)


def _write(leaf: Leaf, folder: Path) -> None:
    """Write all samples behind the functions as parts of one set, a part a piece; then put them together."""
    place = import_module("thalweg.store.records.place")
    if folder.is_dir() and place.generations(folder):
        return
    records = import_module("thalweg.store.records")
    parts, call = pieces(len(leaf.source)), OutputRows([leaf], 0)
    words = words_for(leaf, None)
    generation = records.declare_parts(str(folder), len(parts))

    def write(k: int, mark: Path) -> None:
        if not place.part_path(folder, generation, k).exists():
            with records.PartWriter(str(folder), k, len(parts), lineage=dict(leaf.source.lineage)) as writer:
                for lists in each(results(call, words, *parts[k]), call):
                    for name, sample in (pair for pairs in lists for pair in pairs):
                        writer.write(sample, id=name)
        mark.touch()

    claims = folder.with_name(f".{folder.name}.pieces")
    told = "cache of " + " ".join(map(str, leaf.maps))
    shared(claims, len(leaf.source), write, lambda: bool(place.generations(folder)), told)
    records.merge_parts(str(folder))
    shutil.rmtree(claims, ignore_errors=True)


def _counts(leaf: Leaf, path: Path) -> Ints:
    """Count the tokens of each sample, and those in the loss in the upper half; int64 (n,)."""
    call = MapRows([leaf], 0)

    def count(sample: Sample | None) -> int:
        if sample is None:
            return 0
        n = len(sample[INPUT_IDS])
        return n | label_tokens(sample, n) << 32

    def make(a: int, b: int) -> NDArray[Any]:
        made = (s for samples in each(results(call, words_for(leaf, None), a, b), call) for s in samples)
        return np.array([count(s) for s in made], np.int64)

    return whole_array(path, len(leaf.source), make, "counting tokens", stored)


class Counted:
    """A source whose tokens are counted behind functions that run again when a sample is read.

    Args:
        base: what is read.
        counts: int64 (n,), tokens of each sample, and those in the loss in the upper half.
    """

    def __init__(self, base: Source, counts: Ints) -> None:
        self.base = base
        self.lengths = (counts & 0xFFFFFFFF).astype(np.int32)
        self._labels = (counts >> 32).astype(np.int32)

    def __len__(self) -> int:
        return len(self.base)

    @property
    def facts(self) -> Mapping[str, NDArray[Any]]:
        """What was counted behind the functions: what else was known belongs to the samples before them."""
        return {"length": self.lengths, "label_tokens": self._labels}

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
