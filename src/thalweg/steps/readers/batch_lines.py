"""JSONL as record batches: only the asked columns are decoded, the lines themselves travel along.

Decides nothing that the documents' path does not: the same rows are dropped and the same rows are bad.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from thalweg.core.document import ROW, UNIT
from thalweg.plan.shard import deal
from thalweg.steps.batches import LINE, WHOLE, column, line_array, numbers, row_type, rows_of, values_of
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
        names = {"text": text_key, "id": id_key}
        self.whole = WHOLE in columns and reader.plain
        self.shape: WholeRows | None = None  # how the rows of the newest file that was looked at are
        self.looked_at: str | None = None
        self.columns = columns = tuple(name for name in columns if name != WHOLE)
        self.fields = [names.get(name, name) for name in columns]
        self.text = text_key
        self.decode = msgspec.json.Decoder(row_type([text_key, *self.fields])).decode_lines

    def read(self, rank: int, world_size: int) -> Iterator[pa.RecordBatch]:
        """Give the batches of this rank, one a block."""
        reader = self.reader
        units = reader.units() if reader.planned is None else reader.planned
        for unit in deal(units, rank, world_size):
            reader.stat_update("input_files" if unit.whole else "input_units", unit="unit")
            first = 0
            for block in reader.blocks(unit):
                batch, lines = self._batch(bytes(block), unit, first)
                reader.count_bytes(len(block), lines)
                first += lines
                if batch.num_rows:
                    yield batch
        reader.policy.settle(reader.stats.tally.made)

    def _batch(self, block: bytes, unit: Unit, first: int) -> tuple[pa.RecordBatch, int]:
        lines, offsets = line_array(block)
        n = len(offsets) - 1
        rows = np.arange(first, first + n)
        if self.whole and (found := self._whole(block, unit, rows)) is not None:
            return self._finish(lines, *found, unit, rows), n
        try:
            decoded = self.decode(block)
        except (msgspec.MsgspecError, UnicodeError):
            decoded = []
        if len(decoded) != n:
            return self._carefully(block, unit, first)
        return self._finish(lines, *self._asked(decoded), unit, rows), n

    def _asked(self, decoded: list[Any]) -> tuple[list[Any], dict[str, pa.Array]]:
        arrays = {name: column(values_of(decoded, f), name) for f, name in zip(self.fields, self.columns, strict=True)}
        return values_of(decoded, self.text), arrays

    def _whole(
        self, block: bytes, unit: Unit, rows: NDArray[np.int64]
    ) -> tuple[list[str | None], dict[str, pa.Array]] | None:
        """Give texts and columns of whole rows; None where one is not as simple as the file's first block."""
        reader, start = self.reader, max(unit.start, 0)
        prefix = unit.file if start == 0 else f"{unit.file}/@{start}"
        given = {"prefix": prefix, "full": reader.data_folder.full(unit.file), "unit": str(start)}
        try:
            decoded = self._decoded_whole(block, unit.file)
            if self.shape is None or len(decoded) != len(rows):
                return None
            found = self.shape.columns(decoded, rows, given, shown=reader.add_file_path)
        except (msgspec.MsgspecError, UnicodeError, AttributeError, OverflowError):
            return None
        nothing = pa.nulls(len(rows))
        return [row.f0 for row in decoded], {name: found.get(name, nothing) for name in [*self.columns, WHOLE]}

    def _decoded_whole(self, block: bytes, file: str) -> list[Any]:
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
        self, lines: Any, texts: list[Any], found: dict[str, pa.Array], unit: Unit, rows: NDArray[np.int64]
    ) -> pa.RecordBatch:
        before = self.reader.stats.tally.made
        self.reader.stats.tally.made += len(texts)
        start = pa.array([str(max(unit.start, 0))])
        places = pa.DictionaryArray.from_arrays(numbers(np.zeros(len(texts), np.int32)), start)
        columns = {LINE: rows_of(lines), UNIT: places, ROW: numbers(rows)} | found
        batch = pa.RecordBatch.from_arrays([*columns.values()], [*columns], metadata={"file": unit.file})
        if not all(texts):
            self._textless([k for k, text in enumerate(texts) if not text], lines, unit, rows, before)
            batch = batch.filter(pa.array(list(map(bool, texts))))
        return batch

    def _textless(self, which: list[int], lines: Any, unit: Unit, rows: NDArray[np.int64], before: int) -> None:
        """Let the reader refuse each row without text, as it does where it makes documents."""
        start = max(unit.start, 0)
        prefix = unit.file if start == 0 else f"{unit.file}/@{start}"
        for k in which:
            data = msgspec.json.decode(lines[k].as_py())
            self.reader.document(data, prefix, int(rows[k]), row=int(rows[k]), seen=before + k + 1)

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
        array = line_array(fresh)[0] if fresh else pa.array([], pa.large_binary())
        return self._finish(array, *self._asked(decoded), unit, np.array([n for n, _ in good], np.int64)), lines
