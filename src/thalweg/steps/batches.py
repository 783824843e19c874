"""Rows in columns: steps that take Arrow record batches, and the ways from lines to batches and back to documents.

A batch of JSONL holds the columns that were asked for ("text", "metadata.score", ...) and `rows`: a dictionary column,
so that dropping rows copies nothing, of each row's number and, where asked for, its line (the original bytes, newline
included) and what a writer of columns gets of it. Decides when a chain runs in batches. What is not asked for is never
decoded, and a row that nothing changed is written as the bytes that were read.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import msgspec
import numpy as np
import pyarrow as pa

from thalweg.steps.readers.lines import NEWLINE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

ROWS = "rows"
LINE = "line"  # asked for by steps that write rows as they were read
WHOLE = "*"  # asked for by steps that write whole documents; there where rows are simple: see `readers.whole_rows`
LENGTH = "text.length"  # characters of the text, which need not become a column for it
NUMBER = "row"  # number of a row in its unit


@runtime_checkable
class TakesBatches(Protocol):
    """A step that can work on record batches.

    `columns` names what it looks at; `prefers_batches` says that a chain should run in batches for its sake.
    """

    columns: tuple[str, ...]
    prefers_batches: bool
    takes_batches: bool

    def run_batches(self, data: Iterator[pa.RecordBatch], rank: int, world_size: int) -> Iterator[pa.RecordBatch]:
        """Yield the batches that go on."""
        ...


@runtime_checkable
class GivesBatches(Protocol):
    """A reader that can give record batches, and make documents of what is left of them."""

    @property
    def gives_batches(self) -> bool:
        """Say whether its settings allow it."""
        ...

    def read_batches(self, columns: tuple[str, ...], rank: int, world_size: int) -> Iterator[pa.RecordBatch]:
        """Read this rank's units."""
        ...

    def documents_of(self, batch: pa.RecordBatch) -> Iterator[Any]:
        """Make the documents of a batch's rows."""
        ...


def batch_prefix(pipeline: Sequence[Any]) -> int:
    """Count the steps at the start of a pipeline that run in batches, the reader included; 0 for none.

    Batches are used where a step prefers them, up to the last one in a row that takes them.
    """
    if not pipeline or not isinstance(pipeline[0], GivesBatches) or not pipeline[0].gives_batches:
        return 0
    end = 1
    while end < len(pipeline) and isinstance(pipeline[end], TakesBatches) and pipeline[end].takes_batches:
        end += 1
    return end if any(step.prefers_batches for step in pipeline[1:end]) else 0


def columns_of(steps: Sequence[Any]) -> tuple[str, ...]:
    """Collect what steps look at."""
    return tuple(dict.fromkeys(name for step in steps for name in step.columns))


def row_type(columns: Sequence[str]) -> Any:
    """Make a type that decodes only some fields of a JSON object; dots reach into objects."""
    inner: dict[str, list[str]] = {}
    for name in columns:
        head, _, tail = name.partition(".")
        inner.setdefault(head, []).extend([tail] if tail else [])
    fields: list[Any] = []
    for name, below in inner.items():
        kind: Any = Any if name != "text" else str | None
        if below:
            inside = row_type(below)
            fields.append((name, inside | None, msgspec.field(default_factory=inside)))
            continue
        fields.append((name, kind, None))
    return msgspec.defstruct("Row", fields)


def lengths_of(texts: list[Any]) -> pa.Array:
    """Count the characters of each text; of none, 0."""
    return numbers(np.array([len(text or "") for text in texts], np.int64))


def values_of(rows: list[Any], column: str) -> list[Any]:
    """Reach a column's value in each decoded row; None where it is absent."""
    try:
        return list(map(attrgetter(column), rows))
    except AttributeError:  # an object on the way is null somewhere
        return [_reach(row, column.split(".")) for row in rows]


def _reach(row: Any, names: list[str]) -> Any:
    for name in names:
        if row is None:
            return None
        row = getattr(row, name)
    return row


def without(data: Iterator[Any], columns: Sequence[str]) -> Iterator[Any]:
    """Drop columns that no later step looks at, before they are copied any further."""
    for batch in data:
        yield dropped(batch, columns)


def dropped(batch: Any, columns: Sequence[str]) -> Any:
    """Drop columns that are there."""
    return batch.drop_columns([name for name in columns if name in batch.schema.names])


def line_array(block: bytes | memoryview) -> pa.LargeBinaryArray:
    """Give the lines of a block as an Arrow array over its bytes, without a copy.

    Args:
        block: whole lines; a view begins where its buffer does.
    """
    whole: Any = block.obj if isinstance(block, memoryview) else block
    ends, find, at, size = [0], whole.find, 0, len(block)
    while at := find(b"\n", at, size) + 1:  # half the time of a search by numpy, which looks at each byte twice
        ends.append(at)
    if ends[-1] != size:
        ends.append(size)
    buffers = [None, pa.py_buffer(np.array(ends, np.int64)), pa.py_buffer(block)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(ends) - 1, buffers)


def count_lines(block: bytes | memoryview) -> int:
    """Count the lines of a block; a view begins where its buffer does."""
    whole: Any = block.obj if isinstance(block, memoryview) else block
    return int(whole.count(b"\n", 0, len(block))) + (block[-1] != NEWLINE)


def rows_of(values: pa.Array) -> pa.DictionaryArray:
    """Give values as a column whose rows can be dropped without copying them."""
    return pa.DictionaryArray.from_arrays(numbers(np.arange(len(values), dtype=np.int32)), values)


def lines_of(rows: pa.DictionaryArray) -> list[memoryview]:
    """Give the bytes of the lines that are left: a view of each run of consecutive ones."""
    if not len(rows):
        return []
    lines = rows.dictionary.field(LINE)
    _, offsets, values = lines.buffers()
    view, at = memoryview(values), np.frombuffer(offsets, np.int64, len(lines) + 1, lines.offset * 8)
    numbered = np.asarray(rows.indices)
    breaks = np.flatnonzero(np.diff(numbered) != 1)
    starts = at[numbered[np.concatenate([[0], breaks + 1])]].tolist()
    stops = at[numbered[np.append(breaks, -1)] + 1].tolist()
    return [view[a:b] for a, b in zip(starts, stops, strict=True)]


def numbers(values: NDArray[Any]) -> pa.Array:
    """Give a numpy array as an Arrow array over its memory."""
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])


def column(values: list[Any], name: str) -> pa.Array:
    """Make an Arrow array of a column's values; text is text, other types are what the values are."""
    if name == "text":
        return pa.array(values, pa.large_string())
    if set(map(type, values)) == {float}:
        return numbers(np.array(values))
    return pa.array(values)
