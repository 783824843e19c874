"""JSONL as record batches: only the asked columns are decoded, the lines themselves travel along.

Decides nothing that the documents' path does not: the same rows are dropped and the same rows are bad.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from thalweg.plan.shard import deal
from thalweg.steps.batches import (
    LENGTH,
    LINE,
    NUMBER,
    ROWS,
    WHOLE,
    column,
    count_lines,
    lengths_of,
    line_array,
    numbers,
    row_type,
    rows_of,
    values_of,
)
from thalweg.steps.readers.json_lines import BadLine, Repairs, rows_of_block
from thalweg.steps.readers.whole_rows import WholeRows, whole_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from thalweg.plan.shard import Unit
    from thalweg.steps.readers.jsonl import JsonlReader


class BatchLines:
    """Reads the units of one rank of a JSONL reader as batches."""

    def __init__(self, reader: JsonlReader, columns: tuple[str, ...]) -> None:
        self.reader = reader
        text_key, id_key = reader.text_key, reader.id_key
        self.whole, self.lines = WHOLE in columns and reader.plain, LINE in columns
        self.shape: WholeRows | None = None  # how the rows of the newest file that was looked at are
        self.looked_at: str | None = None
        self.columns = tuple(name for name in columns if name not in {WHOLE, LINE})
        names = {"text": text_key, "id": id_key}
        self.fields = {name: names.get(name, name) for name in self.columns if name != LENGTH}
        self.text = text_key
        self.decode = msgspec.json.Decoder(row_type((text_key, *self.fields.values()))).decode_lines

    def read(self, rank: int, world_size: int) -> Iterator[pa.RecordBatch]:
        """Give the batches of this rank, one a block."""
        reader = self.reader
        units = reader.units() if reader.planned is None else reader.planned
        for unit in deal(units, rank, world_size):
            reader.stat_update("input_files" if unit.whole else "input_units", unit="unit")
            first = 0
            for block in reader.blocks(unit):
                size = len(block)
                batch, lines = self._batch(block, unit, first)
                reader.count_bytes(size, lines)
                first += lines
                if batch.num_rows:
                    yield batch
        reader.policy.settle(reader.stats.tally.made)

    def _batch(self, block: bytes | memoryview, unit: Unit, first: int) -> tuple[pa.RecordBatch, int]:
        if self.whole and (found := self._whole(block, unit, first)) is not None:
            return found, found.num_rows
        lines = line_array(block)
        n = len(lines)
        try:
            decoded = self.decode(block)
        except (msgspec.MsgspecError, UnicodeError):
            decoded = []
        if len(decoded) != n:
            return self._carefully(bytes(block), unit, first)
        return self._asked(decoded, lines, unit, np.arange(first, first + n)), n

    def _asked(self, decoded: list[Any], lines: Any, unit: Unit, places: NDArray[np.int64]) -> pa.RecordBatch:
        texts = values_of(decoded, self.text)
        found = {name: column(values_of(decoded, field), name) for name, field in self.fields.items()}
        return self._finish(texts, found, {NUMBER: numbers(places), LINE: lines}, unit)

    def _whole(self, block: bytes | memoryview, unit: Unit, first: int) -> pa.RecordBatch | None:
        """Give the batch of whole rows; None where one is not as simple as the file's first block."""
        n = count_lines(block)
        start = max(unit.start, 0)
        prefix = unit.file if start == 0 else f"{unit.file}/@{start}"
        try:
            decoded = self._decoded_whole(block, unit.file)
            if self.shape is None or len(decoded) != n:
                return None
            found, whole = self.shape.columns(decoded, first, prefix)
        except (msgspec.MsgspecError, UnicodeError, AttributeError, OverflowError):
            return None
        nothing = pa.nulls(n)
        parts = {NUMBER: numbers(np.arange(first, first + n)), WHOLE: whole}
        if self.lines:
            parts[LINE] = line_array(block)
        texts = [row.f0 for row in decoded]
        if not all(texts) and not self.lines:
            return None  # a row that is refused is shown as it stands in its line
        return self._finish(texts, {name: found.get(name, nothing) for name in self.fields}, parts, unit)

    def _decoded_whole(self, block: bytes | memoryview, file: str) -> list[Any]:
        """Decode by the shape that is known; where that fails, each file is looked at once."""
        looked_at = file == self.looked_at
        if self.shape is not None:
            try:
                return self.shape.decode(block)
            except msgspec.MsgspecError:
                if looked_at:
                    raise
        if looked_at:
            return []
        self.looked_at = file
        rows = msgspec.json.Decoder().decode_lines(block)
        self.shape = whole_rows(rows, self.reader.text_key, self.reader.id_key)
        return [] if self.shape is None else self.shape.decode(block)

    def _finish(
        self, texts: list[Any], found: dict[str, pa.Array], parts: dict[str, pa.Array], unit: Unit
    ) -> pa.RecordBatch:
        """Make the batch: the asked columns, and one of all that goes along with a row."""
        before = self.reader.stats.tally.made
        self.reader.stats.tally.made += len(texts)
        if LENGTH in self.columns:
            found[LENGTH] = lengths_of(texts)
        columns = found | {ROWS: rows_of(pa.StructArray.from_arrays([*parts.values()], [*parts]))}
        about = {"file": unit.file, "unit": str(max(unit.start, 0)), "full": self.reader.data_folder.full(unit.file)}
        if self.reader.add_file_path:
            about["shown"] = about["full"]
        batch = pa.RecordBatch.from_arrays([*columns.values()], [*columns], metadata=about)
        if not all(texts):
            self._textless([k for k, text in enumerate(texts) if not text], parts, unit, before)
            batch = batch.filter(pa.array(list(map(bool, texts))))
        return batch

    def _textless(self, which: list[int], parts: dict[str, pa.Array], unit: Unit, before: int) -> None:
        """Let the reader refuse each row without text, as it does where it makes documents."""
        start = max(unit.start, 0)
        prefix = unit.file if start == 0 else f"{unit.file}/@{start}"
        for k in which:
            data, row = msgspec.json.decode(parts[LINE][k].as_py()), parts[NUMBER][k].as_py()
            self.reader.document(data, prefix, row, row=row, seen=before + k + 1)

    def _carefully(self, block: bytes, unit: Unit, first: int) -> tuple[pa.RecordBatch, int]:
        """Read a block with blank, bad or repaired lines: what remains are good lines, written out anew."""
        reader, repairs = self.reader, Repairs()
        rows, lines = rows_of_block(block, first, repairs)
        if repairs.surrogates:
            reader.stat_update("repaired_surrogate", value=repairs.surrogates)
        full = reader.data_folder.full(unit.file)
        good: list[tuple[int, bytes]] = []
        for number, data in enumerate(rows, first):
            if data == ():
                continue
            fits = isinstance(data, dict) and isinstance(data.get(reader.text_key), str | None)
            if isinstance(data, BadLine) or not fits:
                reader.stats.tally.made += 1
                error, item = (data.error, data.line) if isinstance(data, BadLine) else (TypeError("no document"), data)
                reason = "bad_line" if isinstance(data, BadLine) else "bad_row"
                reader.refuse(reason, full, number, error, item)
            else:
                good.append((number, msgspec.json.encode(data) + b"\n"))
        fresh = b"".join(line for _, line in good)
        decoded = self.decode(fresh) if fresh else []
        array = line_array(fresh) if fresh else pa.array([], pa.large_binary())
        return self._asked(decoded, array, unit, np.array([n for n, _ in good], np.int64)), lines
