"""Many byte ranges of mapped memory, laid end to end: the inner loop of every vectorised read.

Two ways, chosen by the number of ranges: joining memoryviews (few), and one cast of Arrow string views (many: one C++
loop of memcpy). Decides which. Knows no rows and no files.
"""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from thalweg.store.records.region import Region, Stretch

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
        (sizes.sum(),) of `width`, memory of its own.
    """
    if len(starts) < CAST_FROM:
        data = region.buffer(width)
        ends = (starts + sizes).tolist()
        return np.frombuffer(bytearray().join([data[a:b] for a, b in zip(starts.tolist(), ends, strict=True)]), width)
    size = np.dtype(width).itemsize
    if size > 1:
        starts, sizes = starts * size, sizes * np.int64(size)
    return _joined(region.bytes, region.address, starts, sizes).view(width)


def gather_at(addresses: NDArray[np.int64], width: Any, sizes: NDArray[Any]) -> NDArray[Any]:
    """Copy ranges of any memory end to end: of 20 sets it costs what it does of one.

    Args:
        addresses: int64 (k,), first byte of each range; the caller keeps what owns it.
        width: element type.
        sizes: (k,), elements of each range.

    Returns:
        (sizes.sum(),) of `width`.
    """
    if not len(addresses):
        return np.empty(0, width)
    sizes = sizes * np.int64(np.dtype(width).itemsize)
    low = int(addresses.min())
    # all memory in between, as if it were one region: only the ranges are read
    memory = np.asarray(Stretch(low, int((addresses + sizes).max()) - low))
    return _joined(memory, low, addresses - low, sizes).view(width)


def _joined(
    memory: NDArray[np.uint8], address: int, starts: NDArray[np.int64], sizes: NDArray[np.int64]
) -> NDArray[np.uint8]:
    """Copy byte ranges of any size and number end to end."""
    if len(starts) >= CAST_FROM and int(sizes.max()) < _STEP:
        return _cast(memory, address, starts, sizes)
    data, ends = memory.data, (starts + sizes).tolist()
    return np.frombuffer(bytearray().join([data[a:b] for a, b in zip(starts.tolist(), ends, strict=True)]), np.uint8)


def _cast(
    memory: NDArray[np.uint8], address: int, starts: NDArray[np.int64], sizes: NDArray[np.int64]
) -> NDArray[np.uint8]:
    n = len(starts)
    windows = starts >> 30
    used = np.unique(windows) if len(memory) > _STEP else np.zeros(1, np.int64)
    views = np.zeros(n, _VIEW)
    views["size"] = sizes
    if len(used) > 1 or used[0]:
        views["buffer"] = np.searchsorted(used, windows)
        views["offset"] = starts - (windows << 30)
    else:
        views["offset"] = starts
    small = np.flatnonzero(sizes <= 12)
    if len(small):
        _inline(memory, views, small, starts, sizes)
    buffers: list[Any] = [None, pa.py_buffer(views)]
    for w in used.tolist():
        length = min(_REACH, len(memory) - w * _STEP)
        buffers.append(pa.foreign_buffer(address + w * _STEP, length, base=memory))
    joined = pa.Array.from_buffers(pa.binary_view(), n, buffers).cast(pa.large_binary())
    total = int(sizes.sum())
    if not total:
        return np.empty(0, np.uint8)
    filled = joined.buffers()[2]  # numpy would take it for shared, and read-only
    return np.asarray(Stretch(filled.address, total, owner=filled))


def _inline(
    memory: NDArray[np.uint8],
    views: NDArray[Any],
    small: NDArray[np.int64],
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
) -> None:
    """Write ranges of at most 12 bytes into the views themselves, as the format wants it."""
    held = np.zeros((len(small), 12), np.uint8)
    for j in range(12):
        rows = np.flatnonzero(sizes[small] > j)
        held[rows, j] = memory[starts[small[rows]] + j]
    raw = views.view(np.uint8).reshape(-1, 16)
    raw[small, 4:] = held
