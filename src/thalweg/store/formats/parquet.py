"""Parquet: row groups as units. Nested values that no column type holds travel as JSON text, marked in the schema.

Dates, times and decimals come as text, exactly as they are, since records have no such values.
"""

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec
import numpy as np
import pyarrow as pa

from thalweg.core.errors import InputError, SampleError
from thalweg.core.sample import Sample
from thalweg.store.formats.format import Unit, WholeFile, files
from thalweg.store.records.kinds import Kind, parse
from thalweg.store.records.nested import plain_json

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

SUFFIXES, ONE_FILE = (".parquet", ".pq"), False
_TYPE, _ROWS = b"thalweg.type", 1024


def opened(source: Any, where: str) -> "ParquetFile":
    """Open a file.

    Args:
        source: its path, or an open file.
        where: how an error names it.

    Raises:
        InputError: it is no whole Parquet file.
    """
    from pyarrow.parquet import ParquetFile  # noqa: PLC0415  (only where it is used)

    try:
        return ParquetFile(source)
    except pa.ArrowInvalid as error:
        raise InputError(f"this is no whole Parquet file: {error}", where=where, fix="fetch it again") from error


def batches(
    file: "ParquetFile", where: str, size: int, groups: list[int], columns: list[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Read row groups of a file, `size` rows at a time; errors call it `where`.

    Raises:
        InputError: the file is damaged.
    """
    found = file.iter_batches(size, row_groups=groups, columns=columns)
    while True:
        try:
            batch = next(found, None)
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"the file is damaged: {error}", where=where, fix="fetch it again") from error
        if batch is None:
            return
        yield batch


def units(path: str) -> list[Unit]:
    """Name the row groups of a file or directory."""
    out: list[Unit] = []
    for file in files(path, SUFFIXES):
        with opened(file, file) as found:
            out += [Unit(file, g, g + 1) for g in range(found.num_row_groups)]
    return out


def rows(unit: Unit, name: str | None = None) -> Iterator[Sample]:
    """Read row groups as dicts. Lists stay lists, except where our own writer noted an array.

    Args:
        unit: file and row groups.
        name: how an error names the file; None: by its path.

    Raises:
        InputError: the file is damaged.
    """
    where = name or unit.path
    with opened(unit.path, where) as file:
        end = file.num_row_groups if unit.end < 0 else unit.end
        schema = file.schema_arrow
        kinds = _kinds(schema)
        shown = pa.schema([field.with_type(_shown(field.type)) for field in schema])
        for batch in batches(file, where, _ROWS, list(range(unit.start, end))):
            for row in (batch if shown.equals(batch.schema) else batch.cast(shown)).to_pylist():
                yield {column: restored(value, kinds.get(column)) for column, value in row.items()}


def rows_of(path: str, name: str) -> Iterator[Sample]:
    """Read a whole file; errors call it `name`."""
    return rows(Unit(path), name)


def _shown(kind: pa.DataType) -> pa.DataType:
    """Give the type in which a column becomes Python values: text where records have no place for its own."""
    of = pa.types
    if of.is_date(kind) or of.is_time(kind) or of.is_timestamp(kind) or of.is_decimal(kind):
        return pa.string()
    if of.is_struct(kind):
        return pa.struct([field.with_type(_shown(field.type)) for field in kind])
    if of.is_map(kind):
        return pa.map_(_shown(kind.key_type), _shown(kind.item_type))
    if of.is_list(kind) or of.is_large_list(kind):
        make = pa.list_ if of.is_list(kind) else pa.large_list
        return make(_shown(kind.value_type))
    return kind


def _kinds(schema: pa.Schema) -> dict[str, Kind]:
    found = ((f.name, (f.metadata or {}).get(_TYPE)) for f in schema)
    return {name: parse(word.decode()) for name, word in found if word is not None}


def restored(value: Any, kind: Kind | None) -> Any:
    """Give a value the type that our own writer noted; None: leave it as it is."""
    if value is None or kind is None:
        return value
    if kind.base == "json":
        return msgspec.json.decode(value)
    if kind.is_array:
        array = np.array(value, kind.dtype)
        return (
            array.reshape(0, *(max(d, 0) for d in kind.dims[1:])) if array.size == 0 and len(kind.dims) > 1 else array
        )
    return kind.dtype.type(value) if kind.base not in ("int", "float", "bool", "str", "bytes") else value


def arrow_field(name: str, kind: Kind) -> pa.Field:
    """Give the Parquet column of a type."""
    meta = {_TYPE: str(kind).encode()}
    if kind.base in ("json", "null"):
        return pa.field(name, pa.string(), metadata={_TYPE: b"json"})
    if kind.is_array or kind.is_number:
        inner = pa.bool_() if kind.dtype == bool else pa.from_numpy_dtype(kind.dtype)
        for _ in kind.dims:
            inner = pa.list_(inner)
        return pa.field(name, inner, metadata=meta)
    return pa.field(name, pa.string() if kind.base == "str" else pa.binary(), metadata=meta)


def to_arrow(name: str, kind: Kind, value: Any) -> Any:
    """Bring one value into the form that its column takes.

    Raises:
        SampleError: nested bytes or arrays: JSON has no such values.
    """
    if value is None:
        return None
    if kind.base in ("json", "null"):
        try:
            return plain_json(value).decode()
        except SampleError as error:
            error.where = f"column {name!r}"
            raise
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


class ParquetSetWriter:
    """Writes one file. A key that a row does not have is null there: Parquet knows no absence."""

    def __init__(self, path: Path, schema: dict[str, str]) -> None:
        from pyarrow.parquet import ParquetWriter  # noqa: PLC0415

        self._file = WholeFile(path)
        self._kinds = {name: parse(word) for name, word in schema.items()}
        self._schema = pa.schema([arrow_field(n, k) for n, k in self._kinds.items()])
        self._out = ParquetWriter(self._file.temporary, self._schema, compression="zstd")
        self._rows: list[Sample] = []

    def write(self, sample: Sample) -> None:
        """Add one row."""
        self._rows.append({n: to_arrow(n, k, sample.get(n)) for n, k in self._kinds.items()})
        if len(self._rows) >= _ROWS:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            self._out.write_table(pa.Table.from_pylist(self._rows, schema=self._schema))
            self._rows.clear()

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finish, or throw away."""
        done = False
        try:
            if kind is None:
                self._flush()
            self._out.close()
            done = kind is None
        finally:
            self._file.finish(keep=done)


def writer(path: Path, schema: dict[str, str]) -> ParquetSetWriter:
    """Open a file for writing."""
    return ParquetSetWriter(path, schema)
