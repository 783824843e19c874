"""The order of rows of any epoch, in blocks: draws -> samples -> packed rows -> their order.

Decides what row r of block b of epoch e holds, from the table, the schedule, the packing and the seed alone
(SEMANTICS 1.2, 2.1). Blocks are planned when asked for and a few are kept. Knows no rank, step or batch, and reads
no token: lengths come from the table.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from thalweg.core.sample import offsets_of
from thalweg.core.seeds import Key, generator
from thalweg.plan.pack_rows import ranges
from thalweg.plan.schedule import Schedule
from thalweg.plan.table import SourceTable, picked

Ints = NDArray[np.int64]
PACKED_BLOCK = 1 << 18  # draws packed together: about 50 ms, and one row lost in some ten thousand
PLAIN_BLOCK = 1 << 16  # draws of an unpacked block: about 1 ms
KEPT = 3  # blocks kept


@dataclass(frozen=True, eq=False)
class Packed:
    """What a packer gives: documents in row order, and the parts of them where some were cut.

    Args:
        order: int64 (m,), positions among the lengths given.
        offsets: int64 (r + 1,).
        start: int64 (m,) or None: first token of each piece.
        stop: int64 (m,) or None: end of each piece.
        capacities: int64 (r,) or None: tokens of each row, where rows differ.
        loss: what was cut or left out: reason -> (documents, tokens).
    """

    order: Ints
    offsets: Ints
    start: Ints | None = None
    stop: Ints | None = None
    capacities: Ints | None = None
    loss: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])


class Keeper(Protocol):
    """Keeps plans for others: processes of one node, and later runs."""

    def block(self, epoch: int, number: int, plan: "Callable[[], Block]") -> "Block":
        """Give a block that was kept, or plan it and keep it."""
        ...

    def counts(self, epoch: int) -> dict[int, int]:
        """Give the rows of every block of an epoch, counted together; empty where that is not worth it."""
        ...


# Lengths, and the (source, index) of each -> rows
Packer = Callable[[NDArray[Any], NDArray[np.int32], Ints], Packed]


@dataclass(eq=False)
class Block:
    """Some consecutive rows of an epoch.

    Args:
        epoch: its epoch.
        number: its number in the epoch.
        entry: entry of the schedule that its draws belong to.
        source: int32 (m,), source of each document, row after row.
        index: int64 (m,), its index in the source.
        offsets: int64 (r + 1,), documents of each row.
        start: int64 (m,) or None: first token of each piece.
        stop: int64 (m,) or None: end of each piece.
        lengths: int (m,) or None: tokens of each document or piece, where known.
        loss: what its packing cut or left out: reason -> (documents, tokens).
    """

    epoch: int
    number: int
    entry: int
    source: NDArray[np.int32]
    index: Ints
    offsets: Ints
    start: Ints | None = None
    stop: Ints | None = None
    lengths: Ints | None = None
    loss: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    sums: dict[str, Ints] = field(default_factory=dict[str, Ints], repr=False)

    def __len__(self) -> int:
        """Count the rows."""
        return len(self.offsets) - 1

    def row_sums(self, name: str, of: Callable[["Block"], NDArray[Any]]) -> Ints:
        """Give running sums of a value over rows, int64 (r + 1,), worked out once: rows a to b have sums[b] - sums[a].

        Args:
            name: what is summed.
            of: gives one value for each document.
        """
        if name not in self.sums:
            self.sums[name] = offsets_of(of(self))[self.offsets]
        return self.sums[name]

    def take(self, rows: Ints) -> "Block":
        """Give the same block with its rows in another order."""
        at, offsets = ranges(self.offsets, rows)
        return Block(
            self.epoch,
            self.number,
            self.entry,
            self.source[at],
            self.index[at],
            offsets,
            None if self.start is None else self.start[at],
            None if self.stop is None else self.stop[at],
            None if self.lengths is None else self.lengths[at],
            self.loss,
        )


class Order:
    """Rows of all epochs.

    Args:
        sources: tables of the sources, in the schedule's order.
        schedule: which draws an epoch has.
        packer: rows out of lengths; None: a row is a draw.
        seed: permutes the rows of a block; None leaves them in the order of their first draw.
        block: draws of a block; None takes 262,144 packed, 65,536 not.
        repack: False keeps the rows of epoch 0 in all epochs, and permutes blocks and rows (one source only).
        counts: known rows of (epoch, block), such as were counted before; filled on the way.
    """

    def __init__(
        self,
        sources: Sequence[SourceTable],
        schedule: Schedule,
        *,
        packer: Packer | None = None,
        seed: Key = None,
        block: int | None = None,
        repack: bool = True,
        counts: dict[tuple[int, int], int] | None = None,
    ) -> None:
        assert repack or (len(sources) == 1 and packer is not None)
        self.sources, self.schedule, self.packer, self.seed = list(sources), schedule, packer, seed
        self.given = self.size = block or (PLAIN_BLOCK if packer is None else PACKED_BLOCK)
        self.repack = repack
        self.counts = {} if counts is None else counts
        self.keeper: Keeper | None = None
        self._kept: OrderedDict[tuple[int, int], Block] = OrderedDict()
        self._stretches: dict[int, list[tuple[int, int, int]]] = {}

    def num_draws(self, epoch: int) -> int:
        """Count the draws of an epoch."""
        segments = self.schedule.segments(epoch)
        return segments[-1].start + segments[-1].length if segments else 0

    def stretches(self, epoch: int) -> list[tuple[int, int, int]]:
        """Give (start, stop, entry) of the parts of an epoch that no block crosses."""
        known = self._stretches.get(epoch)
        if known is not None:
            return known
        out: list[tuple[int, int, int]] = []
        for s in self.schedule.segments(epoch):
            if out and out[-1][2] == s.entry:
                out[-1] = (out[-1][0], s.start + s.length, s.entry)
            else:
                out.append((s.start, s.start + s.length, s.entry))
        if len(self._stretches) > 8:
            self._stretches.clear()
        self._stretches[epoch] = out
        return out

    def num_blocks(self, epoch: int) -> int:
        """Count the blocks of an epoch."""
        return sum(-(-(stop - start) // self.size) for start, stop, _ in self.stretches(epoch))

    def bounds(self, epoch: int, number: int) -> tuple[int, int, int]:
        """Give (first draw, end, entry) of a block."""
        left = number
        for start, stop, entry in self.stretches(epoch):
            blocks = -(-(stop - start) // self.size)
            if left < blocks:
                first = start + left * self.size
                return first, min(first + self.size, stop), entry
            left -= blocks
        raise IndexError(f"block {number} of {self.num_blocks(epoch)} in epoch {epoch}")

    def block_at(self, epoch: int, draw: int) -> int:
        """Give the number of the block that holds a draw of the epoch."""
        before = 0
        for start, stop, _ in self.stretches(epoch):
            if draw < stop:
                return before + (draw - start) // self.size
            before += -(-(stop - start) // self.size)
        raise IndexError(f"draw {draw} of {self.num_draws(epoch)} in epoch {epoch}")

    def draws(self, epoch: int, start: int, stop: int) -> tuple[NDArray[np.int32], Ints]:
        """Give (source, draw of the source over the whole run) at positions of an epoch."""
        source, draw = np.zeros(stop - start, np.int32), np.empty(stop - start, np.int64)
        for s, places, first, n in self._parts(epoch, start, stop):
            source[places] = s
            draw[places] = np.arange(first, first + n)
        return source, draw

    def drawn(self, epoch: int, start: int, stop: int) -> tuple[NDArray[np.int32], Ints, Ints | None]:
        """Give (source, index in it, length) of the samples at positions of an epoch.

        Lengths are None where a source does not know them.
        """
        source, index = np.zeros(stop - start, np.int32), np.empty(stop - start, np.int64)
        known = all(t.lengths is not None for t in self.sources)
        lengths = np.empty(stop - start, np.int64) if known else None
        parts = list(self._parts(epoch, start, stop))
        found = [self.sources[s].samples(np.arange(first, first + n)) for s, _, first, n in parts]
        for s, places, _, _ in parts:  # array by array: all in one loop costs a quarter more
            source[places] = s
        for (_, places, _, _), mine in zip(parts, found, strict=True):
            index[places] = mine
        for (s, places, _, _), mine in zip(parts, found, strict=True):
            column = self.sources[s].lengths
            if lengths is not None and column is not None:
                lengths[places] = column[mine]
        return source, index, lengths

    def _parts(
        self, epoch: int, start: int, stop: int
    ) -> Iterator[tuple[int, "slice | NDArray[np.integer[Any]]", int, int]]:
        """Give positions of an epoch by source: (source, its places from `start` on, its first draw, draws)."""
        for segment in self.schedule.segments(epoch):
            a, b = max(start, segment.start), min(stop, segment.start + segment.length)
            if a >= b:
                continue
            if len(segment.before) == 1:
                yield 0, slice(a - start, b - start), segment.before[0] + a - segment.start, b - a
                continue
            for s, places, first in segment.mix.parts(a - segment.start, b - segment.start):
                if len(places):
                    yield s, places + (a - start), first + segment.before[s], len(places)

    def lengths(self, source: NDArray[np.int32], index: Ints) -> Ints | None:
        """Give the tokens of samples; None where a source does not know them."""
        columns = [t.lengths for t in self.sources if t.lengths is not None]
        return picked(columns, source, index) if len(columns) == len(self.sources) else None

    def block(self, epoch: int, number: int) -> Block:
        """Plan a block, or give the one planned before."""
        key = (epoch, number)
        block = self._kept.get(key)
        if block is None:
            if self.keeper is None or self.packer is None:
                block = self._plan(epoch, number)
            else:
                block = self.keeper.block(epoch, number, lambda: self._plan(epoch, number))
            self._kept[key] = block
            self.counts[key] = len(block)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        elif key in self._kept:  # another thread may just have let it go
            self._kept.move_to_end(key)
        return block

    def _plan(self, epoch: int, number: int) -> Block:
        kept = number
        if not self.repack and epoch:
            kept = int(generator(self.seed, "blocks", epoch).permutation(self.num_blocks(0))[number])
        arranged = epoch if self.repack else 0
        start, stop, entry = self.bounds(arranged, kept)
        if self.packer is None:
            source, index, _ = self.drawn(arranged, start, stop)
            return Block(epoch, number, entry, source, index, np.arange(len(index) + 1))
        return self._packed((epoch, number, entry), *self.drawn(arranged, start, stop))

    def lay_blocks(self, size: int) -> None:
        """Take other blocks: of so many draws. What was planned is forgotten."""
        if size != self.size:
            self.size = size
            self._kept.clear()
            self.counts.clear()

    def _packed(self, key: tuple[int, int, int], source: NDArray[np.int32], index: Ints, lengths: Ints | None) -> Block:
        """Pack the draws of a block into rows, and put the rows in their order."""
        assert self.packer is not None
        assert lengths is not None
        rows = self.packer(lengths, source, index)
        n = len(rows.offsets) - 1
        if self.seed is not None:
            ordered = generator(self.seed, "rows", *key[:2]).permutation(n)
        else:
            first = np.minimum.reduceat(rows.order, rows.offsets[:-1]) if n else rows.order
            ordered = np.argsort(first, kind="stable")
        at, offsets = ranges(rows.offsets, ordered)
        start, stop = (None, None) if rows.start is None or rows.stop is None else (rows.start[at], rows.stop[at])
        draw = rows.order[at]
        return Block(
            *key,
            source[draw],
            index[draw],
            offsets,
            start,
            stop,
            lengths[draw] if start is None or stop is None else stop - start,
            rows.loss,
        )

    def count(self, epoch: int, number: int) -> int:
        """Count the rows of a block without putting them in order, where its packer can."""
        counted = getattr(self.packer, "count", None)
        if counted is None or not self.repack:
            return len(self._plan(epoch, number))
        start, stop, _ = self.bounds(epoch, number)
        source, index, lengths = self.drawn(epoch, start, stop)
        rows: int | None = counted(lengths, source, index)
        return len(self._plan(epoch, number)) if rows is None else rows

    def num_rows(self, epoch: int, number: int) -> int:
        """Count the rows of a block; a packed block is planned for it once, its count is kept."""
        if self.packer is None:
            start, stop, _ = self.bounds(epoch, number)
            return stop - start
        count = self.counts.get((epoch, number))
        return len(self.block(epoch, number)) if count is None else count

    def rows(self, epoch: int) -> int:
        """Count the rows of an epoch."""
        if self.packer is None:
            return self.num_draws(epoch)
        numbers = range(self.num_blocks(epoch))
        if self.keeper is not None and any((epoch, b) not in self.counts for b in numbers):
            self.counts.update({(epoch, b): n for b, n in self.keeper.counts(epoch).items()})
        return sum(self.num_rows(epoch, b) for b in numbers)
