"""Many byte ranges of mapped memory, laid end to end: the inner loop of every vectorised read.

Two ways, chosen by the number of ranges: joining memoryviews (few), and one cast of Arrow string views (many: one C++
loop of memcpy). Decides which. Knows no rows and no files.
"""

from collections.abc import Callable, Sequence
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
    return _Ranges([(region.bytes, region.address, starts, sizes)]).copy().view(width)


def gather_at(addresses: NDArray[np.int64], width: Any, sizes: NDArray[Any]) -> NDArray[Any]:
    """Copy ranges of any memory end to end: of 20 sets it costs what it does of one.

    Args:
        addresses: int64 (k,), first byte of each range; the caller keeps what owns it.
        width: element type.
        sizes: (k,), elements of each range.

    Returns:
        (sizes.sum(),) of `width`.
    """
    return ready((addresses, sizes * np.int64(np.dtype(width).itemsize)))().view(width)


def ready(*parts: tuple[NDArray[np.int64], NDArray[Any]]) -> Callable[[], NDArray[np.uint8]]:
    """Make ranges ready to be copied end to end by another thread: its call hardly needs the interpreter's lock.

    Args:
        parts: (address of the first byte, bytes) of each range, (k,) both; the caller keeps what owns them. Parts may
            lie far from each other.
    """
    return _Ranges([_near(*part) for part in parts if len(part[0])]).copy


_Part = tuple[NDArray[np.uint8], int, NDArray[np.int64], NDArray[Any]]  # memory, its address, starts, bytes


def _near(addresses: NDArray[np.int64], sizes: NDArray[Any]) -> _Part:
    """See all memory in between as one stretch: only the ranges are read."""
    low = int(addresses.min())
    memory = np.asarray(Stretch(low, int((addresses + sizes).max()) - low))
    return memory, low, addresses - low, sizes


class _Ranges:
    """Byte ranges of any size and number."""

    def __init__(self, parts: Sequence[_Part]) -> None:
        self._parts, self._views = parts, None
        if sum(len(starts) for _, _, starts, _ in parts) >= CAST_FROM and all(int(p[3].max()) < _STEP for p in parts):
            self._views, self._total = _views(parts), sum(int(sizes.sum()) for _, _, _, sizes in parts)

    def copy(self) -> NDArray[np.uint8]:
        """Lay them end to end."""
        if self._views is None:
            ranges: list[memoryview] = []
            for memory, _, starts, sizes in self._parts:
                data, ends = memory.data, (starts + sizes).tolist()
                ranges += [data[a:b] for a, b in zip(starts.tolist(), ends, strict=True)]
            return np.frombuffer(bytearray().join(ranges), np.uint8)
        if not self._total:
            return np.empty(0, np.uint8)
        filled = self._views.cast(pa.large_binary()).buffers()[2]  # numpy would take it for shared, and read-only
        return np.asarray(Stretch(filled.address, self._total, owner=filled))


def _views(parts: Sequence[_Part]) -> Any:
    """Give ranges as an array of Arrow's string views."""
    views = np.zeros(sum(len(starts) for _, _, starts, _ in parts), _VIEW)
    buffers: list[Any] = [None, pa.py_buffer(views)]
    at = 0
    for memory, address, starts, sizes in parts:
        mine = views[at : at + len(starts)]
        at += len(starts)
        mine["size"] = sizes
        windows = starts >> 30
        used = np.unique(windows) if len(memory) > _STEP else np.zeros(1, np.int64)
        first = len(buffers) - 2
        if len(used) > 1 or used[0]:
            mine["buffer"] = first + np.searchsorted(used, windows)
            mine["offset"] = starts - (windows << 30)
        else:
            mine["buffer"], mine["offset"] = first, starts
        small = np.flatnonzero(sizes <= 12)
        if len(small):
            _inline(memory, mine, small, starts, sizes)
        for w in used.tolist():
            length = min(_REACH, len(memory) - w * _STEP)
            buffers.append(pa.foreign_buffer(address + w * _STEP, length, base=memory))
    return pa.Array.from_buffers(pa.binary_view(), len(views), buffers)


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
