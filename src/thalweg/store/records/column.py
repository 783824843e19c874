"""The values of one column in one block, as arrays: what the writer gathers, hashes, counts and hands to Arrow.

Decides how a list of Python values becomes flat arrays. Knows no file and no Arrow.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.core.sample import ABSENT, Ragged, offsets_of
from thalweg.store.records import hashing, nested
from thalweg.store.records.fingerprint import Content
from thalweg.store.records.kinds import JSON, NULL, Kind, conform


@dataclass(slots=True)
class Column:
    """One column of a block.

    Args:
        kind: its type.
        values: numbers (n,); or the elements of all arrays end to end (T,); or UTF-8, bytes or nested values as
            uint8 (T,).
        offsets: int64 (n + 1,) in elements of `values`, None for numbers. Rows without a value are empty.
        present: bool (n,), which rows have the key; None: all.
        nulls: bool (n,), which rows hold None; None: no row.
        shapes: int64 (n, rank) of arrays of rank 2 or more.
    """

    kind: Kind
    values: NDArray[Any]
    offsets: NDArray[np.int64] | None = None
    present: NDArray[np.bool_] | None = None
    nulls: NDArray[np.bool_] | None = None
    shapes: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        """Count the rows."""
        return len(self.values) if self.offsets is None else len(self.offsets) - 1

    @property
    def valid(self) -> NDArray[np.bool_] | None:
        """Rows that have a value other than None, bool (n,); None: all."""
        if self.present is None and self.nulls is None:
            return None
        valid = np.ones(len(self), bool) if self.present is None else self.present.copy()
        return valid if self.nulls is None else valid & ~self.nulls

    def spans(self) -> NDArray[np.uint64]:
        """Hash the bytes of each row with xxh3_64; uint64 (n,)."""
        assert self.offsets is not None
        data = np.ascontiguousarray(self.values).data.cast("B")
        return hashing.of_spans(data, self.offsets * self.values.dtype.itemsize)

    def hashes(self, spans: NDArray[np.uint64] | None = None) -> NDArray[np.uint64]:
        """Hash each value; uint64 (n,). `spans`, where known already, saves hashing the bytes."""
        base = self.kind.base
        if self.kind == NULL:
            return np.full(len(self), hashing.NULL_HASH)
        if self.kind == JSON:
            out = self._json_hashes()
        elif self.offsets is None:
            out = hashing.of_numbers(self.values, base)
        else:
            if len(self.kind.dims) == 1:
                out = hashing.of_arrays(base, self.values, self.offsets)
                return out if self.nulls is None else np.where(self.nulls, hashing.NULL_HASH, out)
            tag = {"str": hashing.TEXT_TAG, "bytes": hashing.BYTES_TAG}.get(base)
            if tag is None:
                tag = hashing.array_tag(base, len(self.kind.dims))
            out = hashing.tagged(self.spans() if spans is None else spans, tag)
            if self.shapes is not None:
                out = out ^ hashing.of_shapes(self.shapes)
        return out if self.nulls is None else np.where(self.nulls, hashing.NULL_HASH, out)

    def content(self) -> Content | None:
        """Give the arrays of rank 1 for the fingerprint, as bytes and where each row begins; None: there are none."""
        if self.kind == JSON:
            return content_of(self.to_list())
        if len(self.kind.dims) != 1 or self.offsets is None or not len(self.values):
            return None
        data = np.ascontiguousarray(self.values).data.cast("B")
        return data, self.offsets * self.values.dtype.itemsize

    def _json_hashes(self) -> NDArray[np.uint64]:
        """Hash nested values by their bytes, and simple ones as their own type would."""
        assert self.offsets is not None
        out = hashing.tagged(self.spans(), hashing.JSON_TAG)
        sizes = np.diff(self.offsets)
        first = self.values[np.minimum(self.offsets[:-1], max(len(self.values) - 1, 0))] if len(self.values) else sizes
        nests = ((first >= 0x80) & (first <= 0x9F)) | (
            (first >= 0xDC) & (first <= 0xDF)
        )  # MessagePack's lists and maps
        for i in np.flatnonzero(~nests & (sizes > 0)).tolist():
            raw = self.values[self.offsets[i] : self.offsets[i + 1]].tobytes()
            out[i] = hashing.of_value(nested.decode(raw), nested.encode)
        return out

    def to_list(self) -> list[Any]:
        """Give the values back as they were put in; rows without the key give None."""
        if self.kind == NULL:
            return [None] * len(self)
        if self.offsets is None:
            found = list(self.values) if self.kind.base not in ("int", "float", "bool") else self.values.tolist()
        else:
            bounds = self.offsets.tolist()
            rows = [self.values[a:b] for a, b in itertools.pairwise(bounds)]
            found = [self._one(i, row) for i, row in enumerate(rows)]
        valid = self.valid
        return found if valid is None else [v if ok else None for v, ok in zip(found, valid.tolist(), strict=True)]

    def _one(self, i: int, row: NDArray[Any]) -> Any:
        if self.kind.is_array:
            return row if self.shapes is None else row.reshape(self.shapes[i])
        if not len(row) and self.kind == JSON:
            return None
        return READ[self.kind.base](row.tobytes())


def content_of(values: Sequence[Any]) -> Content | None:
    """Do the same for a list of values, of which some are arrays of rank 1."""
    found = [v.tobytes() if isinstance(v, np.ndarray) and v.ndim == 1 else b"" for v in values]
    if not any(found):
        return None
    offsets = offsets_of([len(f) for f in found])
    return memoryview(b"".join(found)), offsets


READ: dict[str, Callable[[bytes], Any]] = {"str": bytes.decode, "bytes": bytes, "json": nested.decode}


WRITE: dict[str, Callable[[Any], bytes]] = {"str": nested.utf8, "bytes": bytes, "json": nested.encode}


def from_values(values: Sequence[Any], kind: Kind, *, holes: bool = True) -> Column:
    """Lay values of one kind end to end. None and ABSENT are allowed anywhere, unless `holes` is false.

    Strings, bytes, nested values and arrays of rank 1 come as the bytes that `prepared` gives.
    """
    n = len(values)
    present = nulls = None
    if holes and any(v is ABSENT for v in values):
        present = np.fromiter((v is not ABSENT for v in values), bool, n)
    if holes and any(v is None for v in values):
        nulls = np.fromiter((v is None for v in values), bool, n)
    if kind == NULL:
        return Column(kind, np.zeros(n, np.uint8), None, present, nulls)
    some = values if present is None and nulls is None else [v for v in values if v is not ABSENT and v is not None]
    if kind.is_number:
        filled = np.zeros(n, kind.dtype)
        valid = Column(kind, filled, None, present, nulls).valid
        filled[slice(None) if valid is None else valid] = some
        return Column(kind, filled, None, present, nulls)
    offsets = np.zeros(n + 1, np.int64)
    missing = len(some) < n
    if missing:
        sizes = [0 if v is ABSENT or v is None else _size(v) for v in values]
    else:
        sizes = list(map(_size if len(kind.dims) > 1 else len, values))
    np.cumsum(sizes, out=offsets[1:])
    if len(kind.dims) == 1:
        offsets //= kind.dtype.itemsize  # arrays of rank 1 come as bytes
    flat = np.frombuffer(b"".join(some), np.uint8)
    if not kind.is_array:
        return Column(kind, flat, offsets, present, nulls)
    shapes = None
    if len(kind.dims) > 1:
        empty = (0,) * len(kind.dims)
        shapes = np.array([empty if v is ABSENT or v is None else v.shape for v in values], np.int64)
    return Column(kind, flat.view(kind.dtype), offsets, present, nulls, shapes)


def _size(value: Any) -> int:
    return value.size if isinstance(value, np.ndarray) else len(value)


def from_batch(values: Any, kind: Kind) -> Column:
    """Take a whole column: Ragged or numbers without copying where the type is right, else a list of values.

    Raises:
        SampleError: a value that is outside the declared type; the first such row is named.
    """
    if isinstance(values, Ragged):
        flat = values.values
        if flat.dtype != kind.dtype:
            flat = conform(flat, Kind(kind.base, (-1,) * flat.ndim))
        offsets, shapes = values.offsets, None
        if flat.ndim > 1:
            trail = flat.shape[1:]
            shapes = np.empty((len(offsets) - 1, flat.ndim), np.int64)
            shapes[:, 0], shapes[:, 1:] = np.diff(offsets), trail
            offsets = offsets * int(np.prod(trail))
        flat = np.ascontiguousarray(flat).reshape(-1)
        return Column(kind, flat, np.ascontiguousarray(offsets, np.int64), None, None, shapes)
    if isinstance(values, np.ndarray) and values.ndim == 1:
        whole = values if values.dtype == kind.dtype else conform(values, Kind(kind.base, (-1,)))
        return Column(kind, np.ascontiguousarray(whole))
    return from_values([v if v is None else prepared(conform(v, kind), kind) for v in values], kind)


def prepared(value: Any, kind: Kind) -> Any:
    """Bring one conforming value into the form that `from_values` joins: bytes, or a contiguous array of its own."""
    if value is None or kind.is_number or kind == NULL:
        return value
    if not kind.is_array:
        return WRITE[kind.base](value)
    array = np.array(value, kind.dtype, order="C")
    return array.tobytes() if array.ndim == 1 else array


def as_json(column: Column) -> Column:
    """Turn a typed column into nested values: where a later row has another type."""
    values: list[Any] = [nested.encode(v) for v in column.to_list()]
    if column.nulls is not None:
        values = [None if null else v for v, null in zip(values, column.nulls.tolist(), strict=True)]
    if column.present is not None:
        values = [v if there else ABSENT for v, there in zip(values, column.present.tolist(), strict=True)]
    return from_values(values, JSON)


def pieces(column: Column, a: int, b: int) -> Column:
    """Give rows [a, b) without copying."""
    present = None if column.present is None else column.present[a:b]
    nulls = None if column.nulls is None else column.nulls[a:b]
    shapes = None if column.shapes is None else column.shapes[a:b]
    if column.offsets is None:
        return Column(column.kind, column.values[a:b], None, present, nulls, shapes)
    first, last = int(column.offsets[a]), int(column.offsets[b])
    return Column(column.kind, column.values[first:last], column.offsets[a : b + 1] - first, present, nulls, shapes)
