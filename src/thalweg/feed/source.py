"""What a source of a planned feed is: anything with a length that can be read by index.

Decides the protocol, and how plain objects (a list, a `datasets.Dataset`, any class with `len` and `[i]`) are seen
through it. Knows no order, batch or rank. Views of sources (parts, unions) are in `feed.views`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import xxhash
from numpy.typing import NDArray

from thalweg.core.errors import ConfigError, InputError, SampleError, nearest
from thalweg.core.sample import ABSENT, IGNORE_INDEX, INPUT_IDS, LABELS, LOSS_SPANS, Ragged, Sample
from thalweg.core.state import digest

Columns = Mapping[str, Any]


@runtime_checkable
class Source(Protocol):
    """Random access to samples. Every method may be called from several threads."""

    def __len__(self) -> int:
        """Count the samples."""
        ...

    @property
    def lengths(self) -> NDArray[np.int32] | None:
        """True token counts, int32 (n,), or None while they are unknown."""
        ...

    @property
    def facts(self) -> Mapping[str, NDArray[Any]]:
        """Columns of the table known without reading a sample: (n,) each."""
        ...

    @property
    def fingerprint(self) -> str:
        """Identity of the data in order; never of its path."""
        ...

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Names of the columns, None while unknown."""
        ...

    @property
    def lineage(self) -> Mapping[str, Any]:
        """What made the data: tokenizer digest, pad_id, eos_id, inputs. May be empty."""
        ...

    def read(self, indices: NDArray[np.int64], columns: Sequence[str] | None = None) -> Columns:
        """Read rows in the order asked: {column: Ragged | array | list}; ABSENT where a row does not have the key."""
        ...

    def ids(self, indices: NDArray[np.int64]) -> list[str]:
        """Give the ids of samples."""
        ...

    def id_hashes(self, indices: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Give xxh3_64 of the UTF-8 of the ids, read with the data."""
        ...


def hash_ids(ids: Sequence[str]) -> NDArray[np.uint64]:
    """Hash ids as records do: xxh3_64 of the UTF-8."""
    return np.fromiter((xxhash.xxh3_64_intdigest(i.encode()) for i in ids), np.uint64, len(ids))


def samples_of(read: Columns, n: int) -> list[dict[str, Any]]:
    """Turn {column: values of n rows} into n dicts. What a row does not have (ABSENT) is left out; null stays None."""
    rows: list[dict[str, Any]] = [{} for _ in range(n)]
    for name, values in read.items():
        for row, value in zip(rows, values, strict=True):
            if value is not ABSENT:
                row[name] = value
    return rows


def columns_of(samples: Sequence[Mapping[str, Any]], names: Iterable[str] = ()) -> dict[str, Any]:
    """Turn n dicts into {column: values}: token columns as `Ragged`, scalars as arrays, anything else as lists.

    `names`: the columns of no samples; samples name their own.
    """
    if samples:
        names = dict.fromkeys(name for s in samples for name in s)
    out: dict[str, Any] = {}
    for name in names:
        values = [s.get(name, ABSENT) for s in samples]
        whole = not any(v is None or v is ABSENT for v in values)
        if name in (INPUT_IDS, LABELS) and whole:
            out[name] = whole_numbers(name, values, np.int32 if name == INPUT_IDS else np.int64)
        elif name == LOSS_SPANS and whole:
            spans = [np.asarray(v, np.int32).reshape(-1, 2) for v in values]
            flat = np.concatenate([np.empty((0, 2), np.int32), *spans])
            out[name] = Ragged(flat, np.cumsum([0, *map(len, spans)]))
        else:
            out[name] = values
    return out


def whole_numbers(name: str, values: Sequence[Any], dtype: Any) -> Ragged:
    """Lay rows of token ids or labels end to end; never rounds, cuts or wraps a value.

    Raises:
        SampleError: a row that is no flat list of whole numbers in the range of `dtype`.
    """
    rows = [np.asarray(v) for v in values]
    limits = np.iinfo(dtype)
    for i, row in enumerate(rows):
        if row.ndim != 1 or (row.size and row.dtype.kind not in "iu"):
            raise SampleError(
                f"column {name!r} holds {row.dtype} of shape {row.shape} where whole numbers (n,) are needed",
                where=f"sample {i} of {len(rows)} read",
                fix="give token ids as a flat list of integers",
            )
        if row.size and row.dtype != dtype and not limits.min <= int(row.min()) <= int(row.max()) <= limits.max:
            raise SampleError(
                f"column {name!r} holds {int(row.max())} outside {np.dtype(dtype).name}",
                where=f"sample {i} of {len(rows)} read",
            )
    return Ragged.from_rows(rows, dtype)


def label_tokens(sample: Sample, length: int) -> int:
    """Count the tokens of a sample that are in the loss, after the shift: its first token never is."""
    if LABELS in sample:
        return int(np.count_nonzero(np.asarray(sample[LABELS])[1:] != IGNORE_INDEX))
    if LOSS_SPANS in sample:
        spans = np.maximum(np.asarray(sample[LOSS_SPANS], np.int64).reshape(-1, 2), 1)
        return int(np.maximum(spans[:, 1] - spans[:, 0], 0).sum())
    return max(length - 1, 0)


class ObjectSource:
    """Any object with `len` and `[i]` that gives dicts (or, as column "value", anything else).

    Args:
        obj: the object. It may have `lengths` (int (n,)), `fingerprint` or `_fingerprint` (str).
        id: name of the column that holds the id; else the row number.
        fingerprint: identity of the data, where the object has none.
        lengths: true token counts, where the object has none and they are known.
    """

    def __init__(
        self,
        obj: Any,
        *,
        id: str | None = None,  # noqa: A002
        fingerprint: str | None = None,
        lengths: Any = None,
    ) -> None:
        if isinstance(obj, Mapping) or not hasattr(obj, "__len__") or not hasattr(obj, "__getitem__"):
            raise InputError(
                f"{type(obj).__name__} has no len and [i] by position",
                where="from_dataset",
                fix="give an object with random access, or use from_stream for an iterable",
            )
        self.obj, self.id, self.n = obj, id, len(obj)
        self._lengths, self._fingerprint = lengths, fingerprint
        self._columns: tuple[str, ...] | None = None
        self._facts: dict[str, NDArray[Any]] | None = None
        if id is not None and self.n and id not in self._row(0):
            raise ConfigError(f"no column {id!r} to take ids from", where="from_dataset", fix=nearest(id, self._row(0)))

    def __len__(self) -> int:
        return self.n

    def _row(self, index: int) -> dict[str, Any]:
        value = self.obj[index]
        return dict(value) if isinstance(value, Mapping) else {"value": value}

    @property
    def lengths(self) -> NDArray[np.int32] | None:
        """Token counts: the object's own, or counted once where the samples are in memory; else None."""
        if self._lengths is None:
            own = getattr(self.obj, "lengths", None)
            if own is not None:
                self._lengths = own
            elif isinstance(self.obj, list | tuple) and (not self.n or INPUT_IDS in self._row(0)):
                self._lengths = [len(_needed(self._row(i), INPUT_IDS, i)) for i in range(self.n)]
        if self._lengths is None:
            return None
        counted: NDArray[np.int32] = np.asarray(self._lengths, np.int32)
        self._lengths = counted
        return counted

    @property
    def facts(self) -> Mapping[str, NDArray[Any]]:
        """`length` where it is known, and `label_tokens` of samples in memory that mark their loss."""
        if self._facts is None:
            lengths = self.lengths
            self._facts = {} if lengths is None else {"length": lengths}
            if lengths is not None and isinstance(self.obj, list | tuple):
                marked = {LABELS, LOSS_SPANS} & set(self.columns or ())
                if marked:
                    counts = [label_tokens(self._row(i), n) for i, n in enumerate(lengths.tolist())]
                    self._facts["label_tokens"] = np.array(counts, np.int64)
        return self._facts

    @property
    def fingerprint(self) -> str:
        """What was given, the object's own, or a hash of at most 64 rows spread over the data."""
        if self._fingerprint is None:
            own = getattr(self.obj, "fingerprint", None) or getattr(self.obj, "_fingerprint", None)
            self._fingerprint = own if isinstance(own, str) else self._sampled()
        return self._fingerprint

    def _sampled(self) -> str:
        picks = sorted({int(i) for i in np.linspace(0, max(self.n - 1, 0), 64)}) if self.n else []
        return "sampled-" + digest([self.n, [repr(_plain(self._row(i))) for i in picks]])

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Columns of the first row."""
        if self._columns is None and self.n:
            self._columns = tuple(self._row(0))
        return self._columns

    @property
    def lineage(self) -> Mapping[str, Any]:
        """Nothing is known of how a plain object was made, unless it says so."""
        own = getattr(self.obj, "lineage", None)
        return own if isinstance(own, Mapping) else {}

    def read(self, indices: NDArray[np.int64], columns: Sequence[str] | None = None) -> Columns:
        """Read rows one by one."""
        rows = [self._row(int(i)) for i in indices]
        if columns is not None:
            rows = [{c: r[c] for c in columns if c in r} for r in rows]
        return columns_of(rows, (self.columns or ()) if columns is None else columns)

    def ids(self, indices: NDArray[np.int64]) -> list[str]:
        """Give the id column, else row numbers."""
        if self.id is None:
            return [str(i) for i in indices.tolist()]
        return [str(_needed(self._row(int(i)), self.id, i)) for i in indices.tolist()]

    def id_hashes(self, indices: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Hash the ids."""
        return hash_ids(self.ids(indices))


def _needed(row: Mapping[str, Any], column: str, index: int) -> Any:
    value = row.get(column)
    if value is None:
        raise SampleError(f"no {column!r}", where=f"sample {index}", fix="give it to every sample, or leave these out")
    return value


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in row.items()}
