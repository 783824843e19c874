"""MindRecord, through the `mindspore` package. Its types are few: int32, int64, float32, float64, text and bytes.

A value that it would drop with a warning (rows that don't match the schema) is refused here.
"""

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from thalweg.core.errors import SampleError
from thalweg.core.extras import need
from thalweg.core.sample import Sample
from thalweg.store.formats.format import Unit
from thalweg.store.records.kinds import Kind, parse
from thalweg.store.records.nested import plain_json

SUFFIXES, ONE_FILE = (".mindrecord",), True
_WIDTHS = {"int8": "int32", "int16": "int32", "uint8": "int32", "uint16": "int32", "bool_": "int32", "bool": "int32"}
_WIDER = {"int": "int64", "float": "float64", "uint32": "int64", "float16": "float32"}


def units(path: str) -> list[Unit]:
    """Name the file."""
    return [Unit(path)]


def rows(unit: Unit) -> Iterator[Sample]:
    """Read a file in its order."""
    library = need("mindspore.dataset", why="the MindRecord format")
    found = library.MindDataset(unit.path, shuffle=False)
    for row in found.create_dict_iterator(num_epochs=1, output_numpy=True):
        yield {name: _plain(value) for name, value in row.items()}


def _plain(value: Any) -> Any:
    if value.dtype.kind in "US":
        return value.item() if value.dtype.kind == "U" else bytes(value.item())
    return value if value.ndim else value.item()


def _field(kind: Kind) -> dict[str, Any]:
    if kind.base in ("str", "json", "null"):
        return {"type": "string"}
    if kind.base == "bytes":
        return {"type": "bytes"}
    width = _WIDTHS.get(kind.base) or _WIDER.get(kind.base, kind.base)
    return {"type": width, "shape": [-1, *kind.dims[1:]]} if kind.is_array else {"type": width}


class MindRecordWriter:
    """Writes one file."""

    def __init__(self, path: Path, schema: dict[str, str]) -> None:
        module = need("mindspore.mindrecord", why="the MindRecord format")
        self._path = path
        self._kinds = {n: parse(w) for n, w in schema.items()}
        self._out = module.FileWriter(str(path), shard_num=1, overwrite=True)
        self._out.add_schema({n: _field(k) for n, k in self._kinds.items()}, "thalweg")
        self._rows: list[Sample] = []

    def write(self, sample: Sample) -> None:
        """Add one row.

        Raises:
            SampleError: a missing value or an empty array, which MindRecord does not keep.
        """
        row: Sample = {}
        for name, kind in self._kinds.items():
            value = sample.get(name)
            if kind.base in ("json", "null"):
                row[name] = plain_json(value).decode()
            elif value is None or (kind.is_array and np.size(value) == 0):
                raise SampleError(f"column {name!r}: MindRecord keeps no empty value", fix="leave such rows out")
            else:
                row[name] = np.asarray(value, _field(kind)["type"]) if kind.is_array else value
        self._rows.append(row)
        if len(self._rows) >= 1024:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            self._out.write_raw_data(self._rows)
            self._rows = []

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finish, or remove what was written."""
        if kind is None:
            self._flush()
            self._out.commit()
            return
        for name in (self._path, Path(str(self._path) + ".db")):
            name.unlink(missing_ok=True)


def writer(path: Path, schema: dict[str, str]) -> MindRecordWriter:
    """Open a file for writing."""
    return MindRecordWriter(path, schema)
