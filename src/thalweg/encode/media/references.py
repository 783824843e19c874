"""A medium by reference or by value: what it may be given as, and how its bytes are read.

Decides the forms (path, URL, bytes, {"path", "bytes"}, array, open picture) and the errors. A path is looked for under
the media folder first. Reads through fsspec with retries and a limit of time. Knows no format.
"""

import io
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as TookTooLong
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import fsspec

from thalweg.encode.errors import EncodeError


@dataclass(frozen=True, slots=True)
class Folder:
    """Where media lie.

    Args:
        root: folder or URL that relative paths start from; None: the working directory.
        storage_options: for fsspec.
        tries: how often a read is tried.
        timeout: seconds a read may take, all tries together; None: any time. Local files are read without a limit.
    """

    root: str | None = None
    storage_options: dict[str, Any] = field(default_factory=dict[str, Any])
    tries: int = 3
    timeout: float | None = 60.0

    def place(self, path: str) -> str:
        """Say where a path is: under the root, else as it was given."""
        if "://" in path or self.root is None or Path(path).is_absolute():
            return path
        joined = f"{self.root.rstrip('/')}/{path}"
        if "://" in self.root or Path(joined).exists() or not Path(path).exists():
            return joined
        return path

    def read(self, reference: Any) -> bytes:
        """Read the bytes of a reference.

        Raises:
            EncodeError: it is no reference, it is not there, or it did not come in time.
        """
        value = unwrapped(reference)
        if isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(value)
        if not isinstance(value, str):
            raise EncodeError(f"a medium cannot be a {type(value).__name__}", reason="unknown kind of medium")
        place = self.place(value)
        if "://" not in place:
            return self._try(place)
        with ThreadPoolExecutor(1, thread_name_prefix="thalweg-media") as pool:
            try:
                return pool.submit(self._try, place).result(self.timeout)
            except TookTooLong:
                raise EncodeError(
                    f"{place} did not come within {self.timeout} s",
                    reason="medium not readable",
                    fix="a larger timeout",
                ) from None

    def _try(self, place: str) -> bytes:
        last: Exception | None = None
        for _ in range(max(1, self.tries)):
            try:
                opened: Any = fsspec.open(place, "rb", **self.storage_options)
                with opened as file:
                    return cast("bytes", file.read())
            except FileNotFoundError as error:
                raise EncodeError(
                    f"no medium at {place}", reason="medium not found", fix="check media_dir= and the path"
                ) from error
            except OSError as error:
                last = error
        raise EncodeError(f"{place} cannot be read: {last}", reason="medium not readable") from last

    def open(self, reference: Any) -> io.BytesIO | str:
        """Give something that a decoder opens: a local path as it is (headers need no whole read), else the bytes."""
        value = unwrapped(reference)
        if isinstance(value, str) and "://" not in (place := self.place(value)):
            if not Path(place).exists():
                raise EncodeError(
                    f"no medium at {place}", reason="medium not found", fix="check media_dir= and the path"
                )
            return place
        return io.BytesIO(self.read(reference))


def unwrapped(reference: Any) -> Any:
    """Take {"bytes": ..., "path": ...} and {"url": ...} apart, a `Path` as text."""
    if isinstance(reference, Mapping):
        record = cast("Mapping[str, Any]", reference)
        for key in ("bytes", "array", "path", "url"):
            if record.get(key) is not None:
                return unwrapped(record[key])
    return str(reference) if isinstance(reference, Path) else reference


def name_of(reference: Any) -> str:
    """Name a reference in an error."""
    if isinstance(reference, Mapping) and reference.get("path"):
        return str(reference["path"])
    return reference if isinstance(reference, str) else f"a {type(reference).__name__}"
