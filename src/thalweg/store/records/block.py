"""Rows on their way to a shard: gathered one by one, or given as columns, until they make a block.

Decides how rows become columns: which keys a row has, which type a column has from here on, what a row's id is.
Knows no file.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.core.errors import RecordsError, SampleError, nearest
from thalweg.core.sample import ABSENT, INPUT_IDS, Ragged, Sample
from thalweg.store.records import hashing
from thalweg.store.records.column import Column, from_batch, from_values, pieces, prepared
from thalweg.store.records.fingerprint import Content
from thalweg.store.records.kinds import JSON, NULL, STANDARD, Kind, conform, join, of
from thalweg.store.records.plain import Plain

MAX_COLUMNS = 1000
_FEW = 4096  # rows hashed at once: what is worked with in between stays in the cache, a third of the time of 16,384
KeyList = tuple[str, ...]


@dataclass(slots=True)
class Block:
    """Rows as columns. `keys[key_of[i]]` are the keys of row i in their order; `ids`: a text for each row, or none."""

    n: int
    columns: dict[str, Column]
    keys: list[KeyList]
    key_of: NDArray[np.int32]
    own_ids: list[str | None] | None = None

    @classmethod
    def of(cls, plain: Plain) -> "Block":
        """Make one of rows that were gathered the short way. It holds until more are gathered."""
        return cls(plain.n, plain.columns(), [plain.keys], np.zeros(plain.n, np.int32))

    def split(self, rows: int, nbytes: int) -> "Iterator[Block]":
        """Cut into blocks of at most so many rows and about so many bytes, without copying."""
        total = sum(c.values.nbytes for c in self.columns.values())
        step = max(1, min(rows, int(nbytes * self.n / total) if total else rows))
        for a in range(0, self.n, step):
            b = min(a + step, self.n)
            columns = {name: pieces(c, a, b) for name, c in self.columns.items()}
            own = None if self.own_ids is None else self.own_ids[a:b]
            yield Block(b - a, columns, self.keys, self.key_of[a:b], own)

    def light(self) -> NDArray[np.uint64]:
        """Hash each row lightly; uint64 (n,)."""
        out = np.empty(self.n, np.uint64)
        for a in range(0, self.n, _FEW):
            b = min(a + _FEW, self.n)
            some = ((name, pieces(c, a, b)) for name, c in self.columns.items())
            out[a:b] = hashing.of_rows(b - a, ((name, c.hashes(), c.present) for name, c in some))
        return out

    def contents(self) -> dict[str, Content]:
        """Give the contents of array columns for the fingerprint."""
        found = ((name, c.content()) for name, c in self.columns.items())
        return {name: content for name, content in found if content is not None}

    def ids(self) -> list[str | None] | None:
        """Give the id of each row where it has one; None: no row has."""
        column = self.columns.get("id")
        if column is None:
            return self.own_ids
        values = [None if v is None else str(v) for v in column.to_list()]
        if self.own_ids is None:
            return values
        return [v if own is None else own for v, own in zip(values, self.own_ids, strict=True)]

    def id_hashes(self) -> NDArray[np.uint64]:
        """Hash the id of each row with xxh3_64, 0 where it has none; uint64 (n,)."""
        column = self.columns.get("id")
        if self.own_ids is None and column is not None and column.kind.base == "str" and column.valid is None:
            return column.spans()
        ids = self.ids()
        return np.zeros(self.n, np.uint64) if ids is None else hashing.of_text(ids)


@dataclass(slots=True)
class Pending:
    """One column of the rows gathered so far."""

    kind: Kind
    declared: bool
    values: list[Any] = field(default_factory=list[Any])
    holes: bool = False
    plain: Any = None  # dtype of arrays of rank 1 that need no check

    def __post_init__(self) -> None:
        """See which values need no check."""
        self._note()

    def _note(self) -> None:
        self.plain = self.kind.dtype if self.kind.dims == (-1,) else None

    def ready(self, value: Any) -> Any:
        """Bring a value into the form that is joined at the end, widening the column's type if need be."""
        kind = self.kind
        if type(value) is np.ndarray and value.dtype is self.plain and value.ndim == 1:
            return value.tobytes()
        if value is None:
            self.holes = True
            return None
        if self.declared:
            return prepared(conform(value, kind), kind)
        found = of(value)
        if found != kind:
            joined = join(kind, found)
            ready = prepared(value, joined)
            self._widen(joined)
            return ready
        return prepared(value, kind)

    def _widen(self, kind: Kind) -> None:
        if kind == JSON and self.kind not in (JSON, NULL):
            held = from_values(self.values, self.kind)
            self.values = [
                v if v is None or v is ABSENT else prepared(item, JSON)
                for v, item in zip(self.values, held.to_list(), strict=True)
            ]
        self.kind = kind
        self._note()


