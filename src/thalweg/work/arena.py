"""One anonymous memory file that parent and workers both map, cut into pieces that are lent and come back.

Decides which piece a worker writes to and when it is free again: when the last array that looks into it is gone.
The file has no name and vanishes with its last process, also after a kill. Knows nothing of what the bytes are.
"""

import mmap
import os
import tempfile
import threading
import weakref
from collections import deque
from typing import Any

import numpy as np

PAGE = mmap.ALLOCATIONGRANULARITY


def memory_file() -> int:
    """Open an anonymous file in memory (not in /dev/shm, which containers keep small). Returns a descriptor."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("thalweg", os.MFD_CLOEXEC)
    handle, path = tempfile.mkstemp(prefix="thalweg-")  # other systems: a file without a name
    os.unlink(path)  # noqa: PTH108
    return handle


class Piece:
    """A lent part of the file: `size` bytes from `offset`."""

    __slots__ = ("memory", "offset", "size")

    def __init__(self, fd: int, offset: int, size: int) -> None:
        self.offset, self.size = offset, size
        self.memory = mmap.mmap(fd, size, offset=offset)


class Arena:
    """Pieces of one size, made when asked for, up to a limit; larger ones replace smaller ones as results grow.

    Args:
        limit: bytes of all pieces together.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.fd = memory_file()
        self._close_fd = weakref.finalize(self, os.close, self.fd)
        self.made = 0  # bytes of the file
        self._size = 0
        self._growing = threading.Lock()  # taken by those who borrow only, never by a callback
        self._free: deque[Piece] = deque()  # appended to by weakref callbacks: must stay free of locks
        self._lent: dict[int, tuple[weakref.ref[Any], Piece]] = {}

    def borrow(self, need: int) -> Piece | None:
        """Lend a piece of at least `need` bytes; None when all are out: then bytes go another way."""
        with self._growing:
            if need > self._size:
                self._size = -(-need * 5 // 4 // PAGE) * PAGE
            while self._free:
                piece = self._free.pop()  # the last one back is still in the processor's cache
                if piece.size >= self._size:
                    return piece
                self._forget(piece)
            if self.made + self._size > self.limit:
                return None
            offset, self.made = self.made, self.made + self._size
            os.ftruncate(self.fd, self.made)
            return Piece(self.fd, offset, self._size)

    def give_back(self, piece: Piece) -> None:
        """Return a piece that nothing looks into."""
        self._free.append(piece)

    def lease(self, piece: Piece) -> memoryview:
        """Give the bytes of a piece; it comes back when the last view of them, or array made of one, is gone."""
        base = np.frombuffer(piece.memory, np.uint8)
        key = piece.offset
        lent, free = self._lent, self._free

        def back(_: Any) -> None:
            lent.pop(key, None)
            free.append(piece)

        lent[key] = (weakref.ref(base, back), piece)
        return base.data

    @property
    def leased(self) -> int:
        """Pieces that somebody looks into."""
        return len(self._lent)

    def _forget(self, piece: Piece) -> None:
        """Give the memory of a piece that became too small back to the system; its place in the file stays empty."""
        if hasattr(mmap, "MADV_REMOVE"):
            piece.memory.madvise(mmap.MADV_REMOVE)
        piece.memory.close()

    def close(self) -> None:
        """Close the descriptor; memory stays until the last view of it is gone. Twice is fine."""
        self._close_fd()
