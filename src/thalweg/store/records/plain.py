"""Rows of plain arrays on their way to a block: copied once, into memory that is used again for the next block.

The short way for rows that all have the same keys and nothing but arrays of rank 1 of the types known already. Decides
what may take it. Everything else goes through `block.Rows`.
"""

import mmap
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from thalweg.core.sample import Sample
from thalweg.store.records.column import Column
from thalweg.store.records.kinds import Kind

_SPARE = 32 << 20  # bytes beyond those of a full block; memory only where they are written
_LARGE = 8  # columns up to which each may take pages of 2 MB


def _room(nbytes: int, columns: int) -> mmap.mmap:
    """Reserve memory, in large pages where there are such: copying a row costs 0.4 instead of 0.7 microseconds."""
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if columns <= _LARGE:
        with suppress(AttributeError, OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


class Plain:
    """Gathers rows of plain arrays.

    Args:
        kinds: the type of each column, in the order of the rows' keys; arrays of rank 1.
        rows: most rows.
        nbytes: bytes of a block after which it is full.
    """

    def __init__(self, kinds: Mapping[str, Kind], rows: int, nbytes: int) -> None:
        self._kinds, self._rows, self._nbytes = dict(kinds), rows, nbytes
        self._memory = {k: _room(nbytes + _SPARE, len(kinds)) for k in kinds}
        self._ends: dict[str, list[int]] = {k: [0] for k in kinds}  # in bytes
        self.add: Callable[[Sample], int] = self._adder()

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of the rows, in order."""
        return tuple(self._kinds)

    @property
    def n(self) -> int:
        """Rows gathered so far."""
        return len(next(iter(self._ends.values()))) - 1

    def _adder(self) -> Callable[[Sample], int]:
        """Make the function that takes a row: 0 where it is not plain, 2 where the block is full with it, else 1."""
        return self._one() if len(self._kinds) == 1 else self._several()

    def _one(self) -> Callable[[Sample], int]:
        """For a single column: this is what a written row costs."""
        ((name, kind),) = self._kinds.items()
        write: Callable[[Any], int] = self._memory[name].write
        ends, dtype, array = self._ends[name], kind.dtype, np.ndarray
        append, most, room = ends.append, self._rows, self._nbytes
        end = 0

        def add(sample: Sample) -> int:
            nonlocal end
            value = sample.get(name)
            if type(value) is not array or value.dtype is not dtype or value.ndim != 1 or len(sample) != 1:
                return 0
            try:
                end += write(value)
            except ValueError:  # not contiguous, or larger than what is reserved
                return 0
            append(end)
            return 1 if end < room and len(ends) <= most else 2

        return add

    def _several(self) -> Callable[[Sample], int]:
        keys, most, room, array = self.keys, self._rows, self._nbytes, np.ndarray
        columns = [(k, kind.dtype, self._memory[k].write, self._ends[k]) for k, kind in self._kinds.items()]
        counted = columns[0][3]

        def add(sample: Sample) -> int:
            if tuple(sample) != keys:
                return 0
            for name, dtype, _, _ in columns:
                value = sample[name]
                if (
                    type(value) is not array
                    or value.dtype is not dtype
                    or value.ndim != 1
                    or not value.flags.c_contiguous
                    or value.nbytes > _SPARE
                ):
                    return 0
            end = 0
            for name, _, write, ends in columns:
                here = ends[-1] + write(sample[name])
                ends.append(here)
                end += here
            return 1 if end < room and len(counted) <= most else 2

        return add

    def columns(self) -> dict[str, Column]:
        """Give the rows as columns. They must be gone when the next row is added after `clear`."""
        out: dict[str, Column] = {}
        for name, kind in self._kinds.items():
            offsets = np.array(self._ends[name], np.int64) // kind.dtype.itemsize
            values = np.frombuffer(self._memory[name], kind.dtype, offsets[-1])
            out[name] = Column(kind, values, offsets)
        return out

    def clear(self) -> None:
        """Begin anew, in the same memory."""
        for name, ends in self._ends.items():
            del ends[1:]
            self._memory[name].seek(0)
        self.add = self._adder()
