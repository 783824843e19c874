"""Best fit, decreasing: each document, longest first, goes to the fullest row that still takes it.

Works on counts of equal lengths: rows with the same history form a run (first row, number of rows), a big integer
is the set of the residuals that open rows have, and a million documents are some ten thousand decisions. The
decisions are then expanded to documents in one pass. Knows no tokens.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from thalweg.plan.pack_rows import Ints, Rows, checked, padded

# A run: rows first .. first + count, all with the same residual and `docs` documents each.
Run = tuple[int, int, int]


@dataclass(slots=True)
class _Table:
    """Open rows by residual, and the decisions made so far."""

    capacities: list[int]
    max_docs: int
    open: dict[int, list[Run]] = field(default_factory=dict[int, list[Run]])
    residuals: int = 0  # bit r is set where an open row has r tokens left
    rows: int = 0
    events: list[tuple[int, int, int, int]] = field(default_factory=list[tuple[int, int, int, int]])
    made: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    def put(self, room: int, run: Run) -> None:
        if room and run[2] < self.max_docs:
            self.open.setdefault(room, []).append(run)
            self.residuals |= 1 << room

    def get(self, length: int, count: int) -> tuple[int, Run]:
        """Give (room, run) of the best rows for `length`, opening as many as `count` documents need."""
        above = self.residuals >> length
        if above:
            room = length + (above & -above).bit_length() - 1
            stack = self.open[room]
            run = stack.pop()
            if not stack:
                self.residuals ^= 1 << room
            return room, run
        room = next(c for c in self.capacities if c >= length)
        n = -(-count // min(room // length, self.max_docs))
        run = (self.rows, n, 0)
        self.rows += n
        self.made.append((room, n))
        return room, run

    def place(self, length: int, count: int) -> None:
        """Place `count` documents of one length."""
        while count:
            room, (first, n, docs) = self.get(length, count)
            each = min(room // length, self.max_docs - docs)
            full = min(n, count // each)
            if full:
                self.events.append((first, full, each, docs))
                self.put(room - each * length, (first, full, docs + each))
                count -= full * each
            if full == n:
                continue
            first, n = first + full, n - full
            if count:  # fewer documents are left than one more row would take
                self.events.append((first, 1, count, docs))
                self.put(room - count * length, (first, 1, docs + count))
                first, n, count = first + 1, n - 1, 0
            if n:
                self.put(room, (first, n, docs))


def _decide(counts: NDArray[np.int64], capacities: list[int], max_docs: int | None) -> _Table:
    table = _Table(capacities, max_docs or 1 << 62)
    distinct = np.flatnonzero(counts)[::-1]
    for length, count in zip(distinct.tolist(), counts[distinct].tolist(), strict=True):
        table.place(length, count)
    return table


def _descending(lengths: NDArray[np.integer], top: int) -> Ints:
    """Sort document indices by falling length, equal ones in order; radix passes over 16 bits each."""
    if top < 1 << 16:
        return np.argsort((top - lengths).astype(np.uint16), kind="stable")
    key = (top - lengths).astype(np.uint32)
    order = np.argsort((key & np.uint32(0xFFFF)).astype(np.uint16), kind="stable")
    high = (key >> np.uint32(16)).astype(np.uint16)
    return order[np.argsort(high[order], kind="stable")]


def _expand(table: _Table, order: Ints) -> Rows:
    """Give each document its place: the first place of its row, plus the documents that came before it there."""
    first, n, each, docs = np.array(table.events, np.int64).reshape(-1, 4).T
    at = np.arange(int(n.sum())) + np.repeat(first - np.cumsum(n) + n, n)  # row of each (decision, row) pair
    sizes = np.repeat(each, n)
    held = np.zeros(table.rows + 1, np.int64)
    held[1:] = np.bincount(at, sizes, table.rows)
    offsets = np.cumsum(held)
    start = offsets[:-1][at] + np.repeat(docs, n)
    ends = np.cumsum(sizes)
    place = np.repeat(start - ends + sizes, sizes)
    place += np.arange(len(order))
    out = np.empty(len(order), np.int64)
    out[place] = order
    capacities = None
    if len(table.capacities) > 1:
        room, many = np.array(table.made, np.int64).reshape(-1, 2).T
        capacities = np.repeat(room, many)
    return Rows(out, offsets, None, capacities)


def _parsed(capacity: int | tuple[int, ...]) -> list[int]:
    return sorted({capacity} if isinstance(capacity, int) else set(capacity))


def best_fit(
    lengths: ArrayLike, capacity: int | tuple[int, ...], *, max_docs: int | None = None, align: int = 1
) -> Rows:
    """Pack best-fit, decreasing; exact, and independent of how many documents share a length.

    Args:
        lengths: int (n,), true token counts, 1 to capacity.
        capacity: tokens of a row; several row lengths may be given, and a new row gets the smallest that fits.
        max_docs: documents of a row at most.
        align: each document takes up a multiple of this many tokens.

    Returns:
        Rows over all documents, each exactly once; at most the lower bound + a few rows on real length sets.

    Raises:
        InputError: a length below 1 or above the (largest) capacity.
    """
    capacities = _parsed(capacity)
    real = checked(lengths, capacities[-1] // align * align)
    if not real.size:
        return Rows(np.empty(0, np.int64), np.zeros(1, np.int64))
    taken = padded(real, align)
    counts = np.bincount(taken)
    return _expand(_decide(counts, capacities, max_docs), _descending(taken, len(counts) - 1))


def count_best_fit(
    lengths: ArrayLike, capacity: int | tuple[int, ...], *, max_docs: int | None = None, align: int = 1
) -> int:
    """Count the rows that `best_fit` makes, from the histogram of lengths alone."""
    capacities = _parsed(capacity)
    real = checked(lengths, capacities[-1] // align * align)
    return _decide(np.bincount(padded(real, align)), capacities, max_docs).rows if real.size else 0
