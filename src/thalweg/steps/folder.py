"""Folders that steps read from and write to: a path or URL, with options, on any file system of fsspec.

Decides how a folder is named, listed, and where a new file of it really lies: under its final name when a step is
run by hand, in a staging directory when an executor has set one. Knows nothing of commits.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from glob import has_magic
from typing import TYPE_CHECKING, Any, TypeAlias

import xxhash

from thalweg.core.errors import ConfigError, InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_AT_ONCE = 1024  # pieces that the system takes in one call
FolderLike: TypeAlias = "str | os.PathLike[str] | tuple[str, Any] | Folder"


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One input file: path relative to its folder, bytes, and a token that changes with the content (time or tag)."""

    path: str
    size: int
    version: str


@dataclass
class Folder:
    """A folder. Pickles by path and options; the file system is opened where it is used.

    Args:
        path: local path or URL, without a slash at the end.
        options: options of the fsspec file system.
        fs: an open file system to use instead.
    """

    path: str
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    fs: Any = None

    @classmethod
    def of(cls, like: Any) -> Any:
        """Read the forms that are accepted: a path, (path, options), (path, file system), a folder.

        Raises:
            ConfigError: anything else.
        """
        if isinstance(like, Folder):
            return cls(like.path, dict(like.options), like.fs)
        if isinstance(like, str | os.PathLike):
            return cls(_clean(os.fspath(like)))
        pair: Any = like
        if isinstance(like, tuple) and len(pair) == 2:
            path, how = pair
            return cls(_clean(path), dict(how)) if isinstance(how, dict) else cls(_clean(path), {}, how)
        if hasattr(pair, "fs") and hasattr(pair, "path"):  # a folder object of another library
            return cls(_clean(str(pair.path)), {}, pair.fs)
        raise ConfigError(
            f"a folder cannot be made of {type(like).__name__}", fix="give a path, or (path, {options of fsspec})"
        )

    @property
    def local(self) -> bool:
        """True where the folder lies on this machine's file system."""
        return self.fs is None and "://" not in self.path

    def filesystem(self) -> tuple[Any, str]:
        """Open the file system: (fsspec file system, root path on it)."""
        from fsspec.core import url_to_fs  # noqa: PLC0415  (80 ms that `import thalweg.steps` need not pay)

        if self.fs is not None:
            return self.fs, self.path
        fs, root = url_to_fs(self.path, **self.options)
        return fs, str(root)

    def full(self, name: str) -> str:
        """Give the whole path or URL of a file of this folder."""
        return f"{self.path}/{name}" if name else self.path

    def list_files(self, *, recursive: bool = True, glob_pattern: str | None = None) -> list[FileInfo]:
        """List files, sorted by path. A pattern without wildcards means "ends in".

        Raises:
            InputError: the folder does not exist.
        """
        fs, root = self.filesystem()
        if fs.isfile(root):
            return [FileInfo("", *_size_and_version(fs.info(root)))]
        depth = None if recursive else 1
        if glob_pattern:
            pattern = glob_pattern if has_magic(glob_pattern) else f"*{glob_pattern}"
            found = fs.glob(f"{root.rstrip('/')}/{pattern}", detail=True)
        else:
            found = fs.find(root, maxdepth=depth, detail=True)
        if not found and not fs.exists(root):
            raise InputError("the folder does not exist", where=self.path, fix="check the path")
        strip = len(root.rstrip("/")) + 1
        files = [FileInfo(p[strip:], *_size_and_version(i)) for p, i in found.items() if i["type"] != "directory"]
        return sorted(files, key=lambda f: f.path)

    def open(self, name: str) -> Any:
        """Open a file for reading as bytes."""
        if self.local:
            return open(self.full(name), "rb")  # noqa: PTH123  (the caller closes it)
        fs, root = self.filesystem()
        return fs.open(f"{root}/{name}" if name else root, "rb")


@dataclass
class OutputFolder(Folder):
    """A folder that a step writes to.

    Args:
        stage: local directory in which new files are really made; None: under their final names.
        written: name -> (bytes, xxh3_64 or None) of the finished files.
        generation: of the run that stages.
    """

    stage: str | None = None
    written: dict[str, tuple[int, str | None]] = field(default_factory=dict[str, "tuple[int, str | None]"])
    generation: int = 0

    def place(self, name: str) -> str:
        """Give the local path at which to make a file, its directory made; for libraries that open it themselves.

        Raises:
            ConfigError: the folder is remote and no executor has set a staging directory.
        """
        if self.stage is None and not self.local:
            raise ConfigError("a remote folder is written through an executor only", where=self.path)
        path = f"{self.stage or self.path}/{name}"
        os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120  (once a file)
        return path

    def create(self, name: str) -> Any:
        """Open a new file for writing as bytes; its size and checksum are taken while it is written."""
        if self.stage is None and not self.local:
            fs, root = self.filesystem()
            return fs.open(f"{root}/{name}", "wb")
        return CheckedFile(self.place(name), name, self.written)

    def list_staged(self) -> Iterable[str]:
        """Name the files in the staging directory, relative to it."""
        assert self.stage is not None
        for folder, _, names in os.walk(self.stage):
            for name in names:
                yield os.path.relpath(f"{folder}/{name}", self.stage)


class CheckedFile:
    """A new binary file that knows its length and xxh3_64 when it is closed."""

    def __init__(self, path: str, name: str, register: dict[str, tuple[int, str | None]]) -> None:
        self._file = open(path, "wb", buffering=1 << 18)  # noqa: SIM115, PTH123  (closed by close)
        self._hash, self._bytes = xxhash.xxh3_64(), 0
        self._name, self._register = name, register

    def write(self, data: Any) -> int:
        """Write all of `data`."""
        self._hash.update(data)
        self._bytes += len(data)
        return self._file.write(data)

    def writelines(self, parts: Sequence[memoryview]) -> None:
        """Write several pieces, in one call of the system where they are not too many."""
        for part in parts:
            self._hash.update(part)
        self._file.flush()
        for at in range(0, len(parts), _AT_ONCE):
            some = parts[at : at + _AT_ONCE]
            size = sum(map(len, some))
            written = os.writev(self._file.fileno(), some)
            if written < size:  # the disk is full, say: the rest tells
                self._file.write(b"".join(some)[written:])
            self._bytes += size

    def tell(self) -> int:
        """Count the bytes written."""
        return self._bytes

    def flush(self) -> None:
        """Hand what is buffered to the operating system."""
        self._file.flush()

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return self._file.closed

    def writable(self) -> bool:
        """Say yes: libraries ask."""
        return True

    def readable(self) -> bool:
        """Say no: libraries ask."""
        return False

    def seekable(self) -> bool:
        """Say no: a checksum is taken in order."""
        return False

    def close(self) -> None:
        """Close and register; twice is fine."""
        if not self._file.closed:
            self._file.close()
            self._register[self._name] = (self._bytes, self._hash.hexdigest())


def _clean(path: str) -> str:
    path = path.removeprefix("file://")
    if "://" not in path:
        path = os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111
    return path.rstrip("/") or "/"


def _size_and_version(info: dict[str, Any]) -> tuple[int, str]:
    version = next((info[k] for k in ("ETag", "etag", "mtime", "LastModified", "created") if info.get(k)), "")
    return int(info.get("size") or 0), str(version)
