"""How each raw format becomes rows that can be read by number, once, and kept in a cache directory.

Lines are indexed where they lie, in compressed files too if those are made of small members. Other compressed files,
JSON arrays and CSV are unpacked into the cache; Parquet becomes a record set there. An entry is named by the file's
path, size and time, and appears by rename, so that two processes that make it at once get the same. Knows no order of
files.
"""

import csv
import glob
import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from thalweg.core.errors import ConfigError, InputError, nearest
from thalweg.core.sample import Sample
from thalweg.store import fs
from thalweg.store.codec import ENDINGS, chunks, codec_of
from thalweg.store.framed import Framed, Reads, table_of

if TYPE_CHECKING:
    from thalweg.store.records.reader import Records

FORMATS = ("jsonl", "json", "txt", "csv", "parquet")
_SUFFIX = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".txt": "txt",
    ".text": "txt",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_BOM = b"\xef\xbb\xbf"
_CHUNK = 16 << 20


@dataclass
class Table:
    """Rows of one file.

    Args:
        name: short path, for ids and messages.
        format: of the original.
        digest: xxh3_128 of the original's bytes, in hex.
        rows: how many.
        path: the file that holds the lines, or the record set.
        index: first byte, end byte and line number of each row, int64 (rows, 3); None for a record set.
        index_path: where the index is.
        members_path: where the table of a compressed file's members is, if it is read through them.
    """

    name: str
    format: str
    digest: str
    rows: int
    path: str
    index: NDArray[np.int64] | None = None
    index_path: str | None = None
    members_path: str | None = None
    _framed: Framed | None = field(default=None, repr=False)
    _records: "Records | None" = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """Leave what is mapped behind; it is mapped again."""
        return {**self.__dict__, "index": None, "_records": None, "_framed": None}

    def line(self, row: int) -> int:
        """Give the line number of a row, from 1; in a record set, the row from 1."""
        return int(self._entries()[row, 2]) if self.index_path else row + 1

    def _entries(self) -> NDArray[np.int64]:
        index = self.index
        if index is None:
            assert self.index_path is not None
            try:
                index = self.index = np.load(self.index_path, mmap_mode="r")
            except (ValueError, OSError) as error:
                raise InputError(
                    f"the index of lines is damaged: {error}", where=self.index_path, fix="remove it"
                ) from error
        return index

    def read(self, row: int, files: Reads) -> Sample:
        """Read one row.

        Raises:
            InputError: it is not what the format says; file and line are named.
        """
        if self.index_path is None:
            from thalweg.store.records.reader import open_records  # noqa: PLC0415

            if self._records is None:
                self._records = open_records(self.path)
            return self._records[row]
        start, end, line = self._entries()[row].tolist()
        data = self._bytes(files, start, end)
        if self.format == "txt":
            return {"text": self._text(data, line)}
        try:
            value = msgspec.json.decode(data)
        except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
            raise InputError(f"a line is no JSON: {error}", where=f"{self.name}:{line}", fix=_advice(data)) from error
        return value if isinstance(value, dict) else {"value": value}

    def _bytes(self, files: Reads, start: int, end: int) -> bytes:
        if self.members_path is None:
            return files.read(self.path, start, end)
        if self._framed is None:
            self._framed = Framed(self.path, codec_of(self.path) or "", np.load(self.members_path))
        return self._framed.read(files, start, end)

    def _text(self, data: bytes, line: int) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise InputError(f"a line is no UTF-8: {error}", where=f"{self.name}:{line}") from error


def _advice(data: bytes) -> str:
    if b"NaN" in data or b"Infinity" in data:
        return "write NaN and infinity as null or as text: they are no JSON"
    return "repair the line, or map with on_error='quarantine'"


def expand(paths: Sequence[str | os.PathLike[str]]) -> list[str]:
    """Name the files of paths, patterns and directories.

    Raises:
        InputError: a path or pattern that names no file.
    """
    out: list[str] = []
    for path in [os.fspath(p) for p in paths]:
        folder = os.path.isdir(path)  # noqa: PTH112
        if folder:
            found = sorted(str(p) for p in Path(path).rglob("*") if p.is_file() and not p.name.startswith("."))
        else:
            found = [path] if os.path.exists(path) else sorted(glob.glob(path, recursive=True))  # noqa: PTH110, PTH207
        if not found:
            what, fix = ("no file in the folder", "check the path") if folder else ("no such file", _near(path))
            raise InputError(what, where=path, fix=fix)
        out += found
    if not out:
        raise InputError("no files are named", fix="give a path or a pattern")
    return out


