"""Raw files as random access: where each line begins, found once, in parallel, and kept.

Decides where an index is kept and when it is stale, and how a file becomes rows that can be read by number. How a
format is brought into that form is in `store.prepare`. Knows no feed.
"""

import os
import threading
import weakref
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from thalweg.core.errors import ConfigError, InputError, nearest
from thalweg.core.sample import ABSENT, Sample
from thalweg.store.prepare import Table, expand, format_of, prepare

_OPEN_FILES = 64
_FIRST_ROWS = 16  # rows that are tried until one can be read


class Files:
    """Rows of several files in order, read by number. Safe to share between threads, to fork and to pickle."""

    lengths = None

    def __init__(self, tables: Sequence[Table], id_column: str | None, columns: Sequence[str] | None) -> None:
        self._tables, self._id, self._wanted = list(tables), id_column, columns
        self._first = [0]
        for table in self._tables:
            self._first.append(self._first[-1] + table.rows)
        self._handles = Handles(_OPEN_FILES)

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Columns that were asked for; None: whatever a row has."""
        return None if self._wanted is None else tuple(self._wanted)

    @property
    def facts(self) -> Mapping[str, NDArray[Any]]:
        """Nothing is known of rows before they are read."""
        return {}

    @property
    def lineage(self) -> Mapping[str, Any]:
        """The files, by name and content."""
        return {"inputs": {t.name: t.digest for t in self._tables}}

    @property
    def fingerprint(self) -> str:
        """Identity of the contents in order; paths and times don't enter."""
        parts = [(t.format, t.digest, t.rows) for t in self._tables]
        return xxhash.xxh3_64_hexdigest(repr(parts).encode())

    def __len__(self) -> int:
        """Count the rows."""
        return self._first[-1]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the tables; files are opened again where they are read."""
        return (Files, (self._tables, self._id, self._wanted))

    def where(self, row: int) -> str:
        """Say which file and line a row is: "part-3.jsonl:912"."""
        k = bisect_right(self._first, row) - 1
        return f"{self._tables[k].name}:{self._tables[k].line(row - self._first[k])}"

    def __getitem__(self, index: Any) -> Any:
        """Give one row as a dict, or a slice as a list of dicts.

        Raises:
            IndexError: no such row.
            InputError: the line cannot be read; file and line are named.
        """
        if isinstance(index, slice):
            return [self._row(i) for i in range(*index.indices(len(self)))]
        row = int(index)
        row += len(self) if row < 0 else 0
        if not 0 <= row < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        return self._row(row)

    def _row(self, row: int) -> Sample:
        k = bisect_right(self._first, row) - 1
        sample = self._tables[k].read(row - self._first[k], self._handles)
        if self._wanted is None:
            return sample
        for name in self._wanted:
            if name not in sample and self._id != name:
                raise InputError(f"no column {name!r}", where=self.where(row), fix=nearest(name, sample))
        return {name: sample[name] for name in self._wanted if name in sample}

    def check_columns(self) -> None:
        """Look whether the columns that are named are in the first readable row of each file.

        Raises:
            ConfigError: one is not.
        """
        named = [*([] if self._id is None else [self._id]), *(self._wanted or ())]
        for table in self._tables if named else ():
            for row in range(min(table.rows, _FIRST_ROWS)):
                try:
                    sample = table.read(row, self._handles)
                except InputError:  # whoever reads it is told
                    continue
                for name in named:
                    if name not in sample:
                        where = f"{table.name}:{table.line(row)}"
                        what = f"no column {name!r}" + (" for the id" if name == self._id else "")
                        raise ConfigError(what, where=where, fix=nearest(name, sample))
                break

    def read(self, indices: Any, columns: Sequence[str] | None = None) -> dict[str, list[Any]]:
        """Read rows by columns: {name: list of k values}, ABSENT where a row has no such key."""
        rows = [self[int(i)] for i in np.asarray(indices).tolist()]
        names = columns if columns is not None else list(dict.fromkeys(name for row in rows for name in row))
        return {name: [row.get(name, ABSENT) for row in rows] for name in names}

    def ids(self, indices: Any) -> list[str]:
        """Give the ids of rows: a column where one was named, else "file:row"."""
        out: list[str] = []
        for row in np.asarray(indices).tolist():
            k = bisect_right(self._first, row) - 1
            if self._id is None:
                out.append(f"{self._tables[k].name}:{row - self._first[k]}")
                continue
            sample = self._tables[k].read(row - self._first[k], self._handles)
            if sample.get(self._id) is None:
                raise InputError(f"no {self._id!r} for the id", where=self.where(row), fix=nearest(self._id, sample))
            out.append(str(sample[self._id]))
        return out

    def id_hashes(self, indices: Any) -> NDArray[np.uint64]:
        """Give xxh3_64 of the UTF-8 of each id; uint64 (k,)."""
        return np.array([xxhash.xxh3_64_intdigest(i.encode()) for i in self.ids(indices)], np.uint64)

    def __repr__(self) -> str:
        """Say what is open."""
        return f"Files({len(self._tables)} files, rows={len(self)}, fingerprint={self.fingerprint!r})"


class Handles:
    """Descriptors of files that are read, the least recently used closed first. One thread at a time opens."""

    def __init__(self, most: int) -> None:
        self._most, self._open = most, OrderedDict[str, int]()
        self._lock, self._pid = threading.Lock(), os.getpid()
        weakref.finalize(self, _close, self._open)  # also where the interpreter ends, with its modules still there

    def read(self, path: str, start: int, end: int) -> bytes:
        """Read bytes [start, end) of a file.

        Raises:
            InputError: the file ends before that.
        """
        with self._lock:
            if self._pid != os.getpid():  # after a fork: the parent keeps its own
                self._open.clear()
                self._pid = os.getpid()
            fd = self._open.get(path)
            if fd is None:
                while len(self._open) >= self._most:
                    os.close(self._open.popitem(last=False)[1])
                fd = self._open[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._open.move_to_end(path)
            data = os.pread(fd, end - start, start)
        if len(data) < end - start:
            raise InputError(
                "the file is shorter than it was", where=f"{path}, offset {start + len(data)}", fix="open it again"
            )
        return data


def _close(handles: OrderedDict[str, int]) -> None:
    while handles:
        os.close(handles.popitem()[1])


def open_files(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    format: str = "auto",  # noqa: A002
    id: str | None = None,  # noqa: A002
    columns: Sequence[str] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> Files:
    """Open raw files as rows that are read by number.

    Args:
        paths: a path, a pattern such as "raw/*.jsonl", a directory, or a list of them; files of a pattern in order
            of their names.
        format: "jsonl", "json" (an array), "txt", "csv", "parquet"; "auto" goes by the name, then by the content.
        id: column that holds the id; None: "file:row".
        columns: columns to keep; None: all.
        cache_dir: where indices and unpacked files are kept; default `thalweg/files` in the user's cache directory.

    Raises:
        InputError: no file, or one that cannot be read; it is named.
        ConfigError: an unknown format, or a column that a file does not have.
    """
    names = expand([paths] if isinstance(paths, str | os.PathLike) else paths)
    cache = Path(cache_dir) if cache_dir is not None else default_cache()
    base = os.path.commonpath([os.path.dirname(os.path.abspath(n)) for n in names])  # noqa: PTH100, PTH120

    def one(path: str) -> Table:
        return prepare(path, os.path.relpath(path, base), format_of(path, format), cache)

    with ThreadPoolExecutor(min(8, len(names)), thread_name_prefix="thalweg-lines") as pool:
        found = Files(list(pool.map(one, names)), id, columns)
    found.check_columns()
    return found


def default_cache() -> Path:
    """Give the directory of indices: $THALWEG_CACHE or the user's cache directory."""
    home = os.environ.get("THALWEG_CACHE") or os.path.join(  # noqa: PTH118
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"),  # noqa: PTH111
        "thalweg",
    )
    return Path(home) / "files"


__all__ = ["ConfigError", "Files", "Table", "default_cache", "open_files"]
