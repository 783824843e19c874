"""Best fit, decreasing: each document, longest first, goes to the fullest row that still takes it.

Works on counts of equal lengths: rows with the same history form a run (first row, number of rows), a big integer
is the set of the residuals that open rows have, and a million documents are some ten thousand decisions. The
decisions are then expanded to documents in one pass. Knows no tokens.
"""

from bisect import bisect_left
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from thalweg.plan.pack_rows import Ints, Rows, checked, padded

# A run: rows first .. first + count, all with the same residual and `docs` documents each.
Run = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class _Decisions:
    """What `_decide` says.

    Args:
        rows: how many there are.
        events: first row, rows, documents for each, documents that each has before; end to end, by falling length.
        made: (capacity, rows) of new rows, in order.
    """

    rows: int
    events: list[int]
    made: list[tuple[int, int]]


def _decide(counts: NDArray[np.int64], capacities: list[int], max_docs: int | None) -> _Decisions:
    """Decide for all documents of a length at once, by falling length.

    One function, since it is walked ten thousand times a block: by methods of a table it takes half as long again.
    """
    most, rows = max_docs or 1 << 62, 0
    opened: dict[int, list[Run]] = {}  # open rows by residual
    residuals = 0  # bit r is set where an open row has r tokens left
    events: list[int] = []  # flat: as many tuples would set off the garbage collector
    made: list[tuple[int, int]] = []

    def put(room: int, run: Run) -> None:
        nonlocal residuals
        if room and run[2] < most:
            stack = opened.get(room)
            if stack:
                stack.append(run)
            else:
                opened[room] = [run]
                residuals |= 1 << room

    distinct = np.flatnonzero(counts)[::-1]
    for length, many in zip(distinct.tolist(), counts[distinct].tolist(), strict=True):
        count = many
        while count:
            above = residuals >> length
            if above:  # the fullest open rows that take it
                room = length + (above & -above).bit_length() - 1
                stack = opened[room]
                first, n, docs = stack.pop()
                if not stack:
                    residuals ^= 1 << room
            else:  # as many new ones as all of them need
                room = capacities[bisect_left(capacities, length)]
                first, n, docs = rows, -(-count // min(room // length, most)), 0
                rows += n
                made.append((room, n))
            each, full = room // length, most - docs
            each = each if each < full else full  # noqa: FURB136  (`min` takes a tenth of all this)
            full = count // each
            full = full if full < n else n  # noqa: FURB136
            if full:
                events += first, full, each, docs
                put(room - each * length, (first, full, docs + each))
                count -= full * each
            if full == n:
                continue
            first, n = first + full, n - full
            if count:  # fewer documents are left than one more row would take
                events += first, 1, count, docs
                put(room - count * length, (first, 1, docs + count))
                first, n, count = first + 1, n - 1, 0
            if n:
                put(room, (first, n, docs))
    return _Decisions(rows, events, made)


def _descending(lengths: NDArray[np.integer], top: int) -> Ints:
    """Sort document indices by falling length, equal ones in order; radix passes over 16 bits each."""
    if top < 1 << 16:
        return np.argsort((top - lengths).astype(np.uint16), kind="stable")
    key = (top - lengths).astype(np.uint32)
    order = np.argsort((key & np.uint32(0xFFFF)).astype(np.uint16), kind="stable")
    high = (key >> np.uint32(16)).astype(np.uint16)
    return order[np.argsort(high[order], kind="stable")]


def _expand(decided: _Decisions, order: Ints) -> Rows:
    """Give each document its place: the first place of its row, plus the documents that came before it there."""
    first, n, each, docs = np.array(decided.events, np.int64).reshape(-1, 4).T
    at = np.arange(int(n.sum())) + np.repeat(first - np.cumsum(n) + n, n)  # row of each (decision, row) pair
    sizes = np.repeat(each, n)
    held = np.zeros(decided.rows + 1, np.int64)
    held[1:] = np.bincount(at, sizes, decided.rows)
    offsets = np.cumsum(held)
    start = offsets[:-1][at] + np.repeat(docs, n)
    ends = np.cumsum(sizes)
    place = np.repeat(start - ends + sizes, sizes)
    place += np.arange(len(order))
    out = np.empty(len(order), np.int64)
    out[place] = order
    room, many = np.array(decided.made, np.int64).reshape(-1, 2).T
    return Rows(out, offsets, None, np.repeat(room, many))


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
    rows = _expand(_decide(counts, capacities, max_docs), _descending(taken, len(counts) - 1))
    return rows if len(capacities) > 1 else replace(rows, capacities=None)


def count_best_fit(
    lengths: ArrayLike, capacity: int | tuple[int, ...], *, max_docs: int | None = None, align: int = 1
) -> int:
    """Count the rows that `best_fit` makes, from the histogram of lengths alone."""
    capacities = _parsed(capacity)
    real = checked(lengths, capacities[-1] // align * align)
    return _decide(np.bincount(padded(real, align)), capacities, max_docs).rows if real.size else 0
