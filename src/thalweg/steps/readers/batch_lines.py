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
from thalweg.steps.batches import LINE, column, line_array, numbers, row_type, rows_of, values_of
from thalweg.steps.readers.json_lines import BadLine, Repairs, rows_of_block

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
        self.columns = columns
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
        try:
            rows = self.decode(block)
        except (msgspec.MsgspecError, UnicodeError):
            rows = []
        if len(rows) != n:
            return self._carefully(block, unit, first)
        return self._finish(lines, rows, unit, np.arange(first, first + n)), n

    def _finish(self, lines: Any, decoded: list[Any], unit: Unit, rows: NDArray[np.int64]) -> pa.RecordBatch:
        tally = self.reader.stats.tally
        tally.made += len(decoded)
        arrays = [column(values_of(decoded, f), name) for f, name in zip(self.fields, self.columns, strict=True)]
        start = pa.array([str(max(unit.start, 0))])
        places = pa.DictionaryArray.from_arrays(numbers(np.zeros(len(decoded), np.int32)), start)
        columns = [rows_of(lines), places, numbers(rows), *arrays]
        batch = pa.RecordBatch.from_arrays(columns, [LINE, UNIT, ROW, *self.columns], metadata={"file": unit.file})
        texts = values_of(decoded, self.text)
        if not all(texts):
            tally.drop("no_text", sum(1 for text in texts if not text))
            batch = batch.filter(pa.array(list(map(bool, texts))))
        return batch

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
        return self._finish(array, decoded, unit, np.array([n for n, _ in good], np.int64)), lines