def _check_id(id: Any) -> None:  # noqa: A002
    """Refuse an id that is no text while its row can still be refused."""
    if not isinstance(id, str):
        raise SampleError(f"an id of type {type(id).__name__!r}", fix="give text, such as str(id)")
    try:
        id.encode()
    except UnicodeEncodeError as error:
        raise SampleError(f"an id that is no text: {error}") from error


class Rows:
    """Gathers rows into one block.

    Args:
        declared: the types that the user declared; other columns are refused if there are any. Standard columns
            have their types in any case.
    """

    def __init__(self, declared: Mapping[str, Kind] | None) -> None:
        self.declared = declared
        self.kinds: dict[str, Kind] = {}
        self.clear()

    def clear(self) -> None:
        """Forget the rows; what is known of types stays."""
        self.n = self.nbytes = 0
        self._pending: dict[str, Pending] = {}
        self._keys: dict[KeyList, int] = {}
        self._key_of: list[int] = []
        self._ids: list[str | None] = []
        self._any_id = False
        self._last: tuple[tuple[KeyList, int], list[tuple[str, Pending]]] | None = None  # keys of the row before

    def add(self, sample: Sample, id: str | None) -> None:  # noqa: A002
        """Take one row, or leave no trace of it.

        Raises:
            SampleError: a value that does not fit.
        """
        if id is None and self._last is not None and self._add_plain(sample, *self._last):
            return
        if type(sample) is not dict and not isinstance(sample, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SampleError(f"a row of type {type(sample).__name__!r}", fix="give a dict of column name to value")
        if id is not None:
            _check_id(id)
        n, pending, name = self.n, self._pending, ""
        try:
            for name, value in sample.items():
                column = pending.get(name)
                if column is None:
                    column = self._open(name, value)
                ready = column.ready(value)
                column.values.append(ready)
                self.nbytes += len(ready) if type(ready) is bytes else getattr(ready, "nbytes", 16)
        except Exception as error:
            for column in pending.values():
                del column.values[n:]
            if isinstance(error, SampleError):
                error.where = f"{error.where or ''} column {name!r}".strip()
            raise
        if len(sample) < len(pending):
            for column in pending.values():
                if len(column.values) == n:
                    column.values.append(ABSENT)
                    column.holes = True
        keys = tuple(sample)
        number = self._keys.setdefault(keys, len(self._keys))
        self._key_of.append(number)
        self._ids.append(id)
        self._last = ((keys, number), [(name, pending[name]) for name in keys]) if len(keys) == len(pending) else None
        self._any_id = self._any_id or id is not None
        self.n = n + 1

    def _add_plain(self, sample: Sample, keys: tuple[KeyList, int], columns: list[tuple[str, Pending]]) -> bool:
        """Take a row of plain arrays that has the keys of the row before: a third of the time of the long way."""
        if type(sample) is not dict or len(sample) != len(columns) or (len(columns) > 1 and tuple(sample) != keys[0]):
            return False
        for name, column in columns:
            value = sample.get(name)
            if type(value) is not np.ndarray or value.dtype is not column.plain or value.ndim != 1:
                return False
        size = 0
        for name, column in columns:
            data = sample[name].tobytes()
            column.values.append(data)
            size += len(data)
        self.nbytes += size
        self._key_of.append(keys[1])
        self._ids.append(None)
        self.n += 1
        return True

    def last_ids(self) -> tuple[int, int]:
        """Give the lowest and highest token id of the row added last; (0, 0) where it has none."""
        column = self._pending.get(INPUT_IDS)
        raw = column.values[-1] if column is not None else None
        if column is None or not isinstance(raw, bytes) or not raw or column.kind.dtype.kind not in "iu":
            return 0, 0
        ids = np.frombuffer(raw, column.kind.dtype)
        return int(ids.min()), int(ids.max())

    def take_back(self) -> None:
        """Forget the row added last."""
        for column in self._pending.values():
            del column.values[-1]
        del self._key_of[-1], self._ids[-1]
        self._last = None
        self.n -= 1

    def kind_of(self, name: str, example: Any) -> tuple[Kind, bool]:
        """Give the type under which a column is taken, and whether it is declared.

        Raises:
            SampleError: the column is not in the declared schema.
        """
        if self.declared is not None:
            kind = self.declared.get(name)
            if kind is None:
                raise SampleError(f"column {name!r} is not in the schema", fix=nearest(name, self.declared))
            return kind, True
        if name in STANDARD:
            return STANDARD[name], True
        if not isinstance(name, str) or name.startswith("__"):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SampleError(
                f"{name!r} is no name of a column", fix="use text that does not begin with two underscores"
            )
        if len(self.kinds.keys() | self._pending.keys() | {name}) > MAX_COLUMNS:
            raise SampleError(f"more than {MAX_COLUMNS} columns", fix="put keys that vary into one column as a dict")
        known = self.kinds.get(name, NULL)
        return (known if known != NULL else NULL if example is None else of(example)), False

    def _open(self, name: str, value: Any) -> Pending:
        kind, declared = self.kind_of(name, value)
        column = Pending(kind, declared, [ABSENT] * self.n, self.n > 0)
        self._pending[name] = column
        return column

    def take(self) -> Block:
        """Give the rows as a block and start anew."""
        columns = {k: from_values(p.values, p.kind, holes=p.holes) for k, p in self._pending.items()}
        self.kinds.update({k: c.kind for k, c in columns.items()})
        ids = self._ids if self._any_id else None
        block = Block(self.n, columns, list(self._keys), np.array(self._key_of, np.int32), ids)
        self.clear()
        return block

    def plain_kinds(self) -> dict[str, Kind] | None:
        """Give the types of the columns where all rows so far may take the short way, else None."""
        columns = self._pending
        even = len(self._keys) == 1 and not self._any_id and bool(columns)
        if not even or any(c.plain is None or c.holes for c in columns.values()):
            return None
        return {name: c.kind for name, c in columns.items()}

    def put_back(self, plain: Plain) -> None:
        """Take rows that were gathered the short way, as the long way would have."""
        for row in zip(*(c.to_list() for c in plain.columns().values()), strict=True):
            self.add(dict(zip(plain.keys, row, strict=True)), None)
        plain.clear()

    def from_columns(self, columns: Mapping[str, Any], ids: Sequence[str] | None) -> Block:
        """Take whole columns: Ragged, numbers (n,) or lists of values, of equal length.

        Raises:
            RecordsError: lengths that differ.
            SampleError: a value that does not fit, or an id that is no text.
        """
        for one in ids or ():
            _check_id(one)
        sizes = {name: len(values) for name, values in columns.items()}
        if len(set(sizes.values())) != 1 or (ids is not None and len(ids) not in sizes.values()):
            raise RecordsError(f"columns of different lengths: {sizes}", fix="give every column one value a row")
        n = next(iter(sizes.values()))
        out: dict[str, Column] = {}
        for name, values in columns.items():
            kind = self._batch_kind(name, values)
            out[name] = from_batch(values, kind)
        self.kinds.update({k: join(self.kinds.get(k, NULL), c.kind) for k, c in out.items()})
        return Block(n, out, [tuple(columns)], np.zeros(n, np.int32), list(ids) if ids is not None else None)

    def _batch_kind(self, name: str, values: Any) -> Kind:
        if isinstance(values, Ragged):
            found = of(values.values)
        elif isinstance(values, np.ndarray) and values.ndim == 1:
            found = Kind("bool_" if values.dtype == bool else values.dtype.name)
        else:
            found = NULL
            for value in values:
                found = join(found, of(value))
        kind, declared = self.kind_of(name, None)
        return kind if declared else found
