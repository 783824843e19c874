"""Which samples a row of an epoch holds, and which row and step hold a sample: the plan read both ways.

Decides how a row's number becomes a block and back. Reads ids and, for people, the place in a file where it is
recorded. Runs nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.core.errors import ConfigError, InputError
from thalweg.core.topology import Topology
from thalweg.feed import stages as st
from thalweg.feed.batch import row_digests
from thalweg.feed.compile import Compiled, compile_feed
from thalweg.feed.gather import Reader, select
from thalweg.feed.source import hash_ids
from thalweg.plan.epoch import Block
from thalweg.plan.steps import Place, Span, Step, Walk, cut

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Origin:
    """One sample: its id, the name of its source, its index there, and where it is recorded to come from."""

    id: str
    source: str
    index: int
    file: str | None = None
    line: int | None = None


@dataclass(frozen=True)
class Seen:
    """Where a sample is seen."""

    epoch: int
    step: int
    micro: int
    rank: int
    row: int


@dataclass(frozen=True)
class MicroRows:
    """A micro-batch of a rank: its rows as lists of samples."""

    epoch: int
    step: int
    micro: int
    rank: int
    rows: list[list[Origin]] = field(default_factory=list[list[Origin]])


def blocks_with(compiled: Compiled, epoch: int) -> Iterator[tuple[int, int, Block]]:
    """Give (first row, end, block) of each block of an epoch."""
    at, order = 0, compiled.order
    for number in range(order.num_blocks(epoch)):
        rows = order.num_rows(epoch, number)
        yield at, at + rows, order.block(epoch, number)
        at += rows


def planned_digests(feed: Any, seed: int, epoch: int, rows: Ints) -> NDArray[np.uint64]:
    """Give the digest that each row of an epoch should have, from the ids in the data."""
    compiled = compile_feed(feed, seed)
    reader = Reader(compiled.leaves, seed, as_samples=True)
    out = np.zeros(len(rows), np.uint64)
    for start, stop, block in blocks_with(compiled, epoch):
        mine = np.flatnonzero((rows >= start) & (rows < stop))
        if len(mine):
            documents = select([(block, 0, len(block))])
            out[mine] = row_digests(reader.id_hashes(documents), documents.offsets)[rows[mine] - start]
    return out


def origins(compiled: Compiled, block: Block, a: int, b: int) -> list[list[Origin]]:
    """Name the samples of rows a to b of a block."""
    documents = select([(block, a, b)])
    flat: list[Origin | None] = [None] * len(documents.index)
    for s, leaf in enumerate(compiled.leaves):
        mine = np.flatnonzero(documents.source == s)
        index = documents.index[mine]
        if not len(mine):
            continue
        units, lines = _recorded(leaf.source, index)
        for at, name, i, unit, line in zip(
            mine.tolist(), leaf.source.ids(index), index.tolist(), units, lines, strict=True
        ):
            flat[at] = Origin(name, leaf.name, i, unit, line)
    found = [o for o in flat if o is not None]
    bounds = documents.offsets.tolist()
    return [found[x:y] for x, y in pairwise(bounds)]


def _recorded(source: Any, index: Ints) -> tuple[list[str | None], list[int | None]]:
    """Read provenance columns where the data has them."""
    if hasattr(source, "where"):  # raw files say file and line themselves
        places = [str(source.where(i)).rpartition(":") for i in index.tolist()]
        return [file for file, _, _ in places], [int(line) for _, _, line in places]
    columns = source.columns or ()
    wanted = [c for c in ("unit", "row") if c in columns]
    if not wanted:
        return [None] * len(index), [None] * len(index)
    read = source.read(index, wanted)
    units = [None if u is None else str(u) for u in read.get("unit", [None] * len(index))]
    lines = [None if r is None else int(r) for r in read.get("row", [None] * len(index))]
    return units, lines


def _micro(feed: Any) -> int:
    batch = next((s for s in feed.stages if isinstance(s, st.BATCHING)), None)
    return batch.size if isinstance(batch, st.Batch) else 1


def why_step(
    feed: Any,
    step: int,
    *,
    topology: Topology,
    accumulation: int = 1,
    seed: int = 0,
    epochs: int | None = 1,
    tail: str | None = None,
) -> list[MicroRows]:
    """Name the samples that a rank sees in a step, counted from the start of the run on one layout.

    Raises:
        InputError: the run has no such step.
    """
    compiled = compile_feed(feed, seed)
    micro = _micro(feed)
    found = _step(compiled, step, topology.dp_size * micro * accumulation, tail or ("drop" if epochs == 1 else "carry"))
    out: list[MicroRows] = []
    for m in range(accumulation):
        first = (m * topology.dp_size + topology.dp_rank) * micro
        spans, _ = cut(found, first, first + micro)
        rows = [row for s in spans for row in _span_rows(compiled, s)]
        out.append(MicroRows(found.epoch, step, m, topology.dp_rank, rows))
    return out


def _span_rows(compiled: Compiled, span: Span) -> list[list[Origin]]:
    return origins(compiled, compiled.order.block(span.epoch, span.block), span.start, span.stop)


def _step(compiled: Compiled, step: int, size: int, tail: str) -> Step:
    """Give a step of a run, going over whole epochs and blocks without looking into them."""
    walk, left, place = Walk(compiled.order, size, tail, None), step, Place()
    if tail != "carry":
        epoch = 0
        while True:
            n = walk.count_in(epoch)
            if left < n:
                break
            if not n and epoch > 2:
                raise InputError(f"no step {step}: an epoch has {compiled.order.rows(epoch):,} rows")
            left, epoch = left - n, epoch + 1
        place = Place(epoch)
    place = _skip(compiled, place, left * size)
    for found in walk.steps(place):
        return found
    raise InputError(f"no step {step}")


def _skip(compiled: Compiled, place: Place, rows: int) -> Place:
    epoch, order = place.epoch, compiled.order
    while True:
        total = order.rows(epoch)
        if not total:
            raise InputError("an epoch has no row")
        if rows < total:
            break
        rows, epoch = rows - total, epoch + 1
    at = 0
    for number in range(order.num_blocks(epoch)):
        n = order.num_rows(epoch, number)
        if rows < at + n:
            return Place(epoch, number, rows - at, rows)
        at += n
    raise AssertionError


def why_sample(
    feed: Any,
    sample: str,
    *,
    world: int = 1,
    accumulation: int = 1,
    seed: int = 0,
    epochs: int = 1,
    tail: str | None = None,
) -> tuple[list[Origin], list[Seen]]:
    """Say which steps of the first epochs see a sample, on one layout from the start.

    Raises:
        InputError: no sample has that id.
    """
    compiled = compile_feed(feed, seed)
    places = list(_holders(compiled, sample))
    if not places:
        raise InputError(f"no sample has the id {sample!r}", fix="ids are those of the data; feed.peek() shows some")
    micro = _micro(feed)
    size = world * micro * accumulation
    tail = tail or ("drop" if epochs == 1 else "carry")
    walk = Walk(compiled.order, size, tail, None)
    seen: list[Seen] = []
    carry = tail == "carry"
    end = -(-sum(compiled.order.rows(e) for e in range(epochs)) // size) if carry else 0
    steps_before = rows_before = 0
    for epoch in range(epochs + carry):  # under carry the last step is filled from the epoch behind
        for row in _rows_with(compiled, epoch, places):
            step, at = divmod(row + (rows_before if carry else 0), size)
            if step >= (end if carry else walk.count_in(epoch)):
                continue
            m, rest = divmod(at, world * micro)
            seen.append(Seen(epoch, step + steps_before, m, rest // micro, row))
        rows_before += compiled.order.rows(epoch)
        steps_before += 0 if carry else walk.count_in(epoch)
    named = [Origin(sample, compiled.leaves[s].name, i, *_where(compiled, s, i)) for s, i in places]
    return named, seen


def _where(compiled: Compiled, s: int, index: int) -> tuple[str | None, int | None]:
    units, lines = _recorded(compiled.leaves[s].source, np.array([index]))
    return units[0], lines[0]


def _holders(compiled: Compiled, sample: str) -> Iterator[tuple[int, int]]:
    """Find (source, index) of an id by its hash, then by itself."""
    wanted = hash_ids([sample])[0]
    for s, leaf in enumerate(compiled.leaves):
        for at in range(0, len(leaf.source), 1 << 18):
            indices = np.arange(at, min(at + (1 << 18), len(leaf.source)))
            for i in indices[leaf.source.id_hashes(indices) == wanted].tolist():
                if leaf.source.ids(np.array([i])) == [sample]:
                    yield s, i


def _rows_with(compiled: Compiled, epoch: int, places: list[tuple[int, int]]) -> Iterator[int]:
    for start, _, block in blocks_with(compiled, epoch):
        for s, i in places:
            at = np.flatnonzero((block.source == s) & (block.index == i))
            for row in np.unique(np.searchsorted(block.offsets, at, side="right") - 1).tolist():
                yield start + int(row)


def refuse_stream(feed: Any) -> None:
    """Refuse a feed that has no plan.

    Raises:
        ConfigError: it is a stream.
    """
    if feed.kind != "planned":
        raise ConfigError(f"a stream has no plan to ask: {feed.why}", fix=".cache() behind the map, or ask the ledger")
