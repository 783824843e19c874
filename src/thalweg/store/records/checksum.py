"""The checksum of a block: one pass over its bytes, which finds the hashes of the fingerprint too.

The elements of arrays of rank 1 that lie in the file as they are in memory are hashed in pieces, which end where the
chunks of the fingerprint end; in their place the hashes of the pieces enter the checksum, 8 bytes each. All other bytes
enter as they are. Hashing waits for memory and writing for the kernel, so the one goes on beside the other.
Decides this for the side that writes and the side that compares. Knows no set.
"""

import os
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64

from thalweg.store.fs import allocate
from thalweg.store.records.hashing import of_spans
from thalweg.store.records.kinds import parse
from thalweg.store.records.manifest import HEAD, Layout, Stored
from thalweg.work.beside import Beside, has_second_cpu

_ROOM, _FROM = 32 << 20, 8 << 20  # bytes allocated ahead, once a file has so many: 13% less time in the kernel
_BESIDE = 1 << 20  # bytes from which on a thread of its own writes them: 0.3 ms, it takes 0.1
# Writes end at multiples of so many bytes, as the kernel's large pages do: a tenth less time than anywhere else. Longer
# ones would take pages of 2 MB, for which a virtual machine that lends free memory to its host waits: 3 times as long.
_STEP = 1 << 20
OFFSETS, VALUES = 1, 2


def in_pieces(column: Stored) -> bool:
    """Whether the elements of a column are hashed in pieces."""
    kind = parse(column.kind)
    return kind.is_array and len(kind.dims) == 1 and np.dtype(column.width).itemsize == kind.dtype.itemsize


class HashedSink:
    """A file for Arrow to write into, which finds the hash of what goes in.

    What it is given stays where it is until `cut`: a thread writes it while this one hashes it, and whatever else
    there is to do in between.
    """

    closed = False

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        self._hash = xxh3_64()
        self._expected: deque[int] = deque()
        self._held: list[tuple[memoryview, bool]] = []  # bytes, and whether they are hashed in pieces
        self._writing: Beside | None = None
        self._beside = has_second_cpu()
        self.size = self._put_size = self._room = 0

    def expect(self, address: int) -> None:
        """Announce a buffer that is hashed in pieces, in the order of writing."""
        self._expected.append(address)

    def write(self, data: Any) -> int:
        """Take all of a buffer, which does not change before `cut`."""
        size = len(data)
        if size:
            announced = bool(self._expected) and getattr(data, "address", None) == self._expected[0]
            if announced:
                self._expected.popleft()
            self._held.append((memoryview(data).cast("B"), announced))
        self.size += size
        return size

    def begin(self) -> None:
        """Begin to write what was taken; `cut` raises what comes of it."""
        little = self.size - self._put_size < _BESIDE
        self._writing = Beside(self._put, name="thalweg-write")
        self._writing.start(here=little or not self._beside)

    def _put(self) -> None:
        at, self._put_size = self._put_size, self.size
        if self.size > max(self._room, _FROM):
            # Where the system cannot, or has no room left, writing will tell.
            self._room = max(self.size, at + _ROOM)
            if not allocate(self._fd, at, self._room - at):
                self._room = sys.maxsize
        for view, _ in self._held:
            end = at + len(view)
            while at < end:
                at += os.write(self._fd, view[at - end :][: _STEP - at % _STEP])

    def cut(self, bounds: Sequence[NDArray[np.int64]] = ()) -> tuple[int, list[NDArray[np.uint64]]]:
        """End writing what was taken since the last cut.

        Args:
            bounds: of each announced buffer, where its pieces begin and end, in bytes.

        Returns:
            The hash of what was written, and those of the pieces of each announced buffer.
        """
        if self._writing is None:
            self.begin()
        assert self._writing is not None
        found: list[NDArray[np.uint64]] = []
        for view, announced in self._held:
            if announced:
                found.append(of_spans(view, bounds[len(found)]))
                self._hash.update(found[-1].tobytes())
            else:
                self._hash.update(view)
        self._writing.end()
        self._writing = None
        self._held.clear()
        digest = self._hash.intdigest()
        self._hash.reset()
        return digest, found

    def tell(self) -> int:
        """Bytes taken so far."""
        return self.size

    def flush(self) -> None:
        """Do nothing: `cut` does."""

    def close(self) -> None:
        """Close the file. Twice is fine."""
        if not self.closed:
            if self._writing is not None:
                self._writing.wait()  # nothing is written to the number of a file that is closed
            self.closed = True
            if self._room and self._writing is None:
                os.ftruncate(self._fd, self.size)
            os.close(self._fd)


def block_checksum(data: Any, n: int, entry: Sequence[int], layout: Layout, ends: NDArray[np.uint16]) -> int | None:
    """Give the checksum of the bytes of a block.

    Args:
        data: the block's bytes.
        n: number of its rows.
        entry: its entry in the index.
        layout: of its shard.
        ends: rows after which a piece ends.

    Returns:
        None where the offsets of an array are impossible: then the bytes are damaged.
    """
    view, first = memoryview(data).cast("B"), entry[1]
    state, done = xxh3_64(), 0
    for number, column in enumerate(layout.all_columns):
        if not in_pieces(column):
            continue
        offsets, values = (p - first for p in entry[HEAD + 4 * number :][OFFSETS : VALUES + 1])
        if not 0 <= offsets <= len(view) - 8 * (n + 1):
            return None
        at = np.frombuffer(view, np.int64, n + 1, offsets)
        size = np.dtype(column.width).itemsize
        bounds = np.concatenate([[0], at[ends], at[n:]]) * size
        if not bounds[-1]:
            continue
        if values < done or values + bounds[-1] > len(view) or (np.diff(bounds) < 0).any():
            return None
        state.update(view[done:values])
        state.update(of_spans(view, values + bounds).tobytes())
        done = values + int(bounds[-1])
    state.update(view[done:])
    return state.intdigest()
