"""Record sets as a format: runs of rows as units. They are written in parts, not through this module."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from thalweg.core.errors import ConfigError
from thalweg.core.sample import Sample
from thalweg.store.formats.format import Unit, Writer
from thalweg.store.records.reader import Records, open_records

SUFFIXES, ONE_FILE = (), False
_ROWS, _STEP = 65_536, 256


def units(path: str) -> list[Unit]:
    """Cut the rows into runs."""
    n = len(open_records(path))
    return [Unit(path, a, min(a + _ROWS, n)) for a in range(0, max(n, 1), _ROWS)]


def lineage(path: str) -> dict[str, Any]:
    """Say what made a set: its tokenizer and special ids stay those of what is made from it."""
    return dict(open_records(path).lineage)


def schema(path: str) -> dict[str, str]:
    """Give the type of every column of `rows`."""
    records = open_records(path)
    return {**({"id": "str"} if _names_rows(records) else {}), **records.schema}


def rows(unit: Unit) -> Iterator[Sample]:
    """Read a run. Ids that were given to `write` beside the rows are a column of them."""
    records = open_records(unit.path, verify=True)
    named = _names_rows(records)
    for a in range(unit.start, unit.end, _STEP):
        found = range(a, min(a + _STEP, unit.end))
        some = records[found.start : found.stop]
        yield from (
            ({"id": name, **row} for name, row in zip(records.ids(found), some, strict=True)) if named else some
        )


def _names_rows(records: Records) -> bool:
    return records.has_own_ids and "id" not in records.schema


def writer(path: Path, schema: dict[str, str]) -> Writer:
    """Refuse: parts write record sets."""
    raise ConfigError(f"no single file writes a record set of {len(schema)} columns", where=str(path))
