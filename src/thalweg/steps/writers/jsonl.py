"""JSONL out: one object a line, zstd by default.

Decides how values that JSON does not know are written: numpy numbers as numbers, times in ISO form, NaN as null,
a lone surrogate as U+FFFD (counted). Knows no folder or name.
"""

from __future__ import annotations

import base64
import zlib
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from thalweg.core.errors import ConfigError, nearest
from thalweg.steps.batches import LINE, ROWS, lines_of
from thalweg.steps.readers.json_lines import repair
from thalweg.steps.readers.lines import NEWLINE
from thalweg.steps.writers.base import DiskWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from thalweg.core.document import Document
    from thalweg.steps.folder import FolderLike

LEVELS = {"zstd": 3, "gzip": 6}  # gzip 9 costs twice the time of 6 for the same size
ENDINGS = {"zstd": ".zst", "gzip": ".gz"}


class JsonlWriter(DiskWriter):
    """Writes JSONL.

    Args:
        compression: "auto" is what the name's ending says, else zstd; "infer": what it says, else none; "zstd", "gzip"
            or None.
        level: of the codec; None is zstd 3, gzip 6.
        Others: see `DiskWriter`.

    Raises:
        ConfigError: an unknown compression.
    """

    name = "Jsonl writer"
    default_output_filename = "${rank}.jsonl"

    def __init__(  # noqa: PLR0917  (names and order that callers know)
        self,
        output_folder: FolderLike,
        output_filename: str | None = None,
        compression: str | None = "auto",
        adapter: Callable[..., dict[str, Any]] | None = None,
        expand_metadata: bool = False,
        max_file_size: int | str = -1,
        save_media_bytes: bool = False,
        *,
        level: int | None = None,
    ) -> None:
        name = output_filename or self.default_output_filename
        if compression in {"auto", "infer"}:
            other = "zstd" if compression == "auto" else None
            compression = next((c for c, end in ENDINGS.items() if name.endswith(end)), other)
        if compression is not None and compression not in ENDINGS:
            raise ConfigError(
                f"compression={compression!r} is unknown", fix=nearest(compression, ["auto", *ENDINGS, "infer"])
            )
        ending = ENDINGS.get(compression or "", "")
        name = name if name.endswith(ending) else name + ending
        super().__init__(output_folder, name, adapter, expand_metadata, max_file_size, save_media_bytes)
        self.compression = compression
        self.takes_batches = self.plain and not self._per_document
        self.level = LEVELS.get(compression or "", 0) if level is None else level

    def open_file(self, name: str) -> Compressed:
        """Begin a file."""
        return Compressed(self.output_folder.create(name), self.compression, self.level)

    def append(self, file: Compressed, documents: list[Document]) -> None:
        """Encode and write; on a value that cannot be written, find it, and repair what can be repaired."""
        rows = self.rows(documents)
        for media in [row["media"] for row in rows if row.get("media")]:
            _bytes_as_text(media)
        try:
            data = _encoder.encode_lines(rows)
        except UnicodeEncodeError:
            data = b"".join(self._repaired(row) for row in rows)
        file.write(data)

    def _repaired(self, row: dict[str, Any]) -> bytes:
        try:
            return _encoder.encode(row) + b"\n"
        except UnicodeEncodeError:
            self.stat_update("repaired_surrogate")
            return _encoder.encode(repair(row)) + b"\n"

    columns = (LINE,)

    def run_batches(self, data: Iterator[Any], rank: int, world_size: int) -> Iterator[Any]:
        """Write the original lines of the rows that are left, byte for byte."""
        del world_size
        with self:
            for batch in data:
                name = self.file_of_rank(rank)
                file = self._current(name)
                lines = lines_of(batch.column(ROWS))
                file.writelines(lines)
                if lines and lines[-1][-1] != NEWLINE:  # the end of a file that ends without one
                    file.write(b"\n")
                if self.max_file_size > 0 and self.written(file) >= self.max_file_size:
                    self._rotate(name)
                self.stat_update("lines_copied", value=batch.num_rows, unit="batch")
                yield batch

    def finish(self, file: Compressed) -> None:
        """End a file."""
        file.close()

    def written(self, file: Compressed) -> int:
        """Count the bytes on their way to the disk."""
        return file.tell()


class Compressed:
    """A file to which plain bytes are written and compressed ones arrive."""

    def __init__(self, file: Any, codec: str | None, level: int) -> None:
        self._file = file
        self._packer: Any = None
        if codec == "zstd":
            import zstandard  # noqa: PLC0415  (only where it is used)

            self._packer = zstandard.ZstdCompressor(level=level).compressobj()
        elif codec == "gzip":
            self._packer = zlib.compressobj(level, zlib.DEFLATED, 31)

    def write(self, data: bytes) -> None:
        """Compress and write."""
        self._file.write(data if self._packer is None else self._packer.compress(data))

    def writelines(self, parts: list[memoryview]) -> None:
        """Compress and write several pieces."""
        if self._packer is None:
            self._file.writelines(parts)
        else:
            self.write(b"".join(parts))

    def tell(self) -> int:
        """Count the compressed bytes so far."""
        return int(self._file.tell())

    def close(self) -> None:
        """Write the codec's end and close."""
        if self._packer is not None:
            self._file.write(self._packer.flush())
        self._file.close()


def _bytes_as_text(media: list[dict[str, Any]]) -> None:
    for item in media:
        if isinstance(item.get("media_bytes"), bytes):
            item["media_bytes"] = base64.b64encode(item["media_bytes"]).decode("ascii")


def _other(value: Any) -> Any:
    if isinstance(value, np.generic):
        return None if isinstance(value, np.datetime64) and np.isnat(value) else _plain(value)
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"a value of type {type(value).__name__} cannot be written as JSON")


def _plain(value: np.generic) -> Any:
    return str(np.datetime_as_string(value)) if isinstance(value, np.datetime64) else value.item()


_encoder = msgspec.json.Encoder(enc_hook=_other)
