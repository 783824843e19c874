"""Whole lists of documents through the packers that see only a window: the same rows as on a stream.

Knows no overlong rule and no tokens.
"""

from itertools import chain

import numpy as np
from numpy.typing import ArrayLike

from thalweg.core.sample import offsets_of
from thalweg.plan.pack_best import best_fit
from thalweg.plan.pack_rows import Rows, checked
from thalweg.plan.pack_stream import Packer, packer


def fill(lengths: ArrayLike, capacity: int, *, max_docs: int | None = None, align: int = 1) -> Rows:
    """Fill rows exactly, in arrival order: the oldest document, the next ones, then the set that fits.

    Looks at 64 documents and two rows of tokens ahead, so a document stands near where it came, and rows are alike.

    Args:
        lengths: int (n,), true token counts, 1 to capacity.
        capacity: tokens of a row.
        max_docs: documents of a row at most; rows are then filled by the longest that fit, not exactly.
        align: each document takes up a multiple of this many tokens.

    Raises:
        InputError: a length below 1 or above the capacity.
    """
    return _through(packer("fill", capacity, align=align, max_docs=max_docs), lengths, capacity // align * align)


def window(lengths: ArrayLike, capacity: int, size: int, *, max_docs: int | None = None, align: int = 1) -> Rows:
    """Pack from a sliding window of `size` documents sorted by length: the oldest, then the longest that fits.

    Args:
        lengths: int (n,), true token counts, 1 to capacity.
        capacity: tokens of a row.
        size: documents of the window, any number of at least 1.
        max_docs: documents of a row at most.
        align: each document takes up a multiple of this many tokens.

    Raises:
        InputError: a length below 1 or above the capacity.
    """
    made = packer(f"window_{size}", capacity, align=align, max_docs=max_docs)
    return _through(made, lengths, capacity // align * align)


def _through(made: Packer, lengths: ArrayLike, capacity: int) -> Rows:
    sizes = checked(lengths, capacity).tolist()
    rows = made.extend(sizes, range(len(sizes)))
    rows += made.flush()
    order = np.fromiter(chain.from_iterable(row.keys for row in rows), np.int64, len(sizes))
    offsets = offsets_of(np.fromiter((len(row.keys) for row in rows), np.int64, len(rows)))
    return Rows(order, offsets)


def better(lengths: ArrayLike, capacity: int, *, max_docs: int | None = None, align: int = 1) -> tuple[Rows, str]:
    """Pack by `fill` and by `best_fit`; give the fewer rows and the name of the policy.

    Equal numbers go to `fill`, whose rows keep the order of arrival and cost about the same to compute.

    Args:
        lengths: int (n,), true token counts, 1 to capacity.
        capacity: tokens of a row.
        max_docs: documents of a row at most.
        align: each document takes up a multiple of this many tokens.
    """
    arrival = fill(lengths, capacity, max_docs=max_docs, align=align)
    sorted_rows = best_fit(lengths, capacity, max_docs=max_docs, align=align)
    return (arrival, "fill") if len(arrival) <= len(sorted_rows) else (sorted_rows, "best_fit")
