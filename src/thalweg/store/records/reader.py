"""`open_records`: a record set as something with a length that is read by index.

Decides which generation is opened, what a row is, and what is refused. How bytes become values is in `decode`; where
they lie in `blocks`.
"""

import operator
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import monotonic
from types import MappingProxyType
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from thalweg.core.errors import ConfigError, RecordsError, nearest
from thalweg.core.sample import INPUT_IDS, Ragged, Sample
from thalweg.store.records import hashing
from thalweg.store.records.column import Column
from thalweg.store.records.decode import public
from thalweg.store.records.facts import LENGTH
from thalweg.store.records.find import find
from thalweg.store.records.manifest import ID_HASH, KEYS, OWN_ID
from thalweg.store.records.opened import Opened, Source
from thalweg.store.records.single import RowReader
from thalweg.store.records.token_ids import Places

IO = Literal["auto", "mmap", "pread"]


class Records:
    """A record set, open for reading. Safe to share between threads, to fork and to pickle.

    Arrays that it hands over are read-only or the caller's own; none of them changes later.
    """

    def __init__(self, opened: Opened, columns: Sequence[str] | None) -> None:
        self._opened = opened
        known = opened.manifest.columns
        for name in columns or ():
            if name not in known:
                raise RecordsError(f"no column {name!r}", where=opened.where, fix=nearest(name, known))
        self._columns = tuple(known) if columns is None else tuple(columns)
        self._all = columns is None
        self._n = opened.manifest.rows
        self._guard = opened.guard
        self._single: RowReader | None = None
        self._ids: tuple[memoryview, memoryview, NDArray[Any]] | None = None  # for sets of `input_ids` alone

    # ---- what it is
    @property
    def path(self) -> str:
        """Directory or URL of the set."""
        return self._opened.where

    @property
    def generation(self) -> int:
        """Number of the generation that is open."""
        return self._opened.manifest.generation

    @property
    def fingerprint(self) -> str:
        """Identity of the rows in order: 16 hex digits. Paths, shard sizes and times don't enter it."""
        return self._opened.manifest.fingerprint

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that are read."""
        return self._columns

    @property
    def schema(self) -> dict[str, str]:
        """Types of the columns: {"input_ids": "int32[*]", ...}."""
        return {name: self._opened.manifest.columns[name] for name in self._columns}

    @property
    def lineage(self) -> Mapping[str, Any]:
        """What made the set: tokenizer digest, pad_id, eos_id, vocab_size, inputs, config; may be empty."""
        return MappingProxyType(self._opened.manifest.lineage)

    @property
    def num_tokens(self) -> int:
        """Tokens of all rows."""
        return self._opened.manifest.tokens

    @property
    def quarantined(self) -> int:
        """Rows that went to quarantine when the set was written."""
        return self._opened.manifest.quarantined

    @property
    def facts(self) -> Mapping[str, NDArray[Any]]:
        """Numbers about each row, mapped: "length", "label_tokens", "media_tokens" and those the writer named; (n,)."""
        return self._opened.facts

    @property
    def lengths(self) -> NDArray[np.int32] | None:
        """Tokens of each row, int32 (n,), mapped; None where no row has `input_ids`."""
        return self.facts[LENGTH] if INPUT_IDS in self._opened.manifest.columns else None

    def __len__(self) -> int:
        """Count the rows."""
        return self._n

    def __repr__(self) -> str:
        """Say what is open."""
        return f"Records({self.path!r}, rows={self._n}, tokens={self.num_tokens}, fingerprint={self.fingerprint!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as what opens the same generation again."""
        columns = None if self._all else self._columns
        return (_reopen, (self._opened.source, self.generation, self.fingerprint, columns))

    # ---- reading
    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> list[Sample]: ...
    def __getitem__(self, index: Any) -> Any:
        """Give one row as a dict, or a slice as a list of dicts. Negative numbers count from the end.

        Raises:
            IndexError: no such row.
            TypeError: not a whole number.
        """
        ids = self._ids
        if monotonic() >= self._guard.due:
            self._guard.look()
        if ids is not None and type(index) is int:
            starts, lengths, values = ids
            at = starts[index]  # negative numbers count from the end here too, and others raise IndexError
            if at:
                return {INPUT_IDS: values[at : at + lengths[index]]}
        if isinstance(index, slice):
            return self.rows(np.arange(*index.indices(self._n)))
        row = index if type(index) is int else operator.index(index)
        if row < 0:
            row += self._n
        if not 0 <= row < self._n:
            raise IndexError(f"row {index} of {self._n}")
        if self._single is None:
            self._open_single()
        assert self._single is not None
        if self._ids is not None and self._opened.ids_only is not None:
            self._opened.ids_only.fill(self._opened.table.of_rows(np.array([row])))
        sample = self._single(row)
        return self.rows(np.array([row]))[0] if sample is None else sample

    def _open_single(self) -> None:
        self._single = RowReader(self._opened, self._columns)
        only = [layout.keys == [[INPUT_IDS]] for layout in self._opened.manifest.layouts]
        if self._columns == (INPUT_IDS,) and only and all(only) and self._opened.ids_only is not None:
            self._ids = self._opened.ids_only.single()

    def __iter__(self) -> Iterator[Sample]:
        """Give all rows in order."""
        if self._single is None:
            self._open_single()
        assert self._single is not None
        return self._single.everything(lambda a, b: self.rows(np.arange(a, b)))

    def read(self, indices: Any, columns: Sequence[str] | None = None, *, absent: Any = None) -> dict[str, Any]:
        """Read rows by columns, in the order asked.

        Args:
            indices: row numbers (k,), any order, repeats allowed, negative ones from the end; or a slice.
            columns: names; None: all.
            absent: what stands where a row does not have the key; where it has null there is None.

        Returns:
            Arrays as Ragged with k rows, numbers as (k,), everything else as a list of k values. Where one of the
            rows has no value, a list with None or `absent` in its place.

        Raises:
            IndexError: a row that does not exist.
            RecordsError: a column that does not exist.
        """
        rows = self._checked(indices)
        names = self._columns if columns is None else tuple(columns)
        self._guard.look()
        out: dict[str, Any] = {}
        blocks: NDArray[np.int64] | None = None
        for name in names:
            if name not in self._opened.manifest.columns:
                raise RecordsError(f"no column {name!r}", where=self.path, fix=nearest(name, self._columns))
            if name == INPUT_IDS and self._opened.ids_only is not None:
                found = self._opened.ids_only(rows)
                if found is not None:
                    out[name] = found
                    continue
            if blocks is None:
                blocks = self._touch(rows)
            out[name] = public(self._opened.decoder.column(name, rows, blocks))
        if absent is not None and blocks is not None:
            self._mark(out, absent, rows, blocks)
        return out

    def _mark(self, out: dict[str, Any], absent: Any, rows: NDArray[np.int64], blocks: NDArray[np.int64]) -> None:
        """Put a mark where a row does not have the key, in columns that have None somewhere."""
        holed = [name for name, values in out.items() if isinstance(values, list) and any(v is None for v in values)]
        for i, keys in enumerate(self._keys_of(rows, blocks) if holed else ()):
            for name in holed:
                if name not in keys:
                    out[name][i] = absent

    def _keys_of(self, rows: NDArray[np.int64], blocks: NDArray[np.int64]) -> list[list[str]]:
        """Give the keys of each row, in the order in which they were written."""
        table = self._opened.table
        numbers = self._opened.decoder.column(KEYS, rows, blocks)
        keyed = [None] * len(rows) if isinstance(numbers, Column) and numbers.kind.base == "null" else _plain(numbers)
        layouts = table.layout[blocks].tolist()
        return [table.layouts[layout].keys[number or 0] for layout, number in zip(layouts, keyed, strict=True)]

    def token_places(self, rows: NDArray[np.int64], together: int = 1) -> Places | None:
        """Say where the `input_ids` of rows lie, for one copy out of many sets; None where they are not mapped.

        Args:
            rows: row numbers (k,), from 0.
            together: sets that are asked for that copy.
        """
        self._guard.look(together)
        ids = self._opened.ids_only
        return None if ids is None else ids.places(rows)

    def ahead(self, indices: Any, calls: int = 64) -> bool:
        """Say which rows will be read, so that a set behind a URL fetches them before, and keeps them until then.

        Args:
            indices: row numbers of one more `read`, after those said before; none: the order is over.
            calls: how many announced reads are still to come, this one too; what was said before them is over.

        Returns:
            False where nothing is fetched, as on a local disk: then there is no use in saying more.
        """
        return self._opened.ahead(self._checked(indices), calls)

    def column(self, name: str) -> Any:
        """Read one column of all rows."""
        return self.read(slice(None), [name])[name]

    def rows(self, rows: NDArray[np.int64]) -> list[Sample]:
        """Read rows as dicts, each with the keys it was written with, in their order."""
        self._guard.look()
        blocks = self._touch(rows)
        decoder = self._opened.decoder
        lists: dict[str, list[Any]] = {}
        for name in self._columns:
            found = decoder.column(name, rows, blocks)
            lists[name] = found if isinstance(found, list) else found.to_list()
        keep = set(self._columns)
        return [{k: lists[k][i] for k in keys if k in keep} for i, keys in enumerate(self._keys_of(rows, blocks))]

    def _touch(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        blocks = self._opened.table.of_rows(rows)
        self._opened.touch(blocks)
        return blocks

    def _checked(self, indices: Any) -> NDArray[np.int64]:
        if isinstance(indices, slice):
            return np.arange(*indices.indices(self._n))
        rows = np.asarray(indices)
        if rows.size == 0:
            return np.zeros(0, np.int64)
        if rows.ndim != 1 or rows.dtype.kind not in "iu":
            raise ConfigError(f"indices of shape {rows.shape} and dtype {rows.dtype}", fix="give integers (k,)")
        rows = rows.astype(np.int64, copy=False)
        low, high = int(rows.min()), int(rows.max())
        if low < -self._n or high >= self._n:
            raise IndexError(f"row {low if low < -self._n else high} of {self._n}")
        return np.where(rows < 0, rows + self._n, rows) if low < 0 else rows

    # ---- ids
    @property
    def has_own_ids(self) -> bool:
        """Whether ids were given to `write` beside the rows, and are in no column."""
        return any(layout.ids == "own" for layout in self._opened.table.layouts)

    def ids(self, indices: Any) -> list[str]:
        """Give the ids of rows: column `id` or what was given to `write`, else the row number."""
        rows = self._checked(indices)
        blocks = self._touch(rows)
        modes = [layout.ids for layout in self._opened.table.layouts]
        out: list[str] = [str(r) for r in rows.tolist()]
        for name, mode in (("id", "column"), (OWN_ID, "own")):
            mine = np.flatnonzero(
                np.isin(self._opened.table.layout[blocks], [i for i, m in enumerate(modes) if m == mode])
            )
            if len(mine):
                for i, value in zip(
                    mine.tolist(), _plain(self._opened.decoder.column(name, rows[mine], blocks[mine])), strict=True
                ):
                    if value is not None:
                        out[i] = str(value)
        return out

    def id_hashes(self, indices: Any) -> NDArray[np.uint64]:
        """Give xxh3_64 of the UTF-8 of each id, as stored with the row; uint64 (k,)."""
        rows = self._checked(indices)
        if not self._opened.decoder.holds(ID_HASH):
            return hashing.of_row_numbers(rows)
        blocks = self._touch(rows)
        found = self._opened.decoder.column(ID_HASH, rows, blocks)
        assert isinstance(found, Column)
        if found.kind.base == "null":
            return hashing.of_row_numbers(rows)
        out = found.values.copy()
        default = np.flatnonzero(out == 0)
        if len(default):
            out[default] = hashing.of_row_numbers(rows[default])
        return out

    # ---- checking
    def verify(self, level: Literal["quick", "full"] = "quick") -> None:
        """Check the set: "quick" compares names and sizes of all files, "full" every byte with its checksum.

        Raises:
            IntegrityError: the first file that differs, with the offset.
        """
        from thalweg.store.records.verify import verify  # noqa: PLC0415

        verify(self._opened, level)


def _plain(column: Any) -> list[Any]:
    if isinstance(column, list):
        return column
    values: list[Any] = column.values.tolist() if column.kind.is_number and column.nulls is None else column.to_list()
    return values


def open_records(  # noqa: PLR0917
    path: str | Path,
    columns: Sequence[str] | None = None,
    partial: bool = False,
    verify: bool = False,
    cache_dir: str | Path | None = None,
    cache_bytes: int | str = "50GB",
    *,
    generation: int | None = None,
    io: IO = "auto",
    expect: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Records:
    """Open a record set.

    Args:
        path: its directory, or a URL that fsspec knows.
        columns: names of the columns to read; None: all. Others are never touched.
        partial: open an unfinished set with the parts that are there.
        verify: compare the checksum of each block when it is first read.
        cache_dir: where shards of a URL are kept on this node; default the user's cache directory.
        cache_bytes: how much they may take.
        generation: an older generation; None: the newest.
        io: "mmap"; "pread" reads ranges, so that a file cut while it is open is an error; "auto" takes "pread" on
            network and FUSE file systems.
        expect: lineage that the set must have, such as {"tokenizer": digest}, or {"schema": {...}}.
        storage_options: for fsspec.

    Raises:
        RecordsError: there is no set, it is unfinished, or it is not what `expect` says.
        IntegrityError: the manifest or a file beside the shards is damaged or cut.
    """
    if io not in ("auto", "mmap", "pread"):
        raise ConfigError(f"io={io!r}", fix=nearest(io, ("auto", "mmap", "pread")))
    source = Source(
        str(path), io, verify, str(cache_dir) if cache_dir else None, cache_bytes, dict(storage_options or {})
    )
    records = Records(find(source, generation, partial=partial), columns)
    _expected(records, expect or {})
    return records


def _expected(records: Records, expect: Mapping[str, Any]) -> None:
    for key, wanted in expect.items():
        found = records.schema if key == "schema" else records.lineage.get(key)
        if key == "schema":
            wanted = {**found, **wanted} if isinstance(found, dict) else wanted  # noqa: PLW2901
        if found != wanted:
            raise RecordsError(
                f"{key} of the set is {found!r}, {wanted!r} is expected",
                where=records.path,
                fix="open the set that was made with it, or make it again",
            )


def _reopen(source: Source, generation: int, fingerprint: str, columns: tuple[str, ...] | None) -> Records:
    records = Records(find(source, generation, partial=False), columns)
    if records.fingerprint != fingerprint:
        raise RecordsError("the set was replaced since", where=records.path, fix="open it again")
    return records


__all__ = ["Ragged", "Records", "open_records"]
