"""What every writer of records does: rows in, blocks to its files, and an end that is whole or leaves no trace.

Decides when rows become a block, which rows take the short way, and what becomes of a bad row. Knows no bytes of a
shard, and not how rows appear.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from thalweg.core.errors import RecordsError, SampleError, ThalwegError
from thalweg.core.sample import Sample
from thalweg.store import fs
from thalweg.store.quarantine import Quarantine
from thalweg.store.records.block import Block, Rows
from thalweg.store.records.part import PartFiles, parse_schema
from thalweg.store.records.plain import Plain

BLOCK_ROWS = 16_384  # what is done once a block, with caches that the block before emptied, costs 1 ms: 10% at 8,192


class RowWriter(ABC):
    """Takes rows and hands blocks to the files of one writer, and ends well or without a trace.

    What the writers of a generation and of a part share; they differ in how the rows appear.
    """

    def __init__(
        self,
        files: PartFiles,
        schema: Mapping[str, Any] | None,
        quarantine: Quarantine | None = None,
        life: fs.Life | None = None,
    ) -> None:
        self._files, self._quarantine, self._life = files, quarantine, life
        self._rows = Rows(parse_schema(schema))
        self._plain: Plain | None = None  # the short way, while all rows are plain arrays of the same columns
        self._fast: Callable[[Sample], int] | None = None
        self._next = 0
        self._open = True

    def __len__(self) -> int:
        """Rows written so far by this writer."""
        return self._next

    def write(self, sample: Sample, id: str | None = None) -> int:  # noqa: A002
        """Add one row.

        Args:
            sample: column name to value: numpy arrays and scalars, text, bytes, numbers, lists, dicts, None. It is
                copied: the caller may use its arrays again.
            id: the row's id where the sample has no column `id`; default the row number.

        Returns:
            The row's number among the rows of this writer; -1 where it went to quarantine.

        Raises:
            SampleError: a value that does not fit, with on_error="raise".
            RecordsError: the writer is closed.
        """
        fast = self._fast
        if fast is not None and id is None and type(sample) is dict and (took := fast(sample)):
            number = self._next
            self._next = number + 1
            if took > 1:
                self._flush()
            return number
        return self._write(sample, id)

    def _write(self, sample: Sample, id: str | None) -> int:  # noqa: A002
        self._must_be_open()
        if self._plain is not None:
            self._rows.put_back(self._plain)
            self._plain = self._fast = None
        rows, number = self._rows, self._next
        try:
            rows.add(sample, id)
            if self._quarantine is not None and self._files.vocab_size is not None:
                self._check_now()
        except (SampleError, TypeError, ValueError, OverflowError) as error:
            found = error if isinstance(error, ThalwegError) else SampleError(str(error))
            name = sample.get("id") if id is None and hasattr(sample, "get") else id
            found.where = (
                f"row {number}" + (f" id {name!r}" if name is not None else "") + f" {found.where or ''}".rstrip()
            )
            if self._quarantine is None:
                raise found from error
            self._quarantine.put(sample, found, row=number)
            return -1
        self._next = number + 1
        if rows.n == 1 and id is None:
            self._shorten(sample)
        if rows.n >= BLOCK_ROWS or rows.nbytes >= self._files.block_bytes:
            self._flush()
        return number

    def _shorten(self, first: Sample) -> None:
        """Take the short way from the first row of a block on, where that is one of plain arrays."""
        kinds = self._rows.plain_kinds()
        if (
            kinds is None
            or type(first) is not dict
            or (self._quarantine is not None and self._files.vocab_size is not None)
        ):
            return
        plain = Plain(kinds, BLOCK_ROWS, self._files.block_bytes)
        took = plain.add(first)
        if took:
            self._rows.clear()
            self._rows.kinds.update(kinds)
            self._plain, self._fast = plain, plain.add
        if took > 1:
            self._flush()

    def _check_now(self) -> None:
        """Refuse an id outside the vocabulary while the row can still be taken back."""
        low, high = self._rows.last_ids()
        size = self._files.vocab_size
        if size is not None and not 0 <= low <= high < size:
            self._rows.take_back()
            raise SampleError(f"token id {high if high >= size else low} is outside the vocabulary of {size}")

    def write_batch(self, columns: Mapping[str, Any], ids: Sequence[str] | None = None) -> int:
        """Add many rows by columns: the fastest way in.

        Args:
            columns: name to Ragged (rows of arrays), numbers (n,), or a list of n values.
            ids: an id for each row.

        Returns:
            The number of the first row among the rows of this writer.
        """
        self._must_be_open()
        self._flush()
        self._plain = self._fast = None
        first = self._next
        if columns:
            block = self._rows.from_columns(columns, ids)
            self._next += block.n
            with fs.writing(self._files.folder):
                for piece in block.split(BLOCK_ROWS, self._files.block_bytes):
                    self._files.put(piece)
        return first

    def _must_be_open(self) -> None:
        if not self._open:
            raise RecordsError("this writer is closed: the row would be in no set", fix="write inside the with block")

    def _flush(self) -> None:
        with fs.writing(self._files.folder):
            if self._plain is not None:
                if self._plain.n:
                    self._files.put(Block.of(self._plain))
                    self._plain.clear()
                    self._fast = self._plain.add
            elif self._rows.n:
                self._files.put(self._rows.take())

    # ---- the end
    @abstractmethod
    def _finish(self) -> None:
        """Let the rows appear."""

    def close(self) -> None:
        """Finish: the rows appear, whole. Twice is fine."""
        if not self._open:
            return
        try:
            self._flush()
            with fs.writing(self._files.folder):
                self._finish()
        except BaseException:
            self.abandon()
            raise
        self._end()

    def abandon(self) -> None:
        """Throw away what was written; the set is as it was before."""
        if self._open:
            self._files.abandon()
            if self._quarantine is not None:
                self._quarantine.abandon()
            self._end()

    def _end(self) -> None:
        self._open = False
        self._plain = self._fast = None
        if self._life is not None:
            self._life.end()

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finish after the block, throw away after an exception."""
        if kind is None:
            self.close()
        else:
            self.abandon()
