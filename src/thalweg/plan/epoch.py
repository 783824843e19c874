"""The order of rows of any epoch, in blocks: draws -> samples -> packed rows -> their order.

Decides what row r of block b of epoch e holds, from the table, the schedule, the packing and the seed alone
(SEMANTICS 1.2, 2.1). Blocks are planned when asked for and a few are kept. Knows no rank, step or batch, and reads
no token: lengths come from the table.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from thalweg.core.seeds import Key, generator
from thalweg.plan.schedule import Schedule, Segment
from thalweg.plan.table import SourceTable

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
            total = np.zeros(len(self.index) + 1, np.int64)
            np.cumsum(of(self), out=total[1:])
            self.sums[name] = total[self.offsets]
        return self.sums[name]

    def take(self, rows: Ints) -> "Block":
        """Give the same block with its rows in another order."""
        counts = np.diff(self.offsets)[rows]
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        at = np.arange(offsets[-1]) + np.repeat(self.offsets[:-1][rows] - offsets[:-1], counts)
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
        parts: list[tuple[NDArray[np.int32], Ints]] = []
        for s in self.schedule.segments(epoch):
            a, b = max(start, s.start), min(stop, s.start + s.length)
            if a < b:
                parts.append(_span(s, a - s.start, b - s.start))
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return np.empty(0, np.int32), np.empty(0, np.int64)
        return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])

    def samples(self, source: NDArray[np.int32], draw: Ints) -> Ints:
        """Give the index in its source of each draw."""
        if len(self.sources) == 1:
            return self.sources[0].samples(draw)
        index = np.empty(len(draw), np.int64)
        for s, table in enumerate(self.sources):
            mine = np.flatnonzero(source == s)
            if len(mine):
                index[mine] = table.samples(draw[mine])
        return index

    def lengths(self, source: NDArray[np.int32], index: Ints) -> Ints | None:
        """Give the tokens of samples; None where a source does not know them."""
        if any(t.lengths is None for t in self.sources):
            return None
        out = np.empty(len(index), np.int64)
        for s, table in enumerate(self.sources):
            assert table.lengths is not None
            if len(self.sources) == 1:
                return table.lengths[index].astype(np.int64)
            mine = np.flatnonzero(source == s)
            out[mine] = table.lengths[index[mine]]
        return out

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
        source, draw = self.draws(arranged, start, stop)
        index = self.samples(source, draw)
        if self.packer is None:
            block = Block(epoch, number, entry, source, index, np.arange(len(index) + 1))
        else:
            block = self._packed(Block(epoch, number, entry, source, index, np.arange(len(index) + 1)))
        return block

    def lay_blocks(self, size: int) -> None:
        """Take other blocks: of so many draws. What was planned is forgotten."""
        if size != self.size:
            self.size = size
            self._kept.clear()
            self.counts.clear()

    def _packed(self, draws: Block) -> Block:
        """Pack a block of draws into rows, and put the rows in their order."""
        lengths = self.lengths(draws.source, draws.index)
        assert self.packer is not None
        assert lengths is not None
        rows = self.packer(lengths, draws.source, draws.index)
        block = replace(
            draws,
            source=draws.source[rows.order],
            index=draws.index[rows.order],
            offsets=rows.offsets,
            start=rows.start,
            stop=rows.stop,
            lengths=lengths[rows.order] if rows.start is None or rows.stop is None else rows.stop - rows.start,
            loss=rows.loss,
        )
        if self.seed is not None:
            return block.take(generator(self.seed, "rows", draws.epoch, draws.number).permutation(len(block)))
        first = np.minimum.reduceat(rows.order, rows.offsets[:-1]) if len(block) else rows.order
        return block.take(np.argsort(first, kind="stable"))

    def count(self, epoch: int, number: int) -> int:
        """Count the rows of a block without putting them in order, where its packer can."""
        counted = getattr(self.packer, "count", None)
        if counted is None or not self.repack:
            return len(self._plan(epoch, number))
        start, stop, _ = self.bounds(epoch, number)
        source, draw = self.draws(epoch, start, stop)
        index = self.samples(source, draw)
        rows: int | None = counted(self.lengths(source, index), source, index)
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


def _span(segment: Segment, start: int, stop: int) -> tuple[NDArray[np.int32], Ints]:
    if len(segment.before) == 1:
        draw = np.arange(segment.before[0] + start, segment.before[0] + stop)
        return np.zeros(stop - start, np.int32), draw
    source, draw = segment.mix.span(start, stop)
    return source, draw + np.array(segment.before, np.int64)[source]
