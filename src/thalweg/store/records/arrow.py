"""Columns to Arrow arrays and the places of their buffers in a file.

Decides the Arrow type of every column at rest: large lists, large text, large binary, plain numbers, bits. Knows no
directory and no manifest.
"""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from thalweg.store.records.column import Column, as_json
from thalweg.store.records.kinds import JSON, NULL, Kind, parse
from thalweg.store.records.manifest import SHAPE, Stored


def stored(name: str, kind: Kind, width: str | None = None) -> Stored:
    """Say how a column is kept in a shard."""
    plain = "uint8" if kind.base == "bool_" and kind.is_array else kind.dtype.name if _numeric(kind) else "uint8"
    return Stored(name, str(kind), width or plain, len(kind.dims) > 1)


def _numeric(kind: Kind) -> bool:
    return kind.is_array or kind.is_number


def fits(block: Kind, shard: Kind) -> bool:
    """Whether a block's column can go into a shard whose column has another kind."""
    same = block.base == shard.base and len(block.dims) == len(shard.dims)
    return same or block == NULL or shard == JSON


def arrow_type(column: Stored) -> pa.DataType:
    """Give the Arrow type of a stored column."""
    kind = parse(column.kind)
    if kind.is_array:
        return pa.large_list(pa.from_numpy_dtype(np.dtype(column.width)))
    if kind.is_number:
        return pa.bool_() if kind.dtype == bool else pa.from_numpy_dtype(np.dtype(column.width))
    return {"str": pa.large_string(), "null": pa.null()}.get(kind.base, pa.large_binary())


def schema(columns: list[Stored]) -> pa.Schema:
    """Give the Arrow schema of a shard."""
    fields: list[Any] = []
    for column in columns:
        fields.append(pa.field(column.name, arrow_type(column), metadata={"thalweg.type": column.kind}))
        if column.shape:
            fields.append(pa.field(SHAPE + column.name, pa.list_(pa.int64(), len(parse(column.kind).dims))))
    return pa.schema(fields)


def arrays(column: Column | None, how: Stored, n: int) -> list[pa.Array]:
    """Encode one column of a block; None: no row has it."""
    kind = parse(how.kind)
    if column is None or column.kind == NULL:
        column = _empty(kind, n)
    elif column.kind.base != kind.base or len(column.kind.dims) != len(kind.dims):
        column = as_json(column)
    valid = column.valid
    nulls = 0 if valid is None else int(n - np.count_nonzero(valid))
    bits = None if valid is None or not nulls else pa.py_buffer(np.packbits(valid, bitorder="little"))
    kind_type = arrow_type(how)
    if kind == NULL:
        return [pa.nulls(n)]
    values = column.values
    if column.offsets is None:
        data = np.packbits(values, bitorder="little") if kind.dtype == bool else np.ascontiguousarray(values)
        return [pa.Array.from_buffers(kind_type, n, [bits, pa.py_buffer(data)], nulls)]
    offsets = pa.py_buffer(np.ascontiguousarray(column.offsets, np.int64))
    if not kind.is_array:
        return [pa.Array.from_buffers(kind_type, n, [bits, offsets, pa.py_buffer(np.ascontiguousarray(values))], nulls)]
    flat = values.view(np.uint8) if kind.base == "bool_" else values.astype(how.width, copy=False)
    child = pa.Array.from_buffers(kind_type.value_type, len(flat), [None, pa.py_buffer(np.ascontiguousarray(flat))])
    out = [pa.Array.from_buffers(kind_type, n, [bits, offsets], nulls, children=[child])]
    if how.shape:
        rank = len(kind.dims)
        shapes = column.shapes if column.shapes is not None else np.zeros((n, rank), np.int64)
        flat_shapes = pa.array(np.ascontiguousarray(shapes).reshape(-1))
        out.append(pa.FixedSizeListArray.from_arrays(flat_shapes, rank))
    return out


def _empty(kind: Kind, n: int) -> Column:
    none = np.ones(n, bool)
    if kind.is_number or kind == NULL:
        return Column(kind, np.zeros(n, kind.dtype if kind.is_number else np.uint8), None, None, none)
    values = np.empty(0, kind.dtype if kind.is_array else np.uint8)
    return Column(kind, values, np.zeros(n + 1, np.int64), None, none)


def places(batch: pa.RecordBatch, columns: list[Stored], base: int) -> list[int]:
    """Find the buffers of a batch that lies in a mapped file: validity, offsets, values, shape of each column.

    Returns:
        Byte positions in the file, -1 where there is no such buffer.
    """
    out: list[int] = []
    at = 0
    for column in columns:
        kind, buffers = parse(column.kind), batch.column(at).buffers()
        validity = buffers[0] if batch.column(at).null_count and kind != NULL else None
        if kind == NULL:
            found: list[Any] = [None, None, None]
        elif kind.is_number:
            found = [validity, None, buffers[1]]
        else:
            found = [validity, buffers[1], buffers[3] if kind.is_array else buffers[2]]
        at += 1
        shape = None
        if column.shape:
            shape = batch.column(at).buffers()[2]
            at += 1
        out += [-1 if b is None else b.address - base for b in (*found, shape)]
    return out


def checked(places_: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Put positions of empty buffers, which may lie anywhere, at the file's start."""
    return np.where((places_ < -1) | (places_ > size), 0, places_)
