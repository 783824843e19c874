"""Many byte ranges of mapped memory, laid end to end: the inner loop of every vectorised read.

Two ways, chosen by the number of ranges: joining memoryviews (few), and one cast of Arrow string views (many: one C++
loop of memcpy). Decides which. Knows no rows and no files.
"""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from thalweg.store.records.region import Region

CAST_FROM = 192  # measured: below it, joining memoryviews is faster
_STEP, _REACH = 1 << 30, (1 << 31) - 1  # a view's offset is int32, so windows begin every GiB and reach 2 GiB
_VIEW = np.dtype([("size", "<i4"), ("prefix", "<i4"), ("buffer", "<i4"), ("offset", "<i4")])


def gather(region: Region, width: str, starts: NDArray[np.int64], sizes: NDArray[Any]) -> NDArray[Any]:
    """Copy ranges end to end.

    Args:
        region: mapped memory.
        width: element type.
        starts: int64 (k,), first element of each range in the region.
        sizes: (k,), elements of each range.

    Returns:
        (sizes.sum(),) of `width`.
    """
    if len(starts) < CAST_FROM:
        data = region.buffer(width)
        ends = (starts + sizes).tolist()
        return np.frombuffer(bytearray().join([data[a:b] for a, b in zip(starts.tolist(), ends, strict=True)]), width)
    size = np.dtype(width).itemsize
    if size > 1:
        starts, sizes = starts * size, sizes * np.int64(size)
    if int(sizes.max()) >= _STEP:
        return gather_few(region, starts, sizes).view(width)
    return _cast(region, starts, sizes).view(width)


def gather_few(region: Region, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Copy byte ranges of any size end to end."""
    data, ends = region.buffer("uint8"), (starts + sizes).tolist()
    return np.frombuffer(bytearray().join([data[a:b] for a, b in zip(starts.tolist(), ends, strict=True)]), np.uint8)


def _cast(region: Region, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.uint8]:
    n = len(starts)
    windows = starts >> 30
    used = np.unique(windows) if region.size > _STEP else np.zeros(1, np.int64)
    views = np.zeros(n, _VIEW)
    views["size"] = sizes
    if len(used) > 1 or used[0]:
        views["buffer"] = np.searchsorted(used, windows)
        views["offset"] = starts - (windows << 30)
    else:
        views["offset"] = starts
    small = np.flatnonzero(sizes <= 12)
    if len(small):
        _inline(region, views, small, starts, sizes)
    buffers: list[Any] = [None, pa.py_buffer(views)]
    for w in used.tolist():
        length = min(_REACH, region.size - w * _STEP)
        buffers.append(pa.foreign_buffer(region.address + w * _STEP, length, base=region.bytes))
    joined = pa.Array.from_buffers(pa.binary_view(), n, buffers).cast(pa.large_binary())
    total = int(sizes.sum())
    return np.frombuffer(joined.buffers()[2], np.uint8, total) if total else np.empty(0, np.uint8)


def _inline(
    region: Region,
    views: NDArray[Any],
    small: NDArray[np.int64],
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
) -> None:
    """Write ranges of at most 12 bytes into the views themselves, as the format wants it."""
    held = np.zeros((len(small), 12), np.uint8)
    for j in range(12):
        rows = np.flatnonzero(sizes[small] > j)
        held[rows, j] = region.bytes[starts[small[rows]] + j]
    raw = views.view(np.uint8).reshape(-1, 16)
    raw[small, 4:] = held
