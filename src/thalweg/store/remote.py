"""Files behind a URL, through fsspec: read whole or by ranges, with retries; a name looked up, never listed.

Decides what is tried again and how often. Knows no format.
"""

import contextlib
import errno
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from thalweg.core.errors import IntegrityError, RecordsError
from thalweg.core.extras import need

T = TypeVar("T")
RANGE = 32 << 20  # bytes of one request
TRIES, PAUSE = 6, 0.05  # seconds before the second try, doubled each time
_FINAL = {errno.EINVAL, errno.EPERM, errno.EACCES}  # trying again doesn't help


def is_url(path: str) -> bool:
    """Whether a path is a URL that is not on this machine."""
    return "://" in path and not path.startswith("file://")


class Remote:
    """A directory behind a URL.

    Args:
        url: such as s3://bucket/set.
        storage_options: for fsspec.

    Raises:
        MissingExtraError: the protocol's package is not installed.
    """

    def __init__(self, url: str, storage_options: Mapping[str, Any]) -> None:
        self.url = url.rstrip("/")
        self._options = dict(storage_options)
        if url.startswith("s3://"):
            need("s3fs", why="an s3:// URL")
        self._made: tuple[int, Any, str] | None = None
        self._open()

    def _open(self) -> tuple[Any, str]:
        """Give the file system and the path in it; anew after a fork, as connections don't survive one."""
        if self._made is None or self._made[0] != os.getpid():
            import fsspec  # noqa: PLC0415  (80 ms; only where a URL is opened)

            found, root = fsspec.core.url_to_fs(self.url, **self._options)
            self._made = (os.getpid(), found, root)
        return self._made[1:]

    def _cat(self, name: str, start: int, end: int | None = None) -> bytes:
        # With an open range s3fs sends one request; with none it asks for the size first, and lists what is missing.
        found, root = self._open()
        data: bytes = found.cat_file(f"{root}/{name}", start=start, end=end)
        return data

    def read(self, name: str) -> bytes:
        """Read a whole file.

        Raises:
            FileNotFoundError: it is not there.
        """
        return self._tried(name, lambda: self._cat(name, 0))

    def range(self, name: str, start: int, end: int) -> bytes:
        """Read bytes [start, end) of a file.

        Raises:
            IntegrityError: it is not there, or ends before.
        """

        def part() -> bytes:
            data = self._cat(name, start, end)
            if len(data) != end - start:
                raise OSError(f"{len(data)} of {end - start} bytes came")
            return data

        try:
            return self._tried(name, part)
        except FileNotFoundError as error:
            raise IntegrityError("a file is missing", where=f"{self.url}/{name}", fix="restore it") from error

    def fetch(self, name: str, start: int, end: int, target: Path) -> None:
        """Copy bytes [start, end) of a file to a path.

        Raises:
            IntegrityError: it is not there, or ends before.
        """
        with target.open("wb") as out:
            for a in range(start, end, RANGE):
                out.write(self.range(name, a, min(a + RANGE, end)))

    def ends_at(self, name: str, size: int) -> bool:
        """Whether a file is there and has this size: one request."""
        try:
            return len(self._tried(name, lambda: self._cat(name, max(size - 1, 0), size + 1))) == min(size, 1)
        except FileNotFoundError:
            return False
        except RecordsError as error:
            if isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EINVAL:
                return False  # it ends before
            raise

    def write(self, name: str, source: Path) -> None:
        """Copy a local file there."""
        found, root = self._open()
        self._tried(name, lambda: found.put_file(str(source), f"{root}/{name}"))

    def write_bytes(self, name: str, data: bytes) -> None:
        """Write a small file, whatever was there."""
        found, root = self._open()
        self._tried(name, lambda: found.pipe_file(f"{root}/{name}", data))

    def create(self, name: str, data: bytes) -> bool:
        """Write a small file unless it is there; False where it was, with other bytes.

        Equal bytes that are there are taken for ours: an answer may be lost on its way. On stores without a
        conditional write, a look before the write is all there is.
        """
        found, root = self._open()
        path = f"{root}/{name}"

        def put() -> None:
            try:
                found.pipe_file(path, data, mode="create")
            except TypeError:  # a file system that has no modes
                if found.exists(path):
                    raise FileExistsError(path) from None
                found.pipe_file(path, data)

        for pause in (*_pauses(), None):
            try:
                put()
            except Exception as error:
                with contextlib.suppress(FileNotFoundError):
                    return self.read(name) == data
                if pause is None:
                    raise _failed(f"{self.url}/{name}", error) from error
                time.sleep(pause)
            else:
                return True
        raise AssertionError

    def remove(self, name: str) -> None:
        """Remove a file; one that is not there is fine."""
        found, root = self._open()

        def rm() -> None:
            with contextlib.suppress(FileNotFoundError):
                found.rm_file(f"{root}/{name}")

        self._tried(name, rm)

    def named(self, stem: str) -> list[str]:
        """List the files whose names begin with `stem`: for what can't be found otherwise."""
        found, root = self._open()
        found.invalidate_cache()  # what others wrote since the last listing
        paths: list[str] = self._tried(stem, lambda: found.glob(f"{root}/{stem}*"))
        return sorted(p.rpartition("/")[2] for p in paths)

    def end_uploads(self, stem: str) -> None:
        """End uploads of files whose names begin with `stem` and that never became whole; only S3 has such."""
        found, root = self._open()
        call = getattr(found, "call_s3", None)
        if call is None:
            return
        bucket, _, folder = root.partition("/")
        begun: Mapping[str, Any] = self._tried(
            stem, lambda: call("list_multipart_uploads", Bucket=bucket, Prefix=f"{folder}/{stem}")
        )
        for one in begun.get("Uploads") or ():
            end = partial(call, "abort_multipart_upload", Bucket=bucket, Key=one["Key"], UploadId=one["UploadId"])
            with contextlib.suppress(FileNotFoundError):
                self._tried(stem, end)

    def _tried(self, name: str, call: Callable[[], T]) -> T:
        for pause in (*_pauses(), None):
            try:
                return call()
            except (FileNotFoundError, FileExistsError):
                raise
            except Exception as error:
                if isinstance(error, OSError) and error.errno in _FINAL:
                    raise RecordsError(
                        f"the server refuses: {error}", where=f"{self.url}/{name}", fix="check the rights and the URL"
                    ) from error
                if pause is None:
                    raise _failed(f"{self.url}/{name}", error) from error
                time.sleep(pause)
        raise AssertionError


def _pauses() -> list[float]:
    return [PAUSE * 2**k for k in range(TRIES - 1)]


def _failed(where: str, error: Exception) -> RecordsError:
    return RecordsError(f"the server failed {TRIES} times: {error}", where=where, fix="try later")
