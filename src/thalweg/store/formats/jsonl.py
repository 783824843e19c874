"""JSON lines, plain or compressed. Arrays are lists there; bytes, NaN and infinity are refused: JSON has none."""

import gzip
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np
import zstandard

from thalweg.core.errors import InputError, SampleError
from thalweg.core.sample import Sample
from thalweg.store.codec import chunks, codec_of
from thalweg.store.formats.format import Unit, WholeFile, files
from thalweg.store.records.nested import plain_json

SUFFIXES, ONE_FILE = (".jsonl", ".ndjson"), False
_BOM = b"\xef\xbb\xbf"


def units(path: str) -> list[Unit]:
    """Name the files, in order."""
    return [Unit(file) for file in files(path, SUFFIXES)]


def rows(unit: Unit) -> Iterator[Sample]:
    """Read a file line by line.

    Raises:
        InputError: a line that is no JSON object, or damaged compressed data; file and line are named.
    """
    for number, line in enumerate(_lines(unit.path), 1):
        text = line.strip()
        if not text:
            continue
        try:
            yield msgspec.json.decode(text, type=dict[str, Any])
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise InputError(
                f"a line is no JSON object: {error}", where=f"{unit.path}:{number}", fix="repair it"
            ) from error


def _lines(path: str) -> Iterator[bytes]:
    rest, first = b"", True
    with Path(path).open("rb") as file:
        for piece in chunks(file, codec_of(path), path):
            data = rest + piece
            if first:
                data, first = data.removeprefix(_BOM), False
            *whole, rest = data.split(b"\n")
            yield from whole
    if rest:
        yield rest


class JsonlWriter:
    """Writes one file; the end of its name says whether it is compressed."""

    def __init__(self, path: Path) -> None:
        self._file, codec = WholeFile(path), codec_of(path.name)
        raw = self._file.temporary.open("wb")
        self._raw: Any = raw
        self._out: Any = raw
        if codec == "gzip":
            self._out = gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=6, mtime=0)
        elif codec == "zstd":
            self._out = zstandard.ZstdCompressor(level=3, write_checksum=True).stream_writer(raw, closefd=False)

    def write(self, sample: Sample) -> None:
        """Add one row.

        Raises:
            SampleError: a value that JSON has not; the column is named.
        """
        parts: list[bytes] = []
        for name, value in sample.items():
            try:
                plain = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
                parts.append(plain_json(name) + b":" + plain_json(plain))
            except SampleError as error:
                error.where = f"column {name!r}"
                raise
        self._out.write(b"{" + b",".join(parts) + b"}\n")

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finish, or throw away."""
        done = False
        try:
            if self._out is not self._raw:
                self._out.close()
            self._raw.close()
            done = kind is None
        finally:
            self._file.finish(keep=done)


def writer(path: Path, schema: dict[str, str]) -> JsonlWriter:  # noqa: ARG001
    """Open a file for writing."""
    return JsonlWriter(path)
