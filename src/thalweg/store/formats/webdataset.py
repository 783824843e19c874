"""WebDataset tars. A member's key is its directory and its name up to the first dot; what follows is the field.

So dots in directories never split a key, and `track 2.0.mp3` is field `0.mp3` of sample `track 2`, here as in the
webdataset library. Members of a sample stand next to each other; a key that comes again, or a field twice, is an error.
Directories and AppleDouble files (`._x`) are passed over; an empty member is an empty value. Decides this, for reading
and for writing.
"""

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np

from thalweg.core.errors import InputError, SampleError
from thalweg.core.sample import Sample
from thalweg.store.formats.format import Unit, WholeFile, files
from thalweg.store.records.nested import plain_json, utf8

SUFFIXES, ONE_FILE = (".tar",), False
_ENDS = ("npy", "txt", "json", "bin")  # ends of our own fields: `input_ids.npy` is column `input_ids`


def units(path: str) -> list[Unit]:
    """Name the tars, in order."""
    return [Unit(file) for file in files(path, SUFFIXES)]


def split(name: str) -> tuple[str, str]:
    """Cut a member's name into key and field."""
    folder, _, base = name.rpartition("/")
    stem, _, field = base.partition(".")
    return (f"{folder}/{stem}" if folder else stem), field


def rows(unit: Unit) -> Iterator[Sample]:
    """Read the samples of a tar; see `samples`."""
    try:
        with open(unit.path, "rb") as raw:  # noqa: PTH123
            yield from samples(raw, unit.path)
    except OSError as error:
        raise InputError(f"the tar cannot be read: {error}", where=unit.path) from error


def samples(raw: IO[bytes], path: str) -> Iterator[Sample]:
    """Read the samples of an open tar, plain or compressed, named `path` in errors.

    Known ends are decoded (.json, .txt, .npy, .cls); other fields are bytes. The key becomes `id`.

    Raises:
        InputError: a sample whose members are apart or double, or a damaged tar; tar and member are named.
    """
    key: str | None = None
    sample: Sample = {}
    done: set[str] = set()
    for name, data in _members(raw, path):
        found, field = split(name)
        if found != key:
            if sample:
                yield _with_id(key, sample)
            if found in done:
                raise InputError(
                    f"members of sample {found!r} stand apart", where=f"{path}: {name}", fix="sort the tar by name"
                )
            done.add(found)
            key, sample = found, {}
        column, value = _decode(field, data, f"{path}: {name}")
        if column in sample:
            raise InputError(f"field {field!r} comes twice in sample {found!r}", where=f"{path}: {name}")
        sample[column] = value
    if sample:
        yield _with_id(key, sample)


def _members(raw: IO[bytes], path: str) -> Iterator[tuple[str, bytes]]:
    try:
        with tarfile.open(fileobj=raw, mode="r:*") as tar:
            for member in tar:
                if not member.isfile() or member.name.rpartition("/")[2].startswith("._"):
                    continue
                file = tar.extractfile(member)
                assert file is not None
                data = file.read()
                if len(data) < member.size:
                    raise InputError("the tar ends in the middle of a member", where=f"{path}: {member.name}")
                yield member.name, data
    except (tarfile.TarError, OSError, EOFError) as error:
        raise InputError(f"the tar is damaged: {error}", where=path, fix="fetch it again") from error


def _with_id(key: str | None, sample: Sample) -> Sample:
    return sample if "id" in sample else {"id": key, **sample}


def _decode(field: str, data: bytes, where: str) -> tuple[str, Any]:
    stem, _, end = field.rpartition(".")
    end = end.lower()
    column = stem if stem and end in _ENDS else field
    try:
        if end == "json":
            return column, json.loads(data)
        if end == "txt":
            return column, data.decode()
        if end == "npy":
            return column, np.load(io.BytesIO(data), allow_pickle=False)
        if end == "cls":
            return column, int(data)
    except ValueError as error:
        raise InputError(f"the member is no {end}: {error}", where=where) from error
    return column, data


class TarWriter:
    """Writes one tar: a row's key is its number, a column is a member `KEY.COLUMN.END`."""

    def __init__(self, path: Path) -> None:
        self._file = WholeFile(path)
        self._tar = tarfile.open(self._file.temporary, "w", format=tarfile.USTAR_FORMAT)  # noqa: SIM115
        self._n = 0

    def write(self, sample: Sample) -> None:
        """Add one row.

        Raises:
            SampleError: a column whose name has a dot or a slash, or a value that no end stands for.
        """
        for name, value in sample.items():
            if "." in name or "/" in name:
                raise SampleError(
                    f"column {name!r} cannot be a member of a tar", fix="name it without dots and slashes"
                )
            end, data = self._encode(value)
            member = tarfile.TarInfo(f"{self._n:09d}.{name}.{end}")
            member.size = len(data)
            self._tar.addfile(member, io.BytesIO(data))
        self._n += 1

    @staticmethod
    def _encode(value: Any) -> tuple[str, bytes]:
        if isinstance(value, np.ndarray):
            out = io.BytesIO()
            np.save(out, value, allow_pickle=False)
            return "npy", out.getvalue()
        if isinstance(value, str):
            return "txt", utf8(value)
        if isinstance(value, bytes):
            return "bin", value
        return "json", plain_json(value.item() if isinstance(value, np.generic) else value)

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finish, or throw away."""
        done = False
        try:
            self._tar.close()
            done = kind is None
        finally:
            self._file.finish(keep=done)


def writer(path: Path, schema: dict[str, str]) -> TarWriter:  # noqa: ARG001
    """Open a tar for writing."""
    return TarWriter(path)
