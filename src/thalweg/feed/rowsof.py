"""Which samples a row of an epoch holds, and which row and step hold a sample: the plan read both ways.

Decides how a row's number becomes a block and back. Reads ids and, for people, the place in a file where it is
recorded. Runs nothing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.core.document import ROW, SOURCE, UNIT
from thalweg.core.errors import ConfigError, InputError
from thalweg.core.topology import Topology
from thalweg.feed.batch import row_digests
from thalweg.feed.compile import Compiled, compile_feed
from thalweg.feed.gather import Reader, select
from thalweg.feed.micros import Micros
from thalweg.feed.node import RunOptions
from thalweg.feed.remix import read, sources_of
from thalweg.feed.source import hash_ids
from thalweg.plan.balanced import Planned
from thalweg.plan.epoch import Block
from thalweg.plan.steps import Place, Span, Step, Walk

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Origin:
    """One sample: its id, the name of its source, its index there, and where it is recorded to come from.

    In a raw file that is a line, from 1; of samples that carry it along, the row, from 0, in the file or a part of it.
    """

    id: str
    source: str
    index: int
    file: str | None = None
    line: int | None = None
    row: int | None = None


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


@dataclass(frozen=True)
class Ask:
    """How a run is laid out, as far as its order depends on it; `run` and `window` of a balanced one."""

    seed: int = 0
    accumulation: int = 1
    tail: str = "drop"
    topology: Topology = field(default_factory=Topology)
    run: int | None = None
    window: int | None = None
    changes: str = ""

    @classmethod
    def of(cls, head: Mapping[str, Any], seed: int | None = None, rank: int = 0) -> "Ask":
        """Read it from the head of a ledger's leg."""
        return cls(
            int(head.get("seed", 0)) if seed is None else seed,
            int(head.get("accumulation", 1)),
            str(head.get("tail", "drop")),
            Topology(rank=rank, world=int(head.get("world", 1))),
            head.get("run"),
            head.get("window"),
            str(head.get("changes") or ""),
        )

    def compiled(self, feed: Any) -> Compiled:
        """Plan a feed as the run had it: weights that changed on the way included."""
        return compile_feed(feed, self.seed, changes=read(self.changes, sources_of(feed)))

    def micros(self, compiled: Compiled) -> Micros:
        """Say who takes which rows."""
        options = RunOptions(self.topology, None, accumulation=self.accumulation, tail=self.tail)
        micros = Micros(compiled, options)
        if self.run is not None and self.window is not None:
            micros.arrange(self.run, self.window)
        return micros


def blocks_with(order: Planned, epoch: int) -> Iterator[tuple[int, int, Block]]:
    """Give (first row, end, block) of each block of an epoch."""
    at = 0
    for number in range(order.num_blocks(epoch)):
        rows = order.num_rows(epoch, number)
        yield at, at + rows, order.block(epoch, number)
        at += rows


def planned_digests(feed: Any, ask: Ask, epoch: int, rows: Ints) -> NDArray[np.uint64]:
    """Give the digest that each row of an epoch should have, from the ids in the data."""
    compiled = ask.compiled(feed)
    reader = Reader(compiled.leaves, ask.seed, as_samples=True)
    out = np.zeros(len(rows), np.uint64)
    for start, stop, block in blocks_with(ask.micros(compiled).order, epoch):
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
        places = _recorded(leaf.source, index)
        for at, name, i, place in zip(mine.tolist(), leaf.source.ids(index), index.tolist(), places, strict=True):
            flat[at] = Origin(name, leaf.name, i, *place)
    found = [o for o in flat if o is not None]
    bounds = documents.offsets.tolist()
    return [found[x:y] for x, y in pairwise(bounds)]


def _recorded(source: Any, index: Ints) -> list[tuple[str | None, int | None, int | None]]:
    """Give file, line and row of samples: of raw files by themselves, else as columns of provenance have them."""
    if hasattr(source, "where"):  # raw files say file and line themselves
        places = [str(source.where(i)).rpartition(":") for i in index.tolist()]
        return [(file, int(line), None) for file, _, line in places]
    wanted = [c for c in (SOURCE, UNIT, ROW) if c in (source.columns or ())]
    if UNIT not in wanted and ROW not in wanted:
        return [(None, None, None)] * len(index)
    read, none = source.read(index, wanted), [None] * len(index)
    files = [_file(s, u) for s, u in zip(read.get(SOURCE, none), read.get(UNIT, none), strict=True)]
    rows = [None if r is None or r < 0 else int(r) for r in read.get(ROW, none)]
    return [(file, None, row) for file, row in zip(files, rows, strict=True)]


