"""The short way to `input_ids`: where each row begins is kept in 8 bytes a row, for the blocks that were touched.

Decides when a set allows it: one width at rest, mapped, no row without ids. Knows no other column.
"""

import mmap
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from thalweg.core.errors import IntegrityError
from thalweg.core.sample import INPUT_IDS, Ragged, offsets_of
from thalweg.store.records.blocks import BlockTable, Touch
from thalweg.store.records.decode import OFFSETS, VALIDITY, VALUES, Decoder
from thalweg.store.records.facts import LENGTH
from thalweg.store.records.gather import gather
from thalweg.store.records.manifest import HEAD
from thalweg.store.records.region import FileReads, Region


class Places(NamedTuple):
    """Where values of rows lie in memory.

    Args:
        addresses: int64 (k,), first byte of each row.
        sizes: int (k,), elements of each row.
        width: element type at rest.
    """

    addresses: NDArray[np.int64]
    sizes: NDArray[Any]
    width: str


class TokenIds:
    """Gathers token ids. Build it with `of`."""

    def __init__(
        self, table: BlockTable, memory: Region, touch: Touch, lengths: NDArray[np.int32], where: tuple[list[int], str]
    ) -> None:
        self._table, self._memory, self._touch, self._lengths = table, memory, touch, lengths
        self._columns, self._width = where
        self._size = np.dtype(self._width).itemsize
        self.starts = lazy_zeros(len(lengths))  # element in the region; 0: the block was not touched yet
        self.usable = True

    @classmethod
    def of(
        cls,
        table: BlockTable,
        memory: Region | FileReads,
        touch: Touch,
        decoder: Decoder,
        facts: Mapping[str, NDArray[Any]],
    ) -> "TokenIds | None":
        """Make one where the set allows it, else None."""
        places = [decoder.place(INPUT_IDS, n) for n in range(len(table.layouts))]
        plain = [p for p in places if p is not None and p.kind.is_array and len(p.kind.dims) == 1]
        if isinstance(memory, FileReads) or not plain or len(plain) < len(places) or len({p.width for p in plain}) != 1:
            return None
        return cls(table, memory, touch, facts[LENGTH], ([p.column for p in plain], plain[0].width))

    def __call__(self, rows: NDArray[np.int64]) -> Ragged | None:
        """Read rows, or give None where one of them has no ids."""
        starts = self._starts_of(rows)
        if starts is None:
            return None
        lengths = self._lengths[rows]
        offsets = offsets_of(lengths)
        values = gather(self._memory, self._width, starts, lengths) if len(rows) else np.empty(0, self._width)
        return Ragged(values if self._width == "int32" else values.astype(np.int32), offsets)

    def places(self, rows: NDArray[np.int64]) -> Places | None:
        """Say where the ids of rows lie, or give None where one of them has none."""
        starts = self._starts_of(rows)
        if starts is None:
            return None
        starts *= self._size
        starts += self._memory.address
        return Places(starts, self._lengths[rows], self._width)

    def _starts_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Give the first element of each row in the region, a fresh array; None where one has no ids."""
        starts = self.starts[rows]
        if not starts.all() and self.usable:
            self.fill(self._table.of_rows(rows))
            starts = self.starts[rows]
        return starts if self.usable else None

    def single(self) -> tuple[memoryview, memoryview, NDArray[Any]] | None:
        """Give starts, lengths and elements for reading one row, or None where ids are narrower at rest."""
        if self._width != "int32":
            return None
        return self.starts.data, self._lengths.data, self._memory.view("int32")

    def fill(self, blocks: NDArray[np.int64]) -> None:
        """Note where the rows of blocks begin."""
        self._touch(blocks)
        table = self._table
        words = self._memory.view("int64")
        for block in np.flatnonzero(np.bincount(blocks)).tolist():  # np.unique would load numpy.ma: 14 ms of a start
            first, end = int(table.first[block]), int(table.first[block + 1])
            if self.starts[first]:
                continue
            at = HEAD + 4 * self._columns[int(table.layout[block])]
            entry, base = table.entry(block), int(table.base[block])
            if entry[at + VALIDITY] >= 0:
                self.usable = False  # rows without ids: their places stay 0, and they go the long way
                continue
            offsets = words[(base + int(entry[at + OFFSETS])) // 8 :][: end - first + 1]
            if not np.array_equal(np.diff(offsets), self._lengths[first:end]):
                raise IntegrityError(
                    "a shard holds other rows than the row facts say",
                    where=f"rows {first} to {end}",
                    fix="restore the files of the set; two sets were mixed up",
                )
            self.starts[first:end] = (base + int(entry[at + VALUES])) // self._size + offsets[:-1]


def lazy_zeros(n: int) -> NDArray[np.int64]:
    """Give int64 (n,) of zeros that take memory only where they are written."""
    reserve = 0x4000 if hasattr(mmap, "MAP_POPULATE") else 0x40  # MAP_NORESERVE on Linux and macOS
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANON | reserve
    return np.frombuffer(mmap.mmap(-1, max(8 * n, 8), flags=flags), np.int64, n)
