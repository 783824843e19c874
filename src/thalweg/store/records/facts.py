"""Numbers about each row that lie beside the data: length, trained tokens, media tokens, scalars that the user names.

Decides how they follow from a row's columns. Four bytes a row each. Knows no Arrow and no shard.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from thalweg.core.errors import SampleError
from thalweg.core.sample import IGNORE_INDEX, INPUT_IDS, LABELS, LOSS_SPANS
from thalweg.store.records.block import Block
from thalweg.store.records.column import Column

LENGTH, LABEL_TOKENS, MEDIA_TOKENS = "length", "label_tokens", "media_tokens"
STANDARD_FACTS = (LENGTH, LABEL_TOKENS, MEDIA_TOKENS)


def of_block(block: Block, named: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Compute the facts of a block's rows; each int32 or float32 (n,)."""
    ids = block.columns.get(INPUT_IDS)
    lengths = np.zeros(block.n, np.int64) if ids is None or ids.offsets is None else np.diff(ids.offsets)
    out: dict[str, NDArray[Any]] = {LENGTH: lengths, LABEL_TOKENS: label_tokens(block, lengths)}
    out[MEDIA_TOKENS] = _scalar(block.columns.get(MEDIA_TOKENS), block.n, MEDIA_TOKENS)
    for name in named:
        out[name] = _scalar(block.columns.get(name), block.n, name)
    return {k: _narrow(v, k) for k, v in out.items()}


def _narrow(values: NDArray[Any], name: str) -> NDArray[Any]:
    if values.dtype.kind == "f":
        return values.astype(np.float32)
    if len(values) and (values.max() >= 2**31 or values.min() < -(2**31)):
        raise SampleError(f"fact {name!r} holds {values.max()}, more than 4 bytes", fix="store it as a float")
    return values.astype(np.int32)


def _scalar(column: Column | None, n: int, name: str) -> NDArray[Any]:
    if column is None:
        return np.zeros(n, np.int32)
    if not column.kind.is_number:
        if name in STANDARD_FACTS:
            return np.zeros(n, np.int32)
        raise SampleError(f"fact {name!r} is a {column.kind}, not a number", fix="name columns of numbers in facts=")
    return column.values


def label_tokens(block: Block, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count the tokens in the loss after the shift: labelled ones, but for the first token of a row.

    Without labels or spans every token is labelled. int64 (n,).
    """
    spans, labels = block.columns.get(LOSS_SPANS), block.columns.get(LABELS)
    has = np.zeros(block.n, bool)
    out = np.maximum(lengths - 1, 0)
    if labels is not None and labels.offsets is not None:
        has = labels.valid if labels.valid is not None else np.ones(block.n, bool)
        on = np.concatenate([[0], np.cumsum(labels.values != IGNORE_INDEX)])
        starts = np.minimum(labels.offsets[:-1] + 1, labels.offsets[1:])
        out = np.where(has, on[labels.offsets[1:]] - on[starts], out)
    if spans is not None and spans.offsets is not None:
        pairs = spans.values.reshape(-1, 2).astype(np.int64)
        of_row = np.repeat(np.arange(block.n), np.diff(spans.offsets) // 2)
        first, last = np.maximum(pairs[:, 0], 1), np.minimum(pairs[:, 1], lengths[of_row])
        count = np.bincount(of_row, np.maximum(last - first, 0), block.n).astype(np.int64)
        there = spans.valid if spans.valid is not None else np.ones(block.n, bool)
        out = np.where(there & ~has, count, out)
    return out


class FactFile:
    """Streams one fact to a .npy file, which is made when the fact varies for the first time."""

    HEADER = 128

    def __init__(self, path: Path, dtype: Any) -> None:
        self.path, self.dtype = path, np.dtype(dtype)
        self._file: IO[bytes] | None = None
        self.rows = 0
        self._same: Any = None  # the value of all rows, until there is a file

    def write(self, values: NDArray[Any]) -> None:
        """Add the values of a block. Floats after integers: the file is float32 from there on, so it is rewritten."""
        if not len(values):
            return
        if values.dtype != self.dtype and values.dtype.kind == "f":
            self._to_float()
        values = np.ascontiguousarray(values, self.dtype)
        if self._same is None:
            self._same = values[0]
        if self._file is None and not (values == self._same).all():
            self._begin(np.full(self.rows, self._same, self.dtype))
        if self._file is not None:
            self._file.write(values.data)
        self.rows += len(values)

    def _begin(self, held: NDArray[Any]) -> None:
        self._file = self.path.open("wb")
        self._file.write(bytes(self.HEADER))
        self._file.write(held.data)

    def _to_float(self) -> None:
        held = self.dtype
        self.dtype = np.dtype(np.float32)
        if self._file is None:
            self._same = None if self._same is None else self.dtype.type(self._same)
            return
        self._file.close()
        self._begin(np.fromfile(self.path, held, offset=self.HEADER).astype(self.dtype))

    @property
    def constant(self) -> int | float | None:
        """The value that all rows share, or None: then there is a file."""
        return None if self._file is not None else 0 if self._same is None else self._same.item()

    def close(self) -> None:
        """Write the header: the shape is known now. Twice is fine."""
        if self._file is None or self._file.closed:
            return
        self._file.seek(0)
        self._file.write(npy_header(self.dtype, self.rows))
        self._file.close()


def npy_header(dtype: np.dtype[Any], rows: int) -> bytes:
    """Compose the header of a .npy file (format 1.0), always 128 bytes, for numbers (rows,)."""
    text = f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': ({rows},), }}"
    return b"\x93NUMPY\x01\x00\x76\x00" + text.ljust(117).encode() + b"\n"
