"""Packers that take documents in the order they come: next fit and first fit.

Next fit closes a row as soon as a document does not fit. First fit keeps every row open and truly gives each
document to the first one with room, found in a tree of the largest room below each node. Knows no tokens.
"""

from bisect import bisect_right

import numpy as np
from numpy.typing import ArrayLike

from thalweg.plan.pack_rows import Ints, Rows, checked, padded


def next_fit(lengths: ArrayLike, capacity: int, *, max_docs: int | None = None, align: int = 1) -> Rows:
    """Pack in arrival order: a document that does not fit closes the row and begins the next.

    Args:
        lengths: int (n,), true token counts, 1 to capacity.
        capacity: tokens of a row.
        max_docs: documents of a row at most.
        align: each document takes up a multiple of this many tokens.

    Raises:
        InputError: a length below 1 or above the capacity.
    """
    taken = padded(checked(lengths, capacity // align * align), align)
    ends = np.cumsum(taken, dtype=np.int64).tolist()
    offsets, start, before, n = [0], 0, 0, len(ends)
    while start < n:
        stop = bisect_right(ends, before + capacity, start)
        start = stop if max_docs is None else min(stop, start + max_docs)
        before = ends[start - 1]
        offsets.append(start)
    return Rows(np.arange(n), np.array(offsets, np.int64))


def first_fit(lengths: ArrayLike, capacity: int, *, max_docs: int | None = None, align: int = 1) -> Rows:
    """Pack in arrival order: each document goes to the first row that has room for it; rows never close.

    Args:
        lengths: int (n,), true token counts, 1 to capacity.
        capacity: tokens of a row.
        max_docs: documents of a row at most.
        align: each document takes up a multiple of this many tokens.

    Raises:
        InputError: a length below 1 or above the capacity.
    """
    taken = padded(checked(lengths, capacity // align * align), align)
    row = _first_rows(taken.tolist(), capacity, max_docs or len(taken))
    order = np.argsort(row, kind="stable")
    offsets = np.zeros(int(row.max(initial=-1)) + 2, np.int64)
    np.cumsum(np.bincount(row), out=offsets[1:])
    return Rows(order, offsets)


def _first_rows(lengths: list[int], capacity: int, max_docs: int) -> Ints:
    """Give the row of each document. Leaf i of the tree is row i, a node is the largest room below it."""
    leaves = 1024
    tree = [capacity] * (2 * leaves)
    held = [0] * leaves
    out = np.empty(len(lengths), np.int64)
    for i, length in enumerate(lengths):
        if tree[1] < length:  # all rows of the tree are too full: twice as many, the old ones on the left
            tree, leaves = _grown(tree, leaves, capacity), 2 * leaves
            held += [0] * len(held)
        node = 1
        while node < leaves:
            node *= 2
            if tree[node] < length:
                node += 1
        row = node - leaves
        out[i] = row
        held[row] += 1
        tree[node] = tree[node] - length if held[row] < max_docs else 0
        while node > 1:
            node //= 2
            left, right = tree[2 * node], tree[2 * node + 1]
            top = left if left > right else right  # noqa: FURB136  (max() costs a call in the innermost loop)
            if tree[node] == top:
                break
            tree[node] = top
    return out


def _grown(tree: list[int], leaves: int, capacity: int) -> list[int]:
    out = [capacity] * (4 * leaves)
    width = 1
    while width <= leaves:
        out[2 * width : 3 * width] = tree[width : 2 * width]
        width *= 2
    return out
