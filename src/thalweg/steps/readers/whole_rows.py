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
from thalweg.steps.batches import numbers

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

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

    def columns(
        self, rows: list[Any], places: NDArray[np.int64], given: Mapping[str, str], *, shown: bool
    ) -> dict[str, pa.Array]:
        """Make a column of each field, and "*": the document's id and metadata, provenance included.

        Args:
            rows: as `decode` gives them.
            places: number of each row in its unit, int64 (n,).
            given: "prefix" of ids, "full" path of the file, "unit".
            shown: put the path into the metadata as a reader does.

        Raises:
            AttributeError: a row has no metadata.
        """
        found = {name: list(map(attrgetter(path), rows)) for name, path in self.reach.items()}
        ids = found["id"]
        if None in ids:
            ids = [f"{given['prefix']}/{k}" if v is None else v for k, v in zip(places.tolist(), ids, strict=True)]
        arrays = {"text": pa.array(found["text"], pa.string()), "id": pa.array(ids, pa.string())}
        for name, kind in self.metadata.items():
            arrays[f"metadata.{name}"] = pa.array(found[f"metadata.{name}"], _ARROW[kind])
        same = {SOURCE: given["full"], UNIT: given["unit"], ROW: None} | ({FILE_PATH: given["full"]} if shown else {})
        added = [
            numbers(places) if v is None else pa.repeat(pa.scalar(v, pa.string()), len(rows)) for v in same.values()
        ]
        metadata = pa.StructArray.from_arrays(
            [*(arrays[f"metadata.{name}"] for name in self.metadata), *added], [*self.metadata, *same]
        )
        return arrays | {"*": pa.StructArray.from_arrays([arrays["id"], metadata], ["id", "metadata"])}


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
