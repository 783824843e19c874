"""Files behind a URL, through fsspec: read whole or by ranges, with retries; a name looked up, never listed.

Decides what is tried again and how often. Knows no format.
"""

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
        import fsspec  # noqa: PLC0415  (80 ms; only where a URL is opened)

        self.url = url.rstrip("/")
        if url.startswith("s3://"):
            need("s3fs", why="an s3:// URL")
        self._fs, self._root = fsspec.core.url_to_fs(self.url, **storage_options)

    def read(self, name: str) -> bytes:
        """Read a whole file.

        Raises:
            FileNotFoundError: it is not there.
        """
        # With an open range s3fs sends one request; with none it asks for the size first, and lists what is missing.
        data: bytes = self._tried(name, lambda: self._fs.cat_file(f"{self._root}/{name}", start=0))
        return data

    def fetch(self, name: str, size: int, target: Path) -> None:
        """Copy a file of a known size to a path.

        Raises:
            IntegrityError: it is not there, or has another size.
        """

        def part(start: int, end: int) -> bytes:
            data: bytes = self._fs.cat_file(f"{self._root}/{name}", start=start, end=end)
            if len(data) != end - start:
                raise OSError(f"{len(data)} of {end - start} bytes came")
            return data

        try:
            with target.open("wb") as out:
                for a in range(0, size, RANGE):
                    b = min(a + RANGE, size)
                    out.write(self._tried(name, partial(part, a, b)))
        except FileNotFoundError as error:
            raise IntegrityError("a file is missing", where=f"{self.url}/{name}", fix="restore it") from error

    def write(self, name: str, source: Path) -> None:
        """Copy a local file there."""
        self._tried(name, lambda: self._fs.put_file(str(source), f"{self._root}/{name}"))

    def create(self, name: str, data: bytes) -> bool:
        """Write a small file unless it is there; False where it was.

        On stores without a conditional write, a look before the write is all there is.
        """
        path = f"{self._root}/{name}"
        if self._fs.exists(path):
            return False
        try:
            self._fs.pipe_file(path, data, mode="create")
        except FileExistsError:
            return False
        except TypeError:  # a file system that has no modes
            self._fs.pipe_file(path, data)
        return True

    def _tried(self, name: str, call: Callable[[], T]) -> T:
        pause = PAUSE
        for left in reversed(range(TRIES)):
            try:
                return call()
            except FileNotFoundError:
                raise
            except Exception as error:
                if left == 0:
                    raise RecordsError(
                        f"the server failed {TRIES} times: {error}", where=f"{self.url}/{name}", fix="try later"
                    ) from error
            time.sleep(pause)
            pause *= 2
        raise AssertionError