def _file(source: Any, unit: Any) -> str | None:
    """Name the file of a unit; one that is a number is where a part of the file `source` begins."""
    if unit is None or not str(unit).isdecimal() or not source:
        return None if unit is None else str(unit)
    return str(source) if int(unit) == 0 else f"{source}@{unit}"


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
    micros = Ask(seed, accumulation, tail or ("drop" if epochs == 1 else "carry"), topology).micros(compiled)
    found = _step(compiled, step, micros.walk)
    out: list[MicroRows] = []
    for micro in micros.share(found, step, topology.dp_rank):
        rows = [row for s in micro.spans for row in span_rows(compiled, micros.order, s)]
        out.append(MicroRows(found.epoch, step, micro.micro, topology.dp_rank, rows))
    return out


def span_rows(compiled: Compiled, order: Planned, span: Span) -> list[list[Origin]]:
    """Name the samples of each row of a span."""
    return origins(compiled, order.block(span.epoch, span.block), span.start, span.stop)


def _step(compiled: Compiled, step: int, walk: Walk) -> Step:
    """Give a step of a run, going over whole epochs and blocks without looking into them."""
    left, place, before = step, Place(), 0
    if walk.tail != "carry":
        epoch = 0
        while True:
            n = walk.count_in(epoch)
            if left < n:
                break
            if not n and epoch > 2:
                raise InputError(f"no step {step}: an epoch has {compiled.order.rows(epoch):,} rows")
            left, epoch = left - n, epoch + 1
        place = Place(epoch)
        before = walk.before(place) if walk.ramp.last else 0
    place = place_of(compiled.order, place, walk.ramp.rows(before, left))
    for found in walk.steps(place):
        return found
    raise InputError(f"no step {step}")


def place_of(order: Planned, place: Place, rows: int) -> Place:
    """Give the place so many rows behind an epoch's start, or in a later epoch.

    Raises:
        InputError: an epoch has no row.
    """
    epoch, base = place.epoch, 0
    while True:
        total = order.rows(epoch)
        if not total:
            raise InputError("an epoch has no row")
        if rows < total:
            break
        rows, epoch, base = rows - total, epoch + 1, base + total
    at = 0
    for number in range(order.num_blocks(epoch)):
        n = order.num_rows(epoch, number)
        if rows < at + n:
            return Place(epoch, number, rows - at, rows, base)
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
    tail = tail or ("drop" if epochs == 1 else "carry")
    micros = Ask(seed, accumulation, tail, Topology(world=world)).micros(compiled)
    walk, carry, ramp = micros.walk, tail == "carry", micros.ramp
    seen: list[Seen] = []
    end = ramp.steps(0, sum(compiled.order.rows(e) for e in range(epochs))) if carry else 0
    steps_before = rows_before = 0
    for epoch in range(epochs + carry):  # under carry the last step is filled from the epoch behind
        before = walk.before(Place(epoch)) if ramp.last and not carry else 0  # a step begins where an epoch does
        for row in _rows_with(micros.order, epoch, places):
            step = ramp.steps(before, row + (rows_before if carry else 0) + 1) - 1
            if step < (end if carry else walk.count_in(epoch)):
                seen += _seen(compiled, micros, step + steps_before, epoch, row)
        rows_before += compiled.order.rows(epoch)
        steps_before += 0 if carry else walk.count_in(epoch)
    named = [Origin(sample, compiled.leaves[s].name, i, *_where(compiled, s, i)) for s, i in places]
    return named, seen


def _seen(compiled: Compiled, micros: Micros, number: int, epoch: int, row: int) -> Iterator[Seen]:
    """Say which micro-batch of which rank holds a row of a step."""
    step = _step(compiled, number, micros.walk)
    for rank in range(micros.options.topology.dp_size):
        for micro in micros.share(step, number, rank):
            if any(s.epoch == epoch and s.mark is None and 0 <= row - s.first < s.stop - s.start for s in micro.spans):
                yield Seen(epoch, number, micro.micro, rank, row)


def _where(compiled: Compiled, s: int, index: int) -> tuple[str | None, int | None, int | None]:
    return _recorded(compiled.leaves[s].source, np.array([index]))[0]


def _holders(compiled: Compiled, sample: str) -> Iterator[tuple[int, int]]:
    """Find (source, index) of an id by its hash, then by itself."""
    wanted = hash_ids([sample])[0]
    for s, leaf in enumerate(compiled.leaves):
        for at in range(0, len(leaf.source), 1 << 18):
            indices = np.arange(at, min(at + (1 << 18), len(leaf.source)))
            for i in indices[leaf.source.id_hashes(indices) == wanted].tolist():
                if leaf.source.ids(np.array([i])) == [sample]:
                    yield s, i


def _rows_with(order: Planned, epoch: int, places: list[tuple[int, int]]) -> Iterator[int]:
    for start, _, block in blocks_with(order, epoch):
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
