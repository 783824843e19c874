"""The same ids before and after each row of a flat array: beginnings and ends of documents, rows cut to a limit.

Decides how the rows are copied: all at once, to the places that a mask leaves for them; one row by itself, in a fifth
of that. Arrow's join of binary values and slices of each row take as long in use. Knows no tokenizer.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.core.sample import Ragged, offsets_of
from thalweg.encode.backend import Flat


def dress(flat: Flat, before: tuple[int, ...], after: tuple[int, ...], limit: int | None) -> Ragged:
    """Put the same ids before and after each row; rows over the limit are cut and get no end.

    Args:
        flat: int32 ids end to end, int64 (n + 1,) offsets.
        before, after: the ids.
        limit: ids of a row at most, `before` included.
    """
    ids, offsets = flat
    if len(offsets) == 2:
        room = len(ids) + len(after) if limit is None else limit - len(before)
        parts: list[Any] = [before, ids[:room], after if len(ids) + len(after) <= room else ()]
        row = np.concatenate(parts, dtype=np.int32, casting="unsafe")  # () counts as floats
        return Ragged(row, np.array([0, len(row)]))
    keep, tails = np.diff(offsets), np.full(len(offsets) - 1, len(after))
    if limit is not None:
        cut = keep + len(before) + len(after) > limit
        if cut.any():
            ids, keep = _cut(flat, np.where(cut, np.minimum(keep, limit - len(before)), keep))
            tails[cut] = 0
    if not before and not tails.any():
        return Ragged(ids, np.concatenate([[0], np.cumsum(keep)]))
    bounds = offsets_of(keep + len(before) + tails)
    out = np.empty(bounds[-1], np.int32)
    rows = np.ones(len(out), np.bool_)
    closed = bounds[1:][tails > 0] - len(after)
    for starts, side in ((bounds[:-1], before), (closed, after)):
        for i, token in enumerate(side):
            out[starts + i], rows[starts + i] = token, False
    out[rows] = ids
    return Ragged(out, bounds)


def _cut(flat: Flat, keep: NDArray[np.int64]) -> Flat:
    """Give the first `keep` ids of each row, end to end, and their numbers."""
    ids, offsets = flat
    kept = np.ones(len(ids), np.bool_)
    for row in np.flatnonzero(keep < np.diff(offsets)).tolist():
        kept[offsets[row] + keep[row] : offsets[row + 1]] = False
    return ids[kept], keep
