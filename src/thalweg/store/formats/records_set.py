"""Record sets as a format: runs of rows as units. They are written in parts, not through this module."""

from collections.abc import Iterator
from pathlib import Path

from thalweg.core.errors import ConfigError
from thalweg.core.sample import Sample
from thalweg.store.formats.format import Unit, Writer
from thalweg.store.records.reader import open_records

SUFFIXES, ONE_FILE = (), False
_ROWS, _STEP = 65_536, 256


def units(path: str) -> list[Unit]:
    """Cut the rows into runs."""
    n = len(open_records(path))
    return [Unit(path, a, min(a + _ROWS, n)) for a in range(0, n, _ROWS)]


def rows(unit: Unit) -> Iterator[Sample]:
    """Read a run."""
    records = open_records(unit.path, verify=True)
    for a in range(unit.start, unit.end, _STEP):
        yield from records[a : min(a + _STEP, unit.end)]


def writer(path: Path, schema: dict[str, str]) -> Writer:
    """Refuse: parts write record sets."""
    raise ConfigError(f"no single file writes a record set of {len(schema)} columns", where=str(path))
