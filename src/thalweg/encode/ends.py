"""The same ids before and after each row of a flat array: beginnings and ends of documents, rows cut to a limit.

Decides how the rows are copied: by one join of bytes, or from some rows on by one cast of Arrow string views (one C++
loop of memcpy, a third of the time). A mask over all tokens costs five times as much as the join. Knows no tokenizer.
"""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from thalweg.core.sample import Ragged
from thalweg.encode.backend import Flat

CAST_FROM = 64  # rows; below it the join is as fast
_INLINE = 3  # tokens that a view holds itself, as the format wants it
_REACH = (1 << 31) - 1  # bytes that a view can point into


def dress(flat: Flat, before: tuple[int, ...], after: tuple[int, ...], limit: int | None) -> Ragged:
    """Put the same ids before and after each row; rows over the limit are cut and get no end.

    Args:
        flat: int32 ids end to end, int64 (n + 1,) offsets.
        before, after: the ids.
        limit: ids of a row at most, `before` included.
    """
    ids, offsets = flat
    if not before and not after and limit is None:
        return Ragged(ids, offsets)
    keep = np.diff(offsets)
    ends = np.full(len(keep), len(after), np.int64)
    if limit is not None:
        whole = keep + len(before) + len(after) <= limit
        ends[~whole] = 0
        keep = np.where(whole, keep, np.minimum(keep, limit - len(before)))
    bounds = np.zeros(len(keep) + 1, np.int64)
    np.cumsum(keep + len(before) + ends, out=bounds[1:])
    short = max(len(before), len(after)) <= _INLINE
    cast = len(keep) >= CAST_FROM and short and ids.nbytes <= _REACH and bounds[-1]
    copied = _cast if cast else _joined
    return Ragged(copied(np.ascontiguousarray(ids), offsets[:-1], keep, before, after, ends), bounds)


def _joined(  # noqa: PLR0917 - the same arguments as `_cast`
    ids: NDArray[np.int32],
    starts: NDArray[np.int64],
    keep: NDArray[np.int64],
    before: tuple[int, ...],
    after: tuple[int, ...],
    ends: NDArray[np.int64],
) -> NDArray[np.int32]:
    head, tail = (np.array(side, np.int32).tobytes() for side in (before, after))
    view = ids.data.cast("B")
    first, last, closes = (4 * starts).tolist(), (4 * (starts + keep)).tolist(), ends.tolist()
    parts = [p for a, b, e in zip(first, last, closes, strict=True) for p in (head, view[a:b], tail if e else b"")]
    return np.frombuffer(bytearray().join(parts), np.int32)


def _cast(  # noqa: PLR0917 - the same arguments as `_joined`
    ids: NDArray[np.int32],
    starts: NDArray[np.int64],
    keep: NDArray[np.int64],
    before: tuple[int, ...],
    after: tuple[int, ...],
    ends: NDArray[np.int64],
) -> NDArray[np.int32]:
    """Lay (before, row, after) of each row end to end; a view is (bytes, then three ids, or a prefix and a place)."""
    views = np.zeros((len(keep), 3, 4), np.int32)
    for k, side in ((0, before), (2, after)):
        views[:, k, 0] = 4 * len(side)
        views[:, k, 1 : 1 + len(side)] = side
    views[:, 2, 0] = 4 * ends
    views[:, 1, 0], views[:, 1, 3] = 4 * keep, 4 * starts
    small = np.flatnonzero(keep <= _INLINE)
    for j in range(_INLINE if len(small) else 0):
        views[small, 1, 1 + j] = 0
        rows = small[keep[small] > j]
        views[rows, 1, 1 + j] = ids[starts[rows] + j]
    buffers: list[Any] = [None, pa.py_buffer(views), pa.py_buffer(ids)]
    made = pa.Array.from_buffers(pa.binary_view(), 3 * len(keep), buffers).cast(pa.large_binary())
    out: NDArray[np.int32] = np.frombuffer(made.buffers()[2], np.int32)[: int((keep + len(before) + ends).sum())]
    return out
