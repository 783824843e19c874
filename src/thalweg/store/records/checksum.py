"""The checksum of a block: one pass over its bytes, which finds the hashes of the fingerprint too.

The elements of arrays of rank 1 that lie in the file as they are in memory are hashed in pieces, which end where the
chunks of the fingerprint end; in their place the hashes of the pieces enter the checksum, 8 bytes each. All other bytes
enter as they are. Pieces are hashed right before they are written, while they are in the processor's cache.
Decides this for the side that writes and the side that compares. Knows no set.
"""

import os
import sys
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64, xxh3_64_intdigest

from thalweg.store.fs import allocate
from thalweg.store.records.hashing import of_spans
from thalweg.store.records.kinds import parse
from thalweg.store.records.manifest import HEAD, Layout, Stored

_STEP = 512 << 10  # bytes hashed and then written while they are in the cache
_ROOM, _FROM = 32 << 20, 8 << 20  # bytes allocated ahead, once a file has so many: 13% less time in the kernel
OFFSETS, VALUES = 1, 2


def in_pieces(column: Stored) -> bool:
    """Whether the elements of a column are hashed in pieces."""
    kind = parse(column.kind)
    return kind.is_array and len(kind.dims) == 1 and np.dtype(column.width).itemsize == kind.dtype.itemsize


class HashedSink:
    """A file for Arrow to write into, which hashes the bytes on their way."""

    closed = False

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        self._hash = xxh3_64()
        self._expected: deque[tuple[int, NDArray[np.int64]]] = deque()
        self._found: list[NDArray[np.uint64]] = []
        self.size, self._room = 0, _FROM

    def expect(self, address: int, bounds: NDArray[np.int64]) -> None:
        """Announce a buffer that is hashed in pieces: bounds[k]:bounds[k + 1], in bytes. In the order of writing."""
        self._expected.append((address, bounds))

    def write(self, data: Any) -> int:
        """Write all of a buffer."""
        size = len(data)
        if self._expected and size and getattr(data, "address", None) == self._expected[0][0]:
            self._write_pieces(memoryview(data).cast("B"), self._expected.popleft()[1])
        else:
            self._hash.update(data)
            self._put(memoryview(data))
        self.size += size
        if self.size > self._room:
            # Where the system cannot, or has no room left, writing will tell.
            self._room = self.size + _ROOM if allocate(self._fd, self.size, _ROOM) else sys.maxsize
        return size

    def _put(self, view: memoryview) -> None:
        while view:
            view = view[os.write(self._fd, view) :]

    def _write_pieces(self, data: memoryview, bounds: NDArray[np.int64]) -> None:
        # All that can be worked out before is: between two writes the processor's caches are empty of Python too.
        steps = np.searchsorted(bounds, np.arange(bounds[0], bounds[-1], _STEP)).tolist()
        ends, at = sorted({*steps, len(bounds) - 1}), bounds.tolist()
        pieces = list(map(data.__getitem__, map(slice, at[:-1], at[1:])))
        digests: list[int] = []
        for a, b in pairwise(ends):
            digests += map(xxh3_64_intdigest, pieces[a:b])
            self._put(data[at[a] : at[b]])
        found = np.array(digests, np.uint64)
        self._found.append(found)
        self._hash.update(found.tobytes())

    def cut(self) -> tuple[int, list[NDArray[np.uint64]]]:
        """Give the hash of what was written since the last cut, and those of the pieces of each announced buffer."""
        found, pieces = self._hash.intdigest(), self._found
        self._hash.reset()
        self._found = []
        return found, pieces

    def tell(self) -> int:
        """Bytes written so far."""
        return self.size

    def flush(self) -> None:
        """Do nothing: nothing is held back."""

    def close(self) -> None:
        """Close the file. Twice is fine."""
        if not self.closed:
            self.closed = True
            if self._room > _FROM:
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
