"""What a format is: units that can be read apart, rows of a unit, and a writer of one file.

Decides the shape that the modules of this folder have, and finds the one that belongs to a path. Knows no bytes.
"""

import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, runtime_checkable

from thalweg.core.errors import ConfigError, InputError, nearest
from thalweg.core.sample import Sample
from thalweg.store import fs


@dataclass(frozen=True, slots=True)
class Unit:
    """A stretch of input that is read on its own: a file, or a part of it from `start` to `end` (rows or bytes)."""

    path: str
    start: int = 0
    end: int = -1


class Writer(Protocol):
    """Writes rows; a context manager whose file appears whole after the block, nothing after an exception."""

    def write(self, sample: Sample) -> None:
        """Add one row."""
        ...

    def __enter__(self) -> Self:
        """Begin."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finish, or throw away."""
        ...


class WholeFile:
    """A file or directory that is made under another name and appears when it is whole.

    What a process that was killed left of it is removed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        fs.remove_left(path.parent, f".{path.name}.")
        self.temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
        self._life = fs.Life(self.temporary.with_name(self.temporary.name + ".life"), new=True).begin()

    def finish(self, *, keep: bool) -> None:
        """Give it its name, or remove it."""
        if keep:
            self.temporary.rename(self.path)
        elif self.temporary.is_dir():
            shutil.rmtree(self.temporary, ignore_errors=True)
        else:
            self.temporary.unlink(missing_ok=True)
        self._life.end()


@runtime_checkable
class Format(Protocol):
    """A module of this folder."""

    SUFFIXES: tuple[str, ...]
    ONE_FILE: bool  # a set is one file (or prefix), not a directory of files

    def units(self, path: str) -> list[Unit]:
        """Name the units of a path, in order."""
        ...

    def rows(self, unit: Unit) -> Iterator[Sample]:
        """Read a unit."""
        ...

    def writer(self, path: Path, schema: dict[str, str]) -> Writer:
        """Open a file for writing rows of these types."""
        ...


MODULES = {
    "records": "records_set",
    "jsonl": "jsonl",
    "parquet": "parquet",
    "datasets": "datasets_dir",
    "webdataset": "webdataset",
    "megatron": "megatron",
    "mds": "mds",
    "mindrecord": "mindrecord",
}


def get(name: str) -> Any:
    """Load the module of a format.

    Raises:
        ConfigError: an unknown name.
    """
    if name not in MODULES:
        raise ConfigError(f"format {name!r} is unknown", fix=nearest(name, MODULES))
    return import_module(f"thalweg.store.formats.{MODULES[name]}")


def detect(path: str) -> str:
    """Tell the format of a path that exists, by its name and what lies in it.

    Raises:
        InputError: it cannot be told, or is not there.
    """
    here = Path(path)
    if here.is_dir():
        names = {p.name for p in here.iterdir()}
        if any(n.startswith(("manifest.", "parts.")) for n in names):
            return "records"
        if "dataset_info.json" in names or "dataset_dict.json" in names:
            return "datasets"
        if "index.json" in names and any(n.endswith(".mds") or ".mds." in n for n in names):
            return "mds"
        found = {by_name(n) for n in names if not n.startswith(".")} - {None}
        if len(found) == 1:
            return str(found.pop())
    elif here.with_name(here.name + ".idx").exists() or here.suffix in (".bin", ".idx"):
        return "megatron"
    elif here.exists():
        name = by_name(here.name)
        if name is not None:
            return name
    else:
        raise InputError("no such file or directory", where=path, fix="check the path")
    raise InputError("the format cannot be told", where=path, fix=f"say one of {', '.join(MODULES)}")


def by_name(name: str) -> str | None:
    """Tell a format by the end of a name, None where it has none."""
    for ending in (".gz", ".zst"):
        name = name.removesuffix(ending)
    for known, module in MODULES.items():
        if module != "records_set" and name.endswith(tuple(get(known).SUFFIXES)):
            return known
    return None


def files(path: str, suffixes: tuple[str, ...]) -> list[str]:
    """List the files of a path in order of their names: itself, or what a directory holds with one of these endings.

    Raises:
        InputError: there are none.
    """
    here = Path(path)
    if not here.is_dir():
        return [path]
    ends = tuple(s + z for s in suffixes for z in ("", ".gz", ".zst"))
    found = sorted(str(p) for p in here.rglob("*") if p.is_file() and p.name.endswith(ends))
    if not found:
        raise InputError(f"no file that ends in {' or '.join(suffixes)}", where=path)
    return found
