"""Whole JSON rows as columns: text, id and one object of plain values, decoded once and never made into documents.

Decides which rows are that simple, by the first block of a file, and what a writer of columns gets of them: what it
would get of documents. Knows no file.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from thalweg.core.document import ROW, SOURCE, UNIT
from thalweg.steps.batches import NUMBER, ROWS, WHOLE

if TYPE_CHECKING:
    from collections.abc import Mapping

FILE_PATH = "file_path"
_ARROW: dict[type, Any] = {str: pa.string(), float: pa.float64(), int: pa.int64(), bool: pa.bool_()}
_OURS = {SOURCE, UNIT, ROW, FILE_PATH}


class WholeRows:
    """The fields of simple rows: what they are called and which type each has.

    Args:
        text_key, id_key: names of text and id.
        metadata: name -> type of the values of `metadata`: str, float, int or bool; null and absence are fine.
    """

    def __init__(self, text_key: str, id_key: str, metadata: Mapping[str, type]) -> None:
        self.metadata = dict(metadata)
        inner = self._struct({name: kind | None for name, kind in metadata.items()})
        names = {text_key: str | None, id_key: str | None, "metadata": inner | None}
        self.decode = msgspec.json.Decoder(self._struct(names)).decode_lines
        self.reach = {"text": "f0", "id": "f1"} | {f"metadata.{n}": f"f2.f{k}" for k, n in enumerate(metadata)}

    @staticmethod
    def _struct(types: Mapping[str, Any]) -> Any:
        """Make a type whose attributes are f0, f1, ...: names in JSON need not be names in Python."""
        fields = [(f"f{k}", kind, None) for k, kind in enumerate(types.values())]
        names = {f"f{k}": name for k, name in enumerate(types)}
        return msgspec.defstruct("Row", fields, rename=names, forbid_unknown_fields=True)

    def columns(self, rows: list[Any], first: int, prefix: str) -> tuple[dict[str, pa.Array], pa.StructArray]:
        """Make a column of each field, and one of all of them: text, id, and the values of the metadata.

        Args:
            rows: as `decode` gives them.
            first: number of the first in its unit.
            prefix: of the ids of rows without one.

        Raises:
            AttributeError: a row has no metadata.
        """
        found = {name: list(map(attrgetter(path), rows)) for name, path in self.reach.items()}
        ids = found["id"]
        if None in ids:
            ids = [f"{prefix}/{k}" if v is None else v for k, v in enumerate(ids, first)]
        arrays = {"text": pa.array(found["text"], pa.string()), "id": pa.array(ids, pa.string())}
        for name, kind in self.metadata.items():
            arrays[f"metadata.{name}"] = pa.array(found[f"metadata.{name}"], _ARROW[kind])
        return arrays, pa.StructArray.from_arrays([*arrays.values()], ["text", "id", *self.metadata])


def as_documents(batch: pa.RecordBatch) -> pa.RecordBatch | None:
    """Give what a writer gets of the documents of the rows that are left; None where rows are not simple."""
    rows = batch.column(ROWS)
    kinds = [f.name for f in rows.dictionary.type]
    if WHOLE not in kinds:
        return None
    left = rows.dictionary.take(rows.indices).flatten()
    parts = dict(zip(kinds, left, strict=True))
    text, name, *own = parts[WHOLE].flatten()
    about, n = batch.schema.metadata, len(text)
    added = {SOURCE: b"full", UNIT: b"unit", ROW: None, FILE_PATH: b"shown"}
    metadata = dict(zip([f.name for f in parts[WHOLE].type][2:], own, strict=True))
    for field, key in added.items():
        if key is None:
            metadata[field] = parts[NUMBER]
        elif key in about:
            metadata[field] = pa.repeat(pa.scalar(about[key].decode(), pa.string()), n)
    struct = pa.StructArray.from_arrays([*metadata.values()], [*metadata])
    return pa.RecordBatch.from_arrays([text, name, struct], ["text", "id", "metadata"])


def whole_rows(rows: list[Any], text_key: str, id_key: str) -> WholeRows | None:
    """Look at the rows of a block; None where some are not simple."""
    kinds: dict[str, set[type]] = {}
    for row in rows:
        if not isinstance(row, dict) or not row.keys() <= {text_key, id_key, "metadata"}:
            return None
        metadata = row.get("metadata")
        if not isinstance(metadata, dict) or not isinstance(row.get(id_key), str | None):
            return None
        for name, value in metadata.items():
            kinds.setdefault(name, set()).add(type(value))
    if not kinds or not _OURS.isdisjoint(kinds):
        return None
    metadata_types: dict[str, type] = {}
    for name, seen in kinds.items():
        one = seen - {type(None)}
        kind = float if one == {int, float} else next(iter(one)) if len(one) == 1 else None
        if kind not in _ARROW:
            return None
        metadata_types[name] = kind
    return WholeRows(text_key, id_key, metadata_types)
