"""JSONL, plain or compressed: units are byte ranges of plain files and whole compressed ones.

Decides how media bytes travel in JSON (base64). Lines and JSON are the business of `lines` and `json_lines`.
"""

from __future__ import annotations

import base64
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import msgspec

from thalweg.core.document import Document
from thalweg.core.errors import InputError
from thalweg.steps.batches import NUMBER, ROWS, lines_of
from thalweg.steps.readers.base import BaseDiskReader
from thalweg.steps.readers.json_lines import Repairs, rows_of_block
from thalweg.steps.readers.lines import blocks_of_chunks, blocks_of_range
from thalweg.store.codec import chunks, codec_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from thalweg.plan.shard import Unit
    from thalweg.steps.folder import FileInfo


class LineReader(BaseDiskReader):
    """Reads formats of which a row is a line. A format says how a block of lines becomes rows."""

    def cut_file(self, info: FileInfo) -> list[Unit]:
        """Cut plain files into byte ranges; compressed ones stay whole."""
        return self.cut_bytes(info)

    def read_file(self, filepath: str) -> Iterator[Document]:
        """Yield the documents of a whole file."""
        from thalweg.plan.shard import Unit  # noqa: PLC0415

        yield from self.read_unit(Unit(filepath))

    def blocks(self, unit: Unit) -> Iterator[bytes | memoryview]:
        """Give the unit's lines in blocks.

        Raises:
            InputError: the file is missing or damaged.
        """
        codec = codec_of(unit.file or self.data_folder.path, self.compression)
        full = self.data_folder.full(unit.file)
        try:
            file = self.data_folder.open(unit.file)
        except FileNotFoundError as error:
            raise InputError(
                "the file does not exist", where=full, fix="list the inputs again: start the run anew"
            ) from error
        with file:
            if codec is None:
                yield from blocks_of_range(file, unit.start, unit.stop)
            else:
                yield from blocks_of_chunks(chunks(file, codec, full))

    @abstractmethod
    def rows(self, block: bytes | memoryview, first: int) -> tuple[list[Any], int]:
        """Decode a block: rows, and the number of lines."""

    def read_unit(self, unit: Unit) -> Iterator[Document]:
        """Yield the documents of the lines that begin in this unit."""
        first = 0
        for block in self.blocks(unit):
            rows, lines = self.rows(block, first)
            yield from self.documents(rows, unit, first)
            self.count_bytes(len(block), lines)
            first += lines


class JsonlReader(LineReader):
    """Reads JSONL files: one object a line.

    Args:
        compression: "infer" from the name, "gzip", "zstd", "bz2", "xz" or None.
        Others: see `BaseDiskReader`.

    A byte-order mark and CRLF line ends vanish. A lone surrogate is repaired to U+FFFD and counted as
    "repaired_surrogate". A line that is not JSON costs that line, by the error policy.
    """

    name = "Jsonl reader"

    def rows(self, block: bytes | memoryview, first: int) -> tuple[list[Any], int]:
        """Decode a block of JSON lines."""
        repairs = Repairs()
        result = rows_of_block(block, first, repairs)
        if repairs.surrogates:
            self.stat_update("repaired_surrogate", value=repairs.surrogates)
        return result

    def read_batches(self, columns: tuple[str, ...], rank: int, world_size: int) -> Iterator[Any]:
        """Read this rank's units as record batches of lines and the asked columns."""
        from thalweg.steps.readers.batch_lines import BatchLines  # noqa: PLC0415  (Arrow loads when it is used)

        self._rank = rank
        return BatchLines(self, columns).read(rank, world_size)

    def documents_of(self, batch: Any) -> Iterator[Document]:
        """Make the documents of the lines that are left in a batch; they have been counted already."""
        if not batch.num_rows:
            return
        file = batch.schema.metadata[b"file"].decode()
        full, made, lengths = self.data_folder.full(file), self.stats.tally.made, [0] * 0
        start = int(batch.schema.metadata[b"unit"])  # a batch is of one unit
        prefix = file if start == 0 else f"{file}/@{start}"
        left = batch.column(ROWS)
        rows = left.dictionary.field(NUMBER).take(left.indices).to_pylist()
        data: list[Any] = msgspec.json.Decoder().decode_lines(b"".join(lines_of(left)))
        pairs = zip(rows, data, strict=True)
        quick = self.quick(pairs, prefix, full, str(start)) if self.plain else iter(data)
        for row, found in zip(rows, quick, strict=True):
            document = found
            if type(found) is not Document:
                document = self.document(found, prefix, row, row=row, seen=made)
                if document is not None:
                    self.place(document, full, start, row)
            if document is not None:
                lengths.append(len(document.text))
                yield document
        self.stats["doc_len"].update_many(lengths)

    @property
    def gives_batches(self) -> bool:
        """Say whether batches show the same rows: not with an adapter, a limit, a skipped start, rows without text."""
        plain = not self.custom_adapter and self.conversation is None
        return plain and self.limit == -1 and not self.skip and not self.shuffle_files

    def document(self, data: Any, path: str, id_in_file: int | str, *, row: int, seen: int) -> Document | None:
        """Decode media bytes, then make the document."""
        if isinstance(data, dict) and data.get("media"):
            for item in data["media"]:
                if isinstance(item, dict) and isinstance(item.get("media_bytes"), str):
                    item["media_bytes"] = base64.b64decode(item["media_bytes"])
        return super().document(data, path, id_in_file, row=row, seen=seen)
