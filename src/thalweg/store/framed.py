"""Compressed files read by number without unpacking them: through the members that they are made of.

Parallel compressors (bgzip, pzstd, `zstd` with a seek table) write many small members, each of which can be read alone.
Decides which files allow it, and keeps the members read last. Knows no lines.
"""

import os
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from thalweg.core.errors import InputError
from thalweg.store.codec import unpack

LARGEST = 4 << 20  # bytes of a member: a row costs up to so many
_KEPT = 16 << 20  # bytes of members kept


class Reads(Protocol):
    """Gives bytes of a file."""

    def read(self, path: str, start: int, end: int) -> bytes:
        """Read bytes [start, end)."""
        ...


def table_of(members: Sequence[tuple[int, int]], packed: int, given: int) -> NDArray[np.int64] | None:
    """Give where each member begins and where the last one ends, int64 (members + 1, 2); None where it is no use.

    Args:
        members: as `codec.chunks` notes them.
        packed: bytes of the file.
        given: bytes that came out.
    """
    table = np.array([*members, (packed, given)], np.int64)
    useful = len(members) > 1 and int(np.diff(table[:, 1]).max()) <= LARGEST
    return table if useful else None


class Framed:
    """What comes out of a compressed file, read by ranges. Safe to share between threads.

    Args:
        path: the file.
        codec: of it.
        table: as `table_of` gives it.
    """

    def __init__(self, path: str, codec: str, table: NDArray[np.int64]) -> None:
        self._path, self._codec, self._table = path, codec, table
        self._starts = table[:, 1].tolist()
        self._kept, self._size = OrderedDict[int, bytes](), 0
        self._lock, self._pid = threading.Lock(), os.getpid()

    def read(self, files: Reads, start: int, end: int) -> bytes:
        """Read bytes [start, end) of what comes out.

        Raises:
            InputError: a member is damaged; file and offset are named.
        """
        out: list[bytes] = []
        k = bisect_right(self._starts, start) - 1
        while start < end:
            first, last = self._starts[k], self._starts[k + 1]
            if last > start:
                data = self._member(files, k)
                out.append(data[start - first : end - first])
                start = min(end, last)
            k += 1
        return b"".join(out)

    def _member(self, files: Reads, k: int) -> bytes:
        if self._pid != os.getpid():  # a lock held at a fork stays locked
            self._lock, self._pid = threading.Lock(), os.getpid()
        with self._lock:
            data = self._kept.get(k)
            if data is not None:
                self._kept.move_to_end(k)
                return data
        a, b = self._table[k : k + 2, 0].tolist()
        where = f"{self._path}, offset {a}"
        data = unpack(files.read(self._path, a, b), self._codec, where)
        if len(data) != self._starts[k + 1] - self._starts[k]:
            raise InputError("compressed data is not what it was", where=where, fix="open the file again")
        with self._lock:
            if k not in self._kept:
                self._kept[k] = data
                self._size += len(data)
            while self._size > _KEPT and len(self._kept) > 1:
                self._size -= len(self._kept.popitem(last=False)[1])
        return data
