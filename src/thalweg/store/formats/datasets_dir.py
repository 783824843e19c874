"""Directories of the `datasets` library (`save_to_disk`). Arrays are lists there; nested values travel as JSON text."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from thalweg.core.errors import InputError
from thalweg.core.extras import need
from thalweg.core.sample import Sample
from thalweg.store.formats import parquet
from thalweg.store.formats.format import Unit, WholeFile
from thalweg.store.records.kinds import parse

SUFFIXES, ONE_FILE = (".dataset",), True
_KINDS, _ROWS = "thalweg.json", 1000


def units(path: str) -> list[Unit]:
    """Cut the rows into runs."""
    found = _load(path)
    return [Unit(path, a, min(a + 50_000, len(found))) for a in range(0, len(found), 50_000)]


def _load(path: str) -> Any:
    found = need("datasets", why="the format of datasets directories").load_from_disk(path)
    if hasattr(found, "keys"):
        raise InputError(f"the directory holds splits: {', '.join(found)}", where=path, fix="name one of them")
    return found


def rows(unit: Unit) -> Iterator[Sample]:
    """Read a run. Lists stay lists, except where our own writer noted an array."""
    found, note = _load(unit.path), Path(unit.path) / _KINDS
    words = json.loads(note.read_text()) if note.exists() else {}
    kinds = {name: parse(word) for name, word in words.items()}
    for i in range(unit.start, unit.end):
        yield {name: parquet.restored(value, kinds.get(name)) for name, value in found[i].items()}


class DatasetsWriter:
    """Writes one directory."""

    def __init__(self, path: Path, schema: dict[str, str]) -> None:
        self._library = need("datasets", why="the format of datasets directories")
        self._file, self._kinds = WholeFile(path), {n: parse(w) for n, w in schema.items()}
        self._parquet = Path(str(self._file.temporary) + ".parquet")
        self._rows = parquet.ParquetSetWriter(self._parquet, schema)

    def write(self, sample: Sample) -> None:
        """Add one row."""
        self._rows.write(sample)

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finish, or throw away."""
        done = False
        try:
            self._rows.__exit__(kind, error, trace)
            if kind is None:
                self._save()
                done = True
        finally:
            self._file.finish(keep=done)
            self._parquet.unlink(missing_ok=True)

    def _save(self) -> None:
        import pyarrow.parquet as pq  # noqa: PLC0415

        table = pq.read_table(self._parquet, memory_map=True).replace_schema_metadata(None)
        found = self._library.Dataset(self._library.table.InMemoryTable(table))
        found.save_to_disk(str(self._file.temporary))
        words = {n: "json" if k.base == "null" else str(k) for n, k in self._kinds.items()}
        (self._file.temporary / _KINDS).write_text(json.dumps(words))


def writer(path: Path, schema: dict[str, str]) -> DatasetsWriter:
    """Open a directory for writing."""
    return DatasetsWriter(path, schema)