def _near(path: str) -> str:
    folder = Path(path).parent
    names = [p.name for p in folder.iterdir()] if folder.is_dir() else []
    return nearest(Path(path).name, names) if names else "check the path"


def format_of(path: str, said: str) -> str:
    """Say which format a file has.

    Raises:
        ConfigError: a format that is not known.
        InputError: it cannot be told.
    """
    if said != "auto":
        if said not in FORMATS:
            raise ConfigError(f"format {said!r} is unknown", fix=nearest(said, FORMATS))
        return said
    stem = path
    for ending in ENDINGS:
        stem = stem.removesuffix(ending)
    found = _SUFFIX.get(Path(stem).suffix.lower())
    if found in (None, "json"):
        found = _by_content(path, found)
    return found


def _by_content(path: str, found: str | None) -> str:
    with Path(path).open("rb") as file:
        head = next(chunks(file, codec_of(path), path), b"")[:4096].removeprefix(_BOM).lstrip()
    if head.startswith(b"["):
        return "json"
    if head.startswith(b"{"):
        return "jsonl"  # also files called .json that hold one object a line
    if head.startswith(b"PAR1"):
        return "parquet"
    if found is None:
        raise InputError("the format cannot be told", where=path, fix=f"say format=: {', '.join(FORMATS)}")
    return found


def prepare(path: str, name: str, format_: str, cache: Path) -> Table:
    """Make a file readable by row number, or find what was made before.

    Raises:
        InputError: the file is damaged or not what its format says.
    """
    info = Path(path).stat()
    full = os.path.abspath(path)  # noqa: PTH100
    stem = xxhash.xxh3_64_hexdigest(full.encode())
    key = f"{stem}-{info.st_size:x}-{info.st_mtime_ns:x}-{format_}-3"
    entry = cache / key
    if not (entry / "about.json").exists():
        cache.mkdir(parents=True, exist_ok=True)
        _drop_stale(cache, stem, key)
        _make(full, name, format_, cache, entry)
    about = json.loads((entry / "about.json").read_text())
    lines = str(entry / "lines") if about["unpacked"] else full
    if format_ == "parquet":
        return Table(name, format_, about["digest"], about["rows"], str(entry / "records"))
    members = str(entry / "members.npy") if about.get("members") else None
    return Table(name, format_, about["digest"], about["rows"], lines, None, str(entry / "index.npy"), members)


def _drop_stale(cache: Path, stem: str, key: str) -> None:
    for old in cache.glob(f"{stem}-*"):
        if old.name != key:
            shutil.rmtree(old, ignore_errors=True)
    fs.remove_left(cache, ".making-")


def _make(path: str, name: str, format_: str, cache: Path, entry: Path) -> None:
    scratch = cache / f".making-{os.getpid()}-{os.urandom(6).hex()}"
    with fs.Life(scratch.with_name(scratch.name + ".life"), new=True):
        scratch.mkdir()
        try:
            about = _MAKE[format_](path, name, scratch)
            (scratch / "about.json").write_text(json.dumps(about))
            try:
                scratch.rename(entry)
            except OSError:
                if not (entry / "about.json").exists():
                    raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _hashed(path: str) -> str:
    digest = xxhash.xxh3_128()
    with Path(path).open("rb") as file:
        while piece := file.read(_CHUNK):
            digest.update(piece)
    return digest.hexdigest()


def _lines(path: str, name: str, scratch: Path) -> dict[str, Any]:
    codec = codec_of(path)
    if codec is None:
        index = index_lines(path)
        np.save(scratch / "index.npy", index)
        return {"rows": len(index), "digest": _hashed(path), "unpacked": False}
    lines, members = scratch / "lines", list[tuple[int, int]]()
    with Path(path).open("rb") as file, lines.open("wb") as out:
        out.writelines(chunks(file, codec, name, members))
        packed = file.tell()
    index = index_lines(str(lines))
    np.save(scratch / "index.npy", index)
    table = table_of(members, packed, lines.stat().st_size)
    if table is not None:  # its members are read where they are
        np.save(scratch / "members.npy", table)
        lines.unlink()
    about = {"rows": len(index), "digest": _hashed(path)}
    return {**about, "unpacked": table is None, "members": table is not None}


