"""All shards of a set as one stretch of memory: each mapped at its own place when it is first touched.

One reservation of addresses holds every shard, so that a row is one number, a read over many shards needs no loop over
them, and no file descriptor stays open (10,000 shards under any limit). Decides where a shard lies in it. Knows no
rows.
"""

import ctypes
import mmap
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.core.errors import IntegrityError

_FIXED = 0x10  # MAP_FIXED, the same on Linux and macOS
_NORESERVE = 0x4000 if os.uname().sysname == "Linux" else 0x40
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_POPULATE_READ = 22 if os.uname().sysname == "Linux" else None  # refused before Linux 5.14


def place_shards(sizes: Sequence[int]) -> NDArray[np.int64]:
    """Give each shard a place: int64 (n + 1,), whole pages; the last number is the size of the whole."""
    page = mmap.PAGESIZE
    rounded = (np.asarray(sizes, np.int64) + page - 1) // page * page
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(rounded)])


class Region:
    """The reservation. Arrays taken from it keep it alive.

    Args:
        places: as `place_shards` gives them.

    Raises:
        OSError: the system gives no addresses (a limit on virtual memory).
    """

    def __init__(self, places: NDArray[np.int64]) -> None:
        self.places = places
        self.size = max(int(places[-1]), mmap.PAGESIZE)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANON | _NORESERVE
        address = _libc.mmap(None, self.size, 0, flags, -1, 0)
        if address in (None, _FAILED):
            raise OSError(ctypes.get_errno(), f"no room for {self.size} bytes of addresses")
        self.address = int(address)
        holder = Stretch(self.address, self.size)
        # At exit the system unmaps; doing it earlier would pull memory from under arrays that still live.
        weakref.finalize(holder, _libc.munmap, self.address, self.size).atexit = False
        self.bytes: NDArray[np.uint8] = np.asarray(holder)
        self.mapped = np.zeros(len(places) - 1, bool)  # whole shards
        self._views: dict[str, NDArray[Any]] = {}
        self._buffers: dict[str, memoryview] = {}

    def buffer(self, dtype: str) -> memoryview:
        """The whole as a memoryview of elements of one type: its slices and numbers are cheaper than numpy's."""
        buffer = self._buffers.get(dtype)
        if buffer is None:
            buffer = self._buffers[dtype] = self.view(dtype).data
        return buffer

    def view(self, dtype: str) -> NDArray[Any]:
        """The whole as elements of one type. Only places of mapped shards may be read."""
        view = self._views.get(dtype)
        if view is None:
            width = np.dtype(dtype).itemsize
            view = self._views[dtype] = self.bytes[: self.size // width * width].view(dtype)
        return view

    def fetch(self, start: int, end: int) -> None:
        """Have the system bring a range of mapped bytes here, in one call without the interpreter's lock.

        It may do nothing: whoever reads the bytes brings what is not here, 64 kB at a time.
        """
        if _POPULATE_READ is not None:
            start -= start % mmap.PAGESIZE
            _libc.madvise(self.address + start, end - start, _POPULATE_READ)

    def map(self, number: int, path: Path, size: int) -> int:
        """Put a shard at its place and give its inode.

        Raises:
            IntegrityError: it is not there, or has another size.
        """
        try:
            inode = self.put(int(self.places[number]), path, size)
        except FileNotFoundError as error:
            raise missing(path) from error
        self.mapped[number] = True
        return inode

    def put(self, at: int, path: Path, size: int) -> int:
        """Map a file of a known size at a place, a multiple of the page size, and give its inode.

        Raises:
            FileNotFoundError: it is not there.
            IntegrityError: it has another size.
        """
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            info = os.fstat(fd)
            if info.st_size != size:
                raise wrong_size(path, info.st_size, size)
            got = _libc.mmap(self.address + at, size, mmap.PROT_READ, mmap.MAP_SHARED | _FIXED, fd, 0)
            if got in (None, _FAILED):
                raise OSError(ctypes.get_errno(), f"cannot map {path}")
            return info.st_ino
        finally:
            os.close(fd)


class Stretch:
    """Memory from an address on, as numpy takes it (`np.asarray`), which keeps it as the base of every array.

    Args:
        address: of the first byte.
        size: bytes.
        owner: of memory that nobody else sees, kept as long as an array lives: arrays are writable then.
    """

    def __init__(self, address: int, size: int, owner: Any = None) -> None:
        self._owner = owner
        data = (address, owner is None)
        self.__array_interface__ = {"data": data, "shape": (size,), "typestr": "|u1", "version": 3}


def wrong_size(path: Path | str, found: int, size: int) -> IntegrityError:
    """Say that a file was cut, or is another."""
    return IntegrityError(
        f"a shard has {found} bytes, {size} were written",
        where=f"{path}, offset {min(found, size)}",
        fix="restore the file, or write the set again",
    )


def missing(path: Path | str) -> IntegrityError:
    """Say that a file is gone."""
    return IntegrityError("a shard is missing", where=str(path), fix="restore the file, or write the set again")


class FileReads:
    """The same places, read by ranges instead of mapped: for network and FUSE file systems, and for cut files.

    Args:
        places: as `place_shards` gives them.
        path_of: the file of a shard.
        sizes: bytes of each shard.
    """

    GAP = 4096  # ranges closer than this are read in one call

    def __init__(self, places: NDArray[np.int64], path_of: Callable[[int], Path], sizes: Sequence[int]) -> None:
        self.places, self._path_of, self._sizes = places, path_of, sizes

    def ranges(self, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> bytearray:
        """Read byte ranges, each inside one shard, and lay them end to end in the order asked.

        Raises:
            IntegrityError: a file is shorter than it was when it was written.
        """
        sizes = ends - starts
        out = bytearray(int(sizes.sum()))
        view = memoryview(out)
        targets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        groups = self._groups(starts, ends)
        wanted = [(shard, begin - int(self.places[shard]), end - begin) for shard, begin, end, _ in groups]
        for (_, begin, _, group), data in zip(groups, self.several(wanted), strict=True):
            for i in group:
                a, b = int(starts[i]) - begin, int(ends[i]) - begin
                view[int(targets[i]) : int(targets[i + 1])] = data[a:b]
        return out

    def _groups(self, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> list[tuple[int, int, int, list[int]]]:
        """Put ranges together that lie side by side: shard, first byte, end, and the ranges in it."""
        order = np.argsort(starts, kind="stable").tolist()
        shards = (np.searchsorted(self.places, starts, "right") - 1).tolist()
        first, last = starts.tolist(), ends.tolist()
        out: list[tuple[int, int, int, list[int]]] = []
        for i in order:
            if out and out[-1][0] == shards[i] and first[i] <= out[-1][2] + self.GAP:
                shard, begin, end, group = out[-1]
                group.append(i)
                out[-1] = (shard, begin, max(end, last[i]), group)
            else:
                out.append((shards[i], first[i], last[i], [i]))
        return out

    def several(self, wanted: Sequence[tuple[int, int, int]]) -> Iterator[bytes]:
        """Read ranges, each (shard, offset, size), in the order asked."""
        return (self.read(*one) for one in wanted)

    def read(self, shard: int, offset: int, size: int) -> bytes:
        """Read one range of one shard."""
        path = self._path_of(shard)
        try:
            return read_range(path, offset, size, self._sizes[shard])
        except FileNotFoundError as error:
            raise missing(path) from error


def read_range(path: Path, offset: int, size: int, whole: int) -> bytes:
    """Read a range of a file that must have `whole` bytes.

    Raises:
        FileNotFoundError: it is not there.
        IntegrityError: it has another size.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = os.fstat(fd).st_size
        if found != whole:
            raise wrong_size(path, found, whole)
        pieces: list[bytes] = []
        while size > 0:
            piece = os.pread(fd, size, offset)
            if not piece:
                raise wrong_size(path, offset, whole)
            pieces.append(piece)
            size, offset = size - len(piece), offset + len(piece)
        return b"".join(pieces)
    finally:
        os.close(fd)
