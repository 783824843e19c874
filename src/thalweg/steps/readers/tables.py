"""Rows of tables in: Arrow IPC files, data sets of the `datasets` library, our own records, WebDataset tars.

Decides how each is dealt to ranks: IPC by record batches, tars by files, the others by ranges of rows. Row numbers
are those of the whole table, so that ids don't depend on the number of ranks.
"""

from __future__ import annotations

from abc import abstractmethod
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

from thalweg.core.document import ROW, SOURCE, UNIT
from thalweg.core.errors import ConfigError, InputError
from thalweg.plan.shard import Unit, deal
from thalweg.steps.readers.base import BaseDiskReader, BaseReader

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from thalweg.core.document import Document
    from thalweg.steps.folder import FileInfo
    from thalweg.steps.step import Documents


class IpcReader(BaseDiskReader):
    """Reads Arrow IPC files.

    Args:
        stream: True for the stream format, False for the file format, None looks at each file.
        Others: see `BaseDiskReader`. A file of the file format above `unit_bytes` is cut at record batches.

    Raises:
        InputError: a file is no Arrow IPC, or damaged.
    """

    name = "Ipc reader"
    columnar = True

    def __init__(self, data_folder: Any, *args: Any, stream: bool | None = None, **more: Any) -> None:
        super().__init__(data_folder, *args, **more)
        self.stream = stream

    def cut_file(self, info: FileInfo) -> list[Unit]:
        """Cut a large file into runs of record batches of about `unit_bytes`."""
        if self.split == "file" or info.size <= self.unit_bytes:
            return [Unit(info.path, size=info.size)]
        with self.data_folder.open(info.path) as raw:
            reader, seekable = self._open(raw, info.path)
            if not seekable:
                return [Unit(info.path, size=info.size)]
            batches = reader.num_record_batches
        parts = max(1, min(batches, -(-info.size // self.unit_bytes)))
        edges = [batches * k // parts for k in range(parts + 1)]
        return [Unit(info.path, a, b, info.size // parts) for a, b in pairwise(edges)]

    def _open(self, raw: Any, path: str) -> tuple[Any, bool]:
        import pyarrow as pa  # noqa: PLC0415  (only where it is used)

        try:
            seekable = raw.read(6) == b"ARROW1" if self.stream is None else not self.stream
            raw.seek(0)
            return (pa.ipc.open_file(raw) if seekable else pa.ipc.open_stream(raw)), seekable
        except pa.ArrowInvalid as error:
            raise self._no_ipc(path, error) from error

    def _no_ipc(self, path: str, error: Exception) -> InputError:
        return InputError(f"this is no whole Arrow IPC file: {error}", where=self.data_folder.full(path))

    def read_file(self, filepath: str) -> Iterator[Document]:
        """Yield the documents of a whole file."""
        yield from self.read_unit(Unit(filepath))

    def read_unit(self, unit: Unit) -> Iterator[Document]:
        """Yield the documents of a unit's record batches; rows are numbered within the unit."""
        import pyarrow as pa  # noqa: PLC0415  (only where it is used)

        with self.data_folder.open(unit.file) as raw:
            reader, seekable = self._open(raw, unit.file)
            first = 0
            try:
                for batch in _batches(reader, unit) if seekable else reader:
                    rows = batch.to_pylist()
                    yield from self.documents(rows, unit, first)
                    self.count_bytes(batch.nbytes, len(rows))
                    first += len(rows)
            except (pa.ArrowInvalid, OSError) as error:
                raise self._no_ipc(unit.file, error) from error


def _batches(reader: Any, unit: Unit) -> Iterator[Any]:
    for k in range(unit.start, reader.num_record_batches if unit.stop < 0 else unit.stop):
        yield reader.get_batch(k)


_BEFORE_TEXT_KEY = 6  # positional arguments of BaseDiskReader between data_folder and text_key


class WebDatasetReader(BaseDiskReader):
    """Reads WebDataset tars: the members of a sample are its columns, as `thalweg convert` reads them.

    Args: see `BaseDiskReader`. A tar is one unit; text is member `txt` unless `text_key` says another.

    Raises:
        InputError: members of a sample that stand apart or come twice, or a damaged tar; tar and member are named.
    """

    name = "WebDataset reader"

    def __init__(self, data_folder: Any, *args: Any, **more: Any) -> None:
        if len(args) <= _BEFORE_TEXT_KEY:
            more.setdefault("text_key", "txt")
        super().__init__(data_folder, *args, **more)

    def read_file(self, filepath: str) -> Iterator[Document]:
        """Yield the documents of a tar."""
        yield from self.read_unit(Unit(filepath))

    def read_unit(self, unit: Unit) -> Iterator[Document]:
        """Yield the documents of a tar."""
        from thalweg.store.formats.webdataset import samples  # noqa: PLC0415  (only where it is used)

        with self.data_folder.open(unit.file) as raw:
            for number, row in enumerate(samples(raw, self.data_folder.full(unit.file))):
                yield from self.documents([row], unit, number)
        self.count_bytes(unit.size, 0)


class RangeReader(BaseReader):
    """Reads a table with random access; ranges of `batch_size` rows are dealt to ranks. A format opens it."""

    batch_size = 1000

    @abstractmethod
    def table(self) -> tuple[Any, str]:
        """Open the table, which has a length and slices, and give its name."""

    @abstractmethod
    def rows(self, table: Any, start: int, stop: int) -> list[dict[str, Any]]:
        """Read rows [start, stop)."""

    def run(self, data: Documents = None, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        """Yield what came before, then the documents of this rank's ranges."""
        if data:
            yield from data
        self._rank = rank
        table, name = self.table()
        ranges = deal(range(0, len(table), self.batch_size), rank, world_size)
        found = (self.rows(table, a, min(a + self.batch_size, len(table))) for a in ranges)
        yield from self._window(self._documents(zip(ranges, found, strict=True), name))
        self.policy.settle(self.stats.tally.made)

    def _documents(self, runs: Iterator[tuple[int, list[dict[str, Any]]]], name: str) -> Iterator[Document]:
        for first, rows in runs:
            for row, data in enumerate(rows, first):
                self.stats.tally.made += 1
                document = self.document(data, name, row, row=row, seen=self.stats.tally.made)
                if document is not None:
                    document.metadata.setdefault(SOURCE, name)
                    document.metadata |= {UNIT: str(first), ROW: row - first}
                    self.stats["doc_len"].update(len(document.text))
                    yield document
            self.progress = (self.progress[0] + len(rows), self.progress[1])


class RecordsReader(RangeReader):
    """Reads a record set as documents: one column is the text, the others become metadata.

    Args:
        path: directory or URL of the set.
        columns: read these alone; None reads all.
        Others: see `BaseReader`.

    Raises:
        RecordsError: no record set is there, or it has no such column.
    """

    name = "Records reader"

    def __init__(self, path: Any, *args: Any, columns: list[str] | None = None, **more: Any) -> None:
        super().__init__(*args, **more)
        self.path, self.columns = str(path), columns

    @property
    def identity(self) -> Mapping[str, Any]:
        """Name what is read: the rows themselves, wherever they lie."""
        table, _ = self.table()
        return {name: v for name, v in self.arguments.items() if name != "path"} | {"records": table.fingerprint}

    def table(self) -> tuple[Any, str]:
        """Open the set."""
        from thalweg.store.records import open_records  # noqa: PLC0415  (only where it is used)

        table = open_records(self.path, columns=self.columns)
        if self.text_key not in table.schema and self.conversation is None:
            raise ConfigError(
                f"the records have no column {self.text_key!r}; they have {sorted(table.schema)}",
                where=self.path,
                fix="name the column of the text with text_key=",
            )
        return table, self.path

    def rows(self, table: Any, start: int, stop: int) -> list[dict[str, Any]]:
        """Read a slice."""
        return [dict(sample) for sample in table[start:stop]]


class HuggingFaceDatasetReader(RangeReader):
    """Reads a data set of the `datasets` library: by its name, from local files, or as saved to disk.

    Args:
        dataset: name or path for `load_dataset`, or a directory of `save_to_disk`.
        dataset_options: keywords of `load_dataset`; must name one split.
        streaming: read it as a stream; its own shards are dealt to ranks.
        batch_size: rows read at once.
        load_from_disk: `dataset` is a directory of `save_to_disk`.
        shuffle_files: shuffled with seed 42; row numbers are then those of the shuffled set.
        Others: see `BaseReader`.

    Raises:
        ConfigError: the options leave several splits.
    """

    name = "HuggingFace reader"
    _requires_dependencies: ClassVar[list[str | tuple[str, str]]] = ["datasets"]

    def __init__(
        self,
        dataset: str,
        dataset_options: dict[str, Any] | None = None,
        streaming: bool = False,
        *args: Any,
        batch_size: int = 1000,
        load_from_disk: bool = False,
        shuffle_files: bool = False,
        doc_progress: bool = False,
        **more: Any,
    ) -> None:
        super().__init__(*args, **more)
        del doc_progress  # a run shows its progress itself
        self.dataset, self.options = str(dataset), dataset_options or {}
        self.streaming, self.batch_size = streaming and not load_from_disk, batch_size
        self.load_from_disk, self.shuffle_files = load_from_disk, shuffle_files

    def table(self) -> tuple[Any, str]:
        """Load the data set."""
        import datasets  # noqa: PLC0415  (only where it is used)

        if self.load_from_disk:
            table: Any = datasets.load_from_disk(self.dataset)
        else:
            table = datasets.load_dataset(self.dataset, **self.options, streaming=self.streaming)
        if isinstance(table, dict):
            raise ConfigError(
                f"the data set has the splits {sorted(table)}",
                where=self.dataset,
                fix='name one: dataset_options={"split": "train"}',
            )
        return (table.shuffle(seed=42) if self.shuffle_files else table), self.dataset

    def rows(self, table: Any, start: int, stop: int) -> list[dict[str, Any]]:
        """Read a slice."""
        columns: dict[str, list[Any]] = table[start:stop]
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def run(self, data: Documents = None, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        """Yield what came before, then this rank's documents."""
        if not self.streaming:
            yield from super().run(data, rank, world_size)
            return
        from datasets.distributed import split_dataset_by_node  # noqa: PLC0415

        if data:
            yield from data
        self._rank = rank
        table, name = self.table()
        mine = split_dataset_by_node(table, rank, world_size)
        runs = ((k * self.batch_size, rows) for k, rows in enumerate(_listed(mine, self.batch_size)))
        yield from self._window(self._documents(runs, f"{name}/{rank:05d}"))
        self.policy.settle(self.stats.tally.made)


def _listed(table: Any, size: int) -> Iterator[list[dict[str, Any]]]:
    for columns in table.iter(size):
        yield [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
