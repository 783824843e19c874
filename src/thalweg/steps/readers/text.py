"""Plain text and CSV in: a line, a file or a row becomes a document.

Decides what a document is in files that do not say. Bytes that are not UTF-8 cost their line (or file, or row).
"""

from __future__ import annotations

import csv
import io
import sys
from typing import TYPE_CHECKING, Any

from thalweg.core.errors import ConfigError, InputError
from thalweg.plan.shard import Unit
from thalweg.steps.readers.base import BaseDiskReader
from thalweg.steps.readers.json_lines import BadLine
from thalweg.steps.readers.jsonl import LineReader
from thalweg.store.codec import chunks, codec_of, stream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from thalweg.core.document import Document
    from thalweg.steps.folder import FileInfo


class TextReader(LineReader):
    """Reads text files, plain or compressed.

    Args:
        document: "line" makes a document of each line that is not blank, "file" of each file.
        Others: see `BaseDiskReader`.
    """

    name = "Text reader"

    def __init__(self, data_folder: Any, *args: Any, document: str = "line", **more: Any) -> None:
        super().__init__(data_folder, *args, **more)
        if document not in {"line", "file"}:
            raise ConfigError(f"document={document!r} is unknown", fix="say 'line' or 'file'")
        self.whole = document == "file"

    def cut_file(self, info: FileInfo) -> list[Unit]:
        """Cut by bytes where lines are documents."""
        return [Unit(info.path, size=info.size)] if self.whole else self.cut_bytes(info)

    def rows(self, block: bytes | memoryview, first: int) -> tuple[list[Any], int]:
        """Decode lines."""
        lines = bytes(block).split(b"\n")
        if not lines[-1]:
            lines.pop()
        return [_decoded(line.rstrip(b"\r"), first + k) for k, line in enumerate(lines)], len(lines)

    def read_unit(self, unit: Unit) -> Iterator[Document]:
        """Yield the documents of a unit."""
        if not self.whole:
            yield from super().read_unit(unit)
            return
        data = b"".join(bytes(block) for block in self.blocks(unit))
        yield from self.documents([_decoded(data, 0)], unit, 0)
        self.count_bytes(len(data), 1)


def _decoded(line: bytes, row: int) -> Any:
    if not line.strip():
        return ()
    try:
        return {"text": line.decode()}
    except UnicodeDecodeError as error:
        return BadLine(row, line, error)


class CsvReader(BaseDiskReader):
    """Reads CSV files with a header, plain or compressed; values are text, quoted line breaks are kept.

    Args:
        delimiter: between values.
        Others: see `BaseDiskReader`. A file is one unit: a line break may stand inside a value.

    Raises:
        InputError: the bytes are not UTF-8, or damaged.
    """

    name = "Csv reader"

    def __init__(self, data_folder: Any, *args: Any, delimiter: str = ",", **more: Any) -> None:
        super().__init__(data_folder, *args, **more)
        self.delimiter = delimiter

    def read_file(self, filepath: str) -> Iterator[Document]:
        """Yield the documents of a file."""
        yield from self.read_unit(Unit(filepath))

    def read_unit(self, unit: Unit) -> Iterator[Document]:
        """Yield the documents of a file's rows."""
        full = self.data_folder.full(unit.file)
        with self.data_folder.open(unit.file) as raw:
            codec = codec_of(unit.file or full, self.compression)
            data = io.TextIOWrapper(io.BufferedReader(stream(chunks(raw, codec, full))), "utf-8-sig", newline="")
            csv.field_size_limit(sys.maxsize)  # else a document of 131,073 characters is an error
            rows = csv.DictReader(data, delimiter=self.delimiter)
            batch: list[Any] = []
            first = 0
            try:
                for row in rows:
                    batch.append(_checked(row, first + len(batch)))
                    if len(batch) == 1000:
                        yield from self.documents(batch, unit, first)
                        first, batch = first + len(batch), []
            except (UnicodeDecodeError, csv.Error) as error:
                raise InputError(f"line {rows.line_num + 1} cannot be read: {error}", where=full) from error
            yield from self.documents(batch, unit, first)
            self.count_bytes(unit.size, first + len(batch))


def _checked(row: dict[Any, Any], number: int) -> Any:
    if None in row or None in row.values():
        shown = repr(list(row.values())).encode()
        return BadLine(number, shown, ValueError("the row has another number of values than the header"))
    return row
