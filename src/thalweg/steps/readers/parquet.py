"""Parquet in: units are row groups, rows are dicts.

Decides how a large file is cut (whole row groups, none split). Knows no document: that is the business of `base`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from thalweg.plan.shard import Unit
from thalweg.steps.readers.base import BaseDiskReader
from thalweg.store.formats.parquet import batches, opened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from thalweg.core.document import Document
    from thalweg.steps.folder import FileInfo


class ParquetReader(BaseDiskReader):
    """Reads Parquet files.

    Args:
        batch_size: rows decoded at once.
        read_metadata: False reads text and id alone.
        Others: see `BaseDiskReader`. A file above `unit_bytes` is cut at row groups.

    Raises:
        InputError: a file is not Parquet, or damaged.
    """

    name = "Parquet reader"
    columnar = True

    def __init__(
        self, data_folder: Any, *args: Any, batch_size: int = 1000, read_metadata: bool = True, **more: Any
    ) -> None:
        super().__init__(data_folder, *args, **more)
        self.batch_size, self.read_metadata = batch_size, read_metadata

    def cut_file(self, info: FileInfo) -> list[Unit]:
        """Cut a large file into runs of row groups of about `unit_bytes`."""
        if self.split == "file" or info.size <= self.unit_bytes:
            return [Unit(info.path, size=info.size)]
        with self.data_folder.open(info.path) as raw:
            meta = opened(raw, self.data_folder.full(info.path)).metadata
            sizes = [meta.row_group(k).total_byte_size for k in range(meta.num_row_groups)]
        units: list[Unit] = []
        start = held = 0
        for k, size in enumerate(sizes):
            if held and held + size > self.unit_bytes:
                units.append(Unit(info.path, start, k, held))
                start, held = k, 0
            held += size
        return [*units, Unit(info.path, start, len(sizes), held)]

    def read_file(self, filepath: str) -> Iterator[Document]:
        """Yield the documents of a whole file."""
        yield from self.read_unit(Unit(filepath))

    def read_unit(self, unit: Unit) -> Iterator[Document]:
        """Yield the documents of a unit's row groups; rows are numbered within the unit."""
        with self.data_folder.open(unit.file) as raw:
            full = self.data_folder.full(unit.file)
            file = opened(raw, full)
            groups = list(range(unit.start, file.num_row_groups if unit.stop < 0 else unit.stop))
            wanted = None
            if not self.read_metadata:
                wanted = [c for c in (self.text_key, self.id_key) if c in file.schema_arrow.names]
            first = 0
            for batch in batches(file, full, self.batch_size, groups, wanted):
                rows = batch.to_pylist()
                yield from self.documents(rows, unit, first)
                self.count_bytes(batch.nbytes, len(rows))
                first += len(rows)
