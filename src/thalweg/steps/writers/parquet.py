"""Parquet out: documents in record batches, snappy by default.

Decides the schema of a file (the given one, or what the first batch shows) and what happens to a value that does not
fit it: the rank fails and names the field and the document, before anything is visible. Knows no folder or name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from thalweg.core.errors import ConfigError, SampleError, nearest
from thalweg.steps.batches import WHOLE
from thalweg.steps.readers.json_lines import repair
from thalweg.steps.writers.base import DiskWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from thalweg.core.document import Document
    from thalweg.steps.folder import FolderLike

CODECS = ("snappy", "gzip", "brotli", "lz4", "zstd")


@dataclass
class _Open:
    raw: Any
    writer: Any = None
    rows: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    schema: Any = None
    batches: list[Any] = field(default_factory=list[Any])  # of columns; never while there are rows


class ParquetWriter(DiskWriter):
    """Writes Parquet.

    Args:
        compression: "snappy", "zstd", "gzip", "brotli", "lz4" or None.
        batch_size: documents gathered before they are written.
        schema: of the output; default: what the first batch shows, all its documents considered.
        use_content_defined_chunking, write_page_index: as pyarrow.
        Others: see `DiskWriter`.

    Raises:
        SampleError: a value or a new field does not fit the schema; field and document are named.
    """

    name = "Parquet writer"
    default_output_filename = "${rank}.parquet"

    def __init__(  # noqa: PLR0917
        self,
        output_folder: FolderLike,
        output_filename: str | None = None,
        compression: str | None = "snappy",
        adapter: Callable[..., dict[str, Any]] | None = None,
        batch_size: int = 1000,
        expand_metadata: bool = False,
        max_file_size: int | str = -1,
        schema: Any = None,
        save_media_bytes: bool = False,
        use_content_defined_chunking: bool = False,
        write_page_index: bool = False,
    ) -> None:
        super().__init__(output_folder, output_filename, adapter, expand_metadata, max_file_size, save_media_bytes)
        if compression is not None and compression not in CODECS:
            raise ConfigError(f"compression={compression!r} is unknown", fix=nearest(compression, CODECS))
        self.compression, self.batch_size, self.schema = compression, batch_size, schema
        self.options: dict[str, Any] = {"write_page_index": write_page_index, "compression": compression or "none"}
        if use_content_defined_chunking:
            self.options["use_content_defined_chunking"] = True

        self.takes_batches = self.plain and not self._per_document

    # a chain that gives record batches sets it: batch -> its documents, for rows that are not simple
    documents_of: Any = None
    columns = (WHOLE,)

    def run_batches(self, data: Iterator[Any], rank: int, world_size: int) -> Iterator[Any]:
        """Write the rows that are left as columns where they are simple, as documents where not."""
        del world_size
        name = self.file_of_rank(rank)
        from thalweg.steps.readers.whole_rows import as_documents  # noqa: PLC0415  (Arrow loads when it is used)

        with self:
            for batch in data:
                file = self._current(name)
                whole = as_documents(batch)
                if whole is not None:
                    self._gather(file, whole)
                    self.stat_update("rows_in_columns", value=batch.num_rows, unit="batch")
                else:
                    self._write_columns(file)
                    documents = list(self.documents_of(batch))
                    self.append(file, documents)
                    self.stats["doc_len"].update_many([len(d.text) for d in documents])
                if self.max_file_size > 0 and self.written(file) >= self.max_file_size:
                    self._rotate(name)
                yield batch

    def _gather(self, file: _Open, fresh: Any) -> None:
        """Keep columns until they are a batch; of a kind that the file has not, they are rows like others."""
        known = file.schema or (file.batches[0].schema if file.batches else self.schema)
        if file.rows or (known is not None and fresh.schema != known):
            self._write_columns(file)
            file.rows += fresh.to_pylist()
            self._write_full(file)
            return
        file.batches.append(fresh)
        if sum(map(len, file.batches)) >= self.batch_size:
            self._write_columns(file)

    def _write_columns(self, file: _Open) -> None:
        import pyarrow as pa  # noqa: PLC0415

        if file.batches:
            table = pa.Table.from_batches(file.batches)
            writer = file.writer or self._begin(file, table.schema)
            writer.write_table(table, row_group_size=table.num_rows)
            file.batches.clear()

    def open_file(self, name: str) -> _Open:
        """Begin a file; its schema is settled with its first batch."""
        return _Open(self.output_folder.create(name))

    def append(self, file: _Open, documents: list[Document]) -> None:
        """Gather documents and write whole batches."""
        file.rows += self.rows(documents)
        self._write_full(file)

    def _write_full(self, file: _Open) -> None:
        while len(file.rows) >= self.batch_size:
            rows, file.rows = file.rows[: self.batch_size], file.rows[self.batch_size :]
            self._write(file, rows)

    def _write(self, file: _Open, rows: list[dict[str, Any]]) -> None:
        import pyarrow as pa  # noqa: PLC0415  (only where it is used)

        writer = file.writer or self._begin(file, self.schema or schema_of(rows))
        _refuse_new_fields(rows, file.schema)
        try:
            batch = pa.RecordBatch.from_pylist(rows, schema=file.schema)
        except UnicodeEncodeError:
            self.stat_update("repaired_surrogate")
            batch = pa.RecordBatch.from_pylist([repair(row) for row in rows], schema=file.schema)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise _misfit(rows, file.schema, error) from error
        writer.write_batch(batch)

    def _begin(self, file: _Open, schema: Any) -> Any:
        """Settle the schema, at the first batch."""
        import pyarrow.parquet as pq  # noqa: PLC0415

        # smallest and largest text of a group help no reader, and cost a sixth of the time of writing it
        known = [name for name in _leaves(schema) if name != "text"]
        settings: dict[str, Any] = {"use_dictionary": False, "write_statistics": known or False, **self.options}
        file.schema, file.writer = schema, pq.ParquetWriter(file.raw, schema, **settings)
        return file.writer

    def written(self, file: _Open) -> int:
        """Count the bytes of an open file so far."""
        return int(file.raw.tell())

    def finish(self, file: _Open) -> None:
        """Write what is left and the footer; a file without a row is a file without a column."""
        try:
            self._write_columns(file)
            if file.rows or file.writer is None:
                self._write(file, file.rows)
        finally:
            if file.writer is not None:
                file.writer.close()
            file.raw.close()


def schema_of(rows: list[dict[str, Any]]) -> Any:
    """Infer a schema from all rows of a batch, in the order in which their keys come.

    Raises:
        SampleError: a column holds values of two kinds.
    """
    import pyarrow as pa  # noqa: PLC0415

    fields: list[Any] = []
    for name in dict.fromkeys(key for row in rows for key in row):
        try:
            kind = _type_of([row.get(name) for row in rows])
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise SampleError(
                f"column {name!r} holds values of two kinds, or too large ones: {error}",
                fix="give schema=, or an adapter that settles it",
            ) from error
        fields.append(pa.field(name, pa.string() if pa.types.is_null(kind) else kind))
    return pa.schema(fields)


def _type_of(values: list[Any]) -> Any:
    import pyarrow as pa  # noqa: PLC0415

    try:
        return pa.array(values).type
    except UnicodeEncodeError:
        return pa.array([repair(value) for value in values]).type


def _leaves(schema: Any) -> list[str]:
    """List the columns as Parquet names them: "metadata.url"."""
    found: list[str] = []
    for f in schema:
        inner = _leaves(f.type) if str(f.type).startswith("struct") else []
        found += [f"{f.name}.{name}" for name in inner] or [f.name]
    return found


def _refuse_new_fields(rows: list[dict[str, Any]], schema: Any) -> None:
    known = set(schema.names)
    inner = {f.name: {g.name for g in f.type} for f in schema if str(f.type).startswith("struct")}
    used = {name: set[str]().union(*[row.get(name) or () for row in rows]) for name in inner}
    if known.issuperset(set[str]().union(*rows)) and all(keys >= used[name] for name, keys in inner.items()):
        return
    for row in rows:
        extra = [k for k in row if k not in known]
        extra += [f"{name}.{k}" for name, keys in inner.items() for k in (row.get(name) or {}) if k not in keys]
        if extra:
            raise SampleError(
                f"field {extra[0]!r} is not in the file's schema, which its first documents settled",
                where=f"document {row.get('id')!r}",
                fix="give schema= with all fields, or an adapter that leaves it out",
            )


def _misfit(rows: list[dict[str, Any]], schema: Any, error: Exception) -> SampleError:
    import pyarrow as pa  # noqa: PLC0415

    for row in rows:
        for column in schema:
            try:
                pa.array([row.get(column.name)], column.type)
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as cause:
                return SampleError(
                    f"field {column.name!r} does not fit its type {column.type}: {cause}",
                    where=f"document {row.get('id')!r}",
                    fix="give schema=, or an adapter that settles it",
                )
    return SampleError(str(error))
