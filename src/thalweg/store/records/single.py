"""One row at a time: the shortest way from a row number to a dict.

Decides how the columns of a block are read for one row. Rows whose keys vary, and files that are not mapped, go the
long way.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np

from thalweg.core.sample import Sample
from thalweg.store.records.column import READ
from thalweg.store.records.decode import OFFSETS, SHAPES, VALIDITY, VALUES, Place
from thalweg.store.records.manifest import HEAD
from thalweg.store.records.opened import Opened
from thalweg.store.records.region import Region

_STRETCH = 64  # rows made at once by iteration: few enough to stay in the processor's cache

Getter = Callable[[int], Any]
Columns = list[tuple[str, int, int, Any, Getter | None]]  # name, place of offsets / 8, first element, elements, getter


class RowReader:
    """Reads single rows of a mapped set."""

    def __init__(self, opened: Opened, columns: Sequence[str]) -> None:
        self._opened, self._columns = opened, columns
        self._table = opened.table
        self._first = np.ascontiguousarray(self._table.first).data
        self._blocks: dict[int, tuple[int, Columns] | None] = {}
        memory = opened.memory
        self._memory = memory if isinstance(memory, Region) else None
        if self._memory is not None:
            self._words = self._memory.buffer("int64")

    def __call__(self, row: int) -> Sample | None:
        """Read row `row`, 0 <= row < n, or give None where it goes the long way."""
        block = bisect_right(self._first, row) - 1
        try:
            plan = self._blocks[block]
        except KeyError:
            plan = self._plan(block)
        if plan is None:
            return None
        first, columns = plan
        local = row - first
        words = self._words
        out: Sample = {}
        for name, at, base, view, getter in columns:
            if getter is None:
                out[name] = view[base + words[at + local] : base + words[at + local + 1]]
            else:
                out[name] = getter(local)
        return out

    def everything(self, long_way: Callable[[int, int], list[Sample]]) -> Iterator[Sample]:
        """Give all rows in order; `long_way(a, b)` reads rows [a, b) that no short way leads to."""
        return chain.from_iterable(self._stretches(long_way))

    def _stretches(self, long_way: Callable[[int, int], list[Sample]]) -> Iterator[list[Sample]]:
        """Give all rows, `_STRETCH` at a time: a generator that is resumed for each row costs more than the row."""
        for block in range(len(self._table)):
            plan = self._blocks[block] if block in self._blocks else self._plan(block)
            first, end = self._first[block], self._first[block + 1]
            self._opened.guard.look()
            if plan is None or any(getter is not None for *_, getter in plan[1]):
                yield long_way(first, end)
                continue
            parts: list[tuple[str, list[int], Any]] = []
            for name, at, base, view, _ in plan[1]:
                offsets = self._words[at : at + end - first + 1].tolist()
                parts.append((name, offsets, view[base : base + offsets[-1]]))
            for a in range(0, end - first, _STRETCH):
                if len(parts) == 1:
                    # Slices written out: 100 ns a row less than through map(slice, ...), on CPython 3.11.
                    name, offsets, values = parts[0]
                    yield [{name: values[x:y]} for x, y in pairwise(offsets[a : a + _STRETCH + 1])]
                else:
                    rows = range(a, min(a + _STRETCH, end - first))
                    yield [{n: values[at[i] : at[i + 1]] for n, at, values in parts} for i in rows]

    def _plan(self, block: int) -> tuple[int, Columns] | None:
        layout_number = int(self._table.layout[block])
        layout = self._table.layouts[layout_number]
        plan: tuple[int, Columns] | None = None
        if self._memory is not None and not layout.keyed and len(layout.keys) == 1:
            self._opened.touch(np.array([block]))
            wanted = [name for name in layout.keys[0] if name in self._columns]
            found = [self._column(name, layout_number, block) for name in wanted]
            if all(c is not None for c in found):
                plan = (int(self._table.first[block]), [c for c in found if c is not None])
        self._blocks[block] = plan
        return plan

    def _column(self, name: str, layout: int, block: int) -> tuple[str, int, int, Any, Getter | None] | None:
        assert self._memory is not None
        place = self._opened.decoder.place(name, layout)
        if place is None or place.kind.base == "null":
            return None
        base = int(self._table.base[block])
        at = self._table.entry(block)[HEAD + 4 * place.column :][:4].tolist()
        if at[VALIDITY] >= 0:
            return None
        slots = [base + a if a >= 0 else -1 for a in at]
        if place.kind.is_number:
            return (name, 0, 0, None, self._number(place, slots))
        view = self._memory.view(place.width)
        first = slots[VALUES] // view.dtype.itemsize
        words_at = slots[OFFSETS] // 8
        if place.kind.is_array and view.dtype == place.kind.dtype and not place.shape:
            return (name, words_at, first, view, None)
        return (name, words_at, first, view, self._getter(place, slots, view))

    def _number(self, place: Place, slots: list[int]) -> Getter:
        assert self._memory is not None
        if place.kind.dtype == bool:
            data, at = self._memory.buffer("uint8"), slots[VALUES]
            if place.kind.base == "bool":
                return lambda r: bool(data[at + (r >> 3)] >> (r & 7) & 1)
            return lambda r: np.bool_(data[at + (r >> 3)] >> (r & 7) & 1)
        view = self._memory.view(place.width)
        first = slots[VALUES] // view.dtype.itemsize
        if place.kind.base in ("int", "float"):
            return lambda r: view[first + r].item()
        return lambda r: view[first + r]

    def _getter(self, place: Place, slots: list[int], view: Any) -> Getter:
        words, at = self._words, slots[OFFSETS] // 8
        first = slots[VALUES] // view.dtype.itemsize
        if not place.kind.is_array:
            read = READ[place.kind.base]
            return lambda r: read(view[first + words[at + r] : first + words[at + r + 1]].tobytes())
        boolean = place.kind.base == "bool_"
        dtype, rank, shapes = place.kind.dtype, len(place.kind.dims), slots[SHAPES] // 8

        def get(r: int) -> Any:
            flat = view[first + words[at + r] : first + words[at + r + 1]]
            flat = flat.view(bool) if boolean else flat.astype(dtype, copy=False)
            return flat.reshape(words[shapes + rank * r : shapes + rank * (r + 1)].tolist()) if place.shape else flat

        return get
