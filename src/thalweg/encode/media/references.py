"""A medium by reference or by value: what it may be given as, and how its bytes are read.

Decides the forms (path, URL, `data:` URL, bytes, {"path", "bytes"}, array, open picture) and the errors. A path is
looked for under the media folder first. Reads through fsspec with retries and a limit of time. Knows no format.
"""

import base64
import io
import os
import threading
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TookTooLong
from contextlib import contextmanager
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
        if "://" in self.root or os.path.exists(joined) or not os.path.exists(path):  # noqa: PTH110 - any text
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
        read: Future[bytes] = Future()
        threading.Thread(target=_carry_out, args=(read, self._try, place), name="thalweg-media", daemon=True).start()
        try:
            return read.result(self.timeout)
        except TookTooLong:  # the thread is left to its read, which nobody can end; it keeps no process alive
            raise EncodeError(
                f"{place} did not come within {self.timeout} s", reason="medium not readable", fix="a larger timeout"
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
            except ImportError:
                raise
            except Exception as error:  # noqa: BLE001 - each kind of store has errors of its own
                last = error
        raise EncodeError(f"{place} cannot be read: {last}", reason="medium not readable") from last

    def open(self, reference: Any) -> io.BytesIO | str:
        """Give something that a decoder opens: a local path as it is (headers need no whole read), else the bytes."""
        value = unwrapped(reference)
        if isinstance(value, str) and "://" not in (place := self.place(value)):
            if not os.path.exists(place):  # noqa: PTH110
                raise EncodeError(
                    f"no medium at {place[:200]}", reason="medium not found", fix="check media_dir= and the path"
                )
            return place
        return io.BytesIO(self.read(reference))


def _carry_out(result: "Future[bytes]", read: Callable[[str], bytes], place: str) -> None:
    try:
        result.set_result(read(place))
    except BaseException as error:  # noqa: BLE001 - it is raised where the result is waited for
        result.set_exception(error)


def unwrapped(reference: Any) -> Any:
    """Take {"bytes": ..., "path": ...}, {"url": ...}, {"data": base64} and a `data:` URL apart; give a `Path` as text.

    Raises:
        EncodeError: data that are no base64.
    """
    if isinstance(reference, Mapping):
        record = cast("Mapping[str, Any]", reference)
        for key in ("bytes", "array", "path", "url"):
            if record.get(key) is not None:
                return unwrapped(record[key])
        if isinstance(record.get("data"), str):
            return _from_base64(record["data"])
    if isinstance(reference, str) and reference.startswith("data:"):
        return _from_base64(reference.partition(",")[2])
    return str(reference) if isinstance(reference, Path) else reference


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise EncodeError("data that are no base64", reason="medium not readable") from error


def name_of(reference: Any) -> str:
    """Name a reference in an error."""
    if isinstance(reference, Mapping) and reference.get("path"):
        return str(reference["path"])
    return reference[:200] if isinstance(reference, str) else f"a {type(reference).__name__}"


@contextmanager
def decoding(reference: Any, kind: str) -> Generator[None, None, None]:
    """Name the medium in whatever its decoder raises: on damaged files they raise all sorts.

    Raises:
        EncodeError: the block raised anything.
    """
    try:
        yield
    except EncodeError:
        raise
    except Exception as error:
        raise EncodeError(
            f"{name_of(reference)} is no readable {kind}: {error}", reason=f"{kind} not readable"
        ) from error