def index_lines(path: str) -> NDArray[np.int64]:
    """Find the lines of a file that are not blank: first byte, end byte (line end left out), line number.

    A byte-order mark at the start belongs to no line. int64 (rows, 3).
    """
    size = os.path.getsize(path)  # noqa: PTH202
    if not size:
        return np.zeros((0, 3), np.int64)
    data = np.memmap(path, np.uint8, "r")
    found = [np.flatnonzero(data[a : a + _CHUNK] == 10) + a for a in range(0, size, _CHUNK)]
    ends = np.concatenate([*found, np.array([] if data[-1] == 10 else [size], np.int64)]).astype(np.int64)
    starts = np.concatenate([[0], ends[:-1] + 1]).astype(np.int64)
    starts[0] = len(_BOM) if data[:3].tobytes() == _BOM else 0
    stops = ends.copy()
    carriage = (stops > starts) & (data[np.maximum(stops - 1, 0)] == 13)
    stops[carriage] -= 1
    keep = stops > starts
    blank = np.flatnonzero(keep & (stops - starts < 64))  # short lines may be spaces only
    for i in blank.tolist():
        if not data[starts[i] : stops[i]].tobytes().strip():
            keep[i] = False
    return np.stack([starts, stops, np.arange(1, len(starts) + 1)], axis=1)[keep]


def _whole(path: str, name: str) -> bytes:
    with Path(path).open("rb") as file:
        return b"".join(chunks(file, codec_of(path), name)).removeprefix(_BOM)


def _array(path: str, name: str, scratch: Path) -> dict[str, Any]:
    data = _whole(path, name)
    try:
        items = msgspec.json.decode(data, type=list[msgspec.Raw])
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InputError(
            f"the file is no JSON array: {error}", where=name, fix="say format='jsonl' for a line each"
        ) from error
    return _unpacked(path, scratch, (bytes(item) for item in items))


def _csv(path: str, name: str, scratch: Path) -> dict[str, Any]:
    try:
        text = io.StringIO(_whole(path, name).decode(), newline="")
    except UnicodeDecodeError as error:
        raise InputError(f"the file is no UTF-8: {error}", where=name, fix="bring it to UTF-8 first") from error
    stem = path
    for ending in ENDINGS:
        stem = stem.removesuffix(ending)
    csv.field_size_limit(sys.maxsize)  # else a document of 131,073 characters is an error
    reader = csv.reader(text, delimiter="\t" if stem.endswith(".tsv") else ",", strict=True)
    header = next(reader, [])
    if twice := [column for k, column in enumerate(header) if column in header[:k]]:
        raise InputError(f"two columns are named {twice[0]!r}", where=f"{name}:1", fix="name each column once")

    def rows() -> Iterator[bytes]:
        for row in reader:
            if not row:  # a blank line
                continue
            if len(row) != len(header):
                raise InputError(f"{len(row)} fields, the header has {len(header)}", where=f"{name}:{reader.line_num}")
            yield msgspec.json.encode(dict(zip(header, row, strict=True)))

    try:
        return _unpacked(path, scratch, rows())
    except csv.Error as error:
        raise InputError(f"the file is no CSV: {error}", where=f"{name}:{reader.line_num}") from error


def _unpacked(path: str, scratch: Path, items: Iterator[bytes]) -> dict[str, Any]:
    """Write values one after another, and note where each lies; its line is its number."""
    bounds = [0]
    with (scratch / "lines").open("wb") as out:
        for item in items:
            out.write(item)
            bounds.append(bounds[-1] + len(item))
    at = np.array(bounds, np.int64)
    np.save(scratch / "index.npy", np.stack([at[:-1], at[1:], np.arange(1, len(at))], axis=1))
    return {"rows": len(at) - 1, "digest": _hashed(path), "unpacked": True}


def _parquet(path: str, name: str, scratch: Path) -> dict[str, Any]:
    from thalweg.store.formats.parquet import rows_of  # noqa: PLC0415
    from thalweg.store.records.writer import create_records  # noqa: PLC0415

    n = 0
    with create_records(scratch / "records", sync=False) as writer:
        for row in rows_of(path, name):
            writer.write(row)
            n += 1
    return {"rows": n, "digest": _hashed(path), "unpacked": True}


_MAKE: dict[str, Callable[[str, str, Path], dict[str, Any]]] = {
    "jsonl": _lines,
    "txt": _lines,
    "json": _array,
    "csv": _csv,
    "parquet": _parquet,
}
