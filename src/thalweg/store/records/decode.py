"""Values of one column for many rows, read by index arithmetic: no loop over shards, blocks or rows.

Decides how buffers become values. Knows no public class.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.core.sample import Ragged, offsets_of
from thalweg.store.records.blocks import BlockTable
from thalweg.store.records.column import Column
from thalweg.store.records.gather import gather
from thalweg.store.records.kinds import NULL, Kind, parse
from thalweg.store.records.region import FileReads, Region

VALIDITY, OFFSETS, VALUES, SHAPES = range(4)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a layout keeps a column."""

    column: int
    kind: Kind
    width: str
    shape: bool


class Decoder:
    """Reads columns of touched blocks.

    Args:
        table: the blocks.
        memory: mapped shards, or files read by ranges.
    """

    def __init__(self, table: BlockTable, memory: Region | FileReads) -> None:
        self._table, self._memory = table, memory
        self._places: dict[str, dict[int, Place]] = {}
        for number, layout in enumerate(table.layouts):
            for at, c in enumerate(layout.all_columns):
                self._places.setdefault(c.name, {})[number] = Place(at, parse(c.kind), c.width, c.shape)

    def place(self, name: str, layout: int) -> Place | None:
        """Say where a layout keeps a column, None where it has none."""
        return self._places.get(name, {}).get(layout)

    def holds(self, name: str) -> bool:
        """Say whether any row may have a value in a column."""
        return any(place.kind != NULL for place in self._places.get(name, {}).values())

    def column(self, name: str, rows: NDArray[np.int64], blocks: NDArray[np.int64]) -> Column | list[Any]:
        """Read one column for rows that lie in `blocks`.

        Returns:
            A Column; or, where the rows have values of different types, a list with None for what is absent.
        """
        places = self._places.get(name, {})
        layouts = self._table.layout[blocks]
        used = [0] if self._table.single else np.unique(layouts).tolist()
        types = {(places[n].kind.base, len(places[n].kind.dims), places[n].width) for n in used if n in places}
        types -= {("null", 0, "uint8")}
        if len(types) > 1:
            out: list[Any] = [None] * len(rows)
            for number in used:
                mine = np.flatnonzero(layouts == number)
                found = self.column(name, rows[mine], blocks[mine])
                for i, value in zip(mine.tolist(), found if isinstance(found, list) else found.to_list(), strict=True):
                    out[i] = value
            return out
        real = next((n for n in used if n in places and places[n].kind != NULL), None)
        if real is None:
            return Column(NULL, np.zeros(len(rows), np.uint8), None, None, np.ones(len(rows), bool))
        slots = np.full((4, len(rows)), -1, np.int64)
        there = np.ones(len(rows), bool)
        everything = np.arange(len(rows))
        for number in used:
            mine = everything if len(used) == 1 else np.flatnonzero(layouts == number)
            place = places.get(number)
            if place is None or place.kind == NULL:
                there[mine] = False
                continue
            for which in range(4 if place.shape else 3):
                slots[which, mine] = self._table.slot(number, place.column, which, blocks[mine])
        local = rows - self._table.first[blocks]
        return self._decode(places[real], slots, local, there)

    def _decode(
        self, place: Place, slots: NDArray[np.int64], local: NDArray[np.int64], there: NDArray[np.bool_]
    ) -> Column:
        if (slots[VALIDITY] >= 0).any():
            masked = np.flatnonzero(slots[VALIDITY] >= 0)
            there[masked] &= self._bits(slots[VALIDITY, masked], local[masked])
        whole = bool(there.all())
        nulls = None if whole else ~there
        if place.kind.is_number:
            return Column(place.kind, self._numbers(place, slots[VALUES], local, there), None, None, nulls)
        # Rows without a value have no place: they read nothing.
        at = slots[OFFSETS] + 8 * local if whole else np.where(there, slots[OFFSETS] + 8 * local, 0)
        pairs = self._words(np.concatenate([at, at + 8]) if whole else np.concatenate([at, np.where(there, at + 8, 0)]))
        first, last = pairs[: len(local)], pairs[len(local) :]
        width = np.dtype(place.width).itemsize
        counts = last - first
        offsets = offsets_of(counts)
        starts = slots[VALUES] + first * width
        if not whole:
            starts = np.where(counts > 0, starts, 0)
        values = self.ranges(starts, counts * width).view(place.width)
        if place.kind.is_array:
            values = values.view(bool) if place.kind.base == "bool_" else values.astype(place.kind.dtype, copy=False)
        shapes = None
        if place.shape:
            rank = len(place.kind.dims)
            steps = np.arange(rank) * 8
            at = (slots[SHAPES] + 8 * rank * local)[:, None] + steps
            shapes = self._words(np.where(there[:, None], at, 0).reshape(-1)).reshape(-1, rank)
        return Column(place.kind, values, offsets, None, nulls, shapes)

    def _numbers(
        self, place: Place, slots: NDArray[np.int64], local: NDArray[np.int64], there: NDArray[np.bool_]
    ) -> NDArray[Any]:
        if place.kind.dtype == bool:
            bits = np.zeros(len(local), bool)
            bits[there] = self._bits(slots[there], local[there])
            return bits
        width = np.dtype(place.width).itemsize
        at = np.where(there, slots + local * width, 0)
        out = self.fixed(at, place.width).astype(place.kind.dtype, copy=False)
        return out if there.all() else np.where(there, out, np.zeros(1, out.dtype))

    def _bits(self, slots: NDArray[np.int64], local: NDArray[np.int64]) -> NDArray[np.bool_]:
        found = self.fixed(slots + (local >> 3), "uint8") >> (local & 7).astype(np.uint8)
        return (found & 1).astype(bool)

    def _words(self, at: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.fixed(at, "int64")

    def fixed(self, at: NDArray[np.int64], width: str) -> NDArray[Any]:
        """Read one element at each place, (k,). Place 0 stands for nothing and reads anything."""
        size = np.dtype(width).itemsize
        if isinstance(self._memory, Region):
            real = at > 0
            if real.all():
                return self._memory.view(width)[at // size]
            out = np.zeros(len(at), width)
            out[real] = self._memory.view(width)[at[real] // size]
            return out
        out = np.zeros(len(at), width)
        real = at > 0
        out[real] = np.frombuffer(self._memory.ranges(at[real], at[real] + size), width)
        return out

    def ranges(self, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Read byte ranges end to end, uint8."""
        if not len(starts):
            return np.empty(0, np.uint8)
        if isinstance(self._memory, Region):
            return gather(self._memory, "uint8", starts, sizes)
        return np.frombuffer(self._memory.ranges(starts, starts + sizes), np.uint8)


def public(column: Column | list[Any]) -> Any:
    """Give a column in the form that `read` promises: Ragged, numbers, or a list."""
    if isinstance(column, list) or column.nulls is not None:
        return column if isinstance(column, list) else column.to_list()
    if column.offsets is None:
        return column.values
    if not column.kind.is_array:
        return column.to_list()
    if column.shapes is None:
        return Ragged(column.values, column.offsets)
    trail = column.shapes[:, 1:]
    if len(trail) and (trail == trail[0]).all():
        size = int(np.prod(trail[0]))
        if size:
            return Ragged(column.values.reshape(-1, *trail[0].tolist()), column.offsets // size)
    return column.to_list()
