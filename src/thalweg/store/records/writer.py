"""`create_records`: rows in, a new generation of a record set out, whole after the block and nothing after an error.

Decides what may be written where, when rows become a block, and what becomes of a bad row. Knows no bytes of a shard.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from thalweg.core.errors import ConfigError, RecordsError, SampleError, ThalwegError
from thalweg.core.sample import Sample
from thalweg.core.sizes import to_bytes
from thalweg.store import fs
from thalweg.store.quarantine import Quarantine
from thalweg.store.records import place
from thalweg.store.records.block import Block, Rows
from thalweg.store.records.generation import publish
from thalweg.store.records.manifest import Manifest
from thalweg.store.records.part import PartFiles, parse_schema
from thalweg.store.records.plain import Plain
from thalweg.store.remote import is_url

BLOCK_ROWS = 8192


class RowWriter:
    """Takes rows and hands blocks to the files of one writer. Base of the two public writers' behaviour."""

    def __init__(self, files: PartFiles, schema: Mapping[str, Any] | None, quarantine: Quarantine | None) -> None:
        self._files, self._quarantine = files, quarantine
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
        if rows.n >= BLOCK_ROWS or rows.nbytes >= self._files.block_bytes:
            self._flush()
        return number

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
                return
            if not self._rows.n:
                return
            self._files.put(self._rows.take())
        kinds, checks = self._rows.plain, self._quarantine is not None and self._files.vocab_size is not None
        if kinds and not checks:
            self._plain = Plain(kinds, BLOCK_ROWS, self._files.block_bytes)
            self._fast = self._plain.add


class RecordsWriter(RowWriter):
    """Writes one generation of a record set. Use it as a context manager; see `create_records`."""

    def __init__(
        self,
        folder: Path,
        *,
        base: Manifest | None,
        replace: bool,
        lineage: Mapping[str, Any],
        on_error: str,
        options: Mapping[str, Any],
    ) -> None:
        self.path, self._base, self._replace, self._lineage = folder, base, replace, dict(lineage)
        self.prefix = place.new_prefix()
        self._life = fs.Life(place.life_of(folder, self.prefix)).begin()
        files = PartFiles(folder, self.prefix, declared=parse_schema(options["schema"]), **options["files"])
        bad = Quarantine(folder / f"{self.prefix}.quarantine.jsonl") if on_error == "quarantine" else None
        super().__init__(files, options["schema"], bad)
        self.manifest: Manifest | None = None

    def close(self) -> None:
        """Finish: the rows become the newest generation. Twice is fine."""
        if not self._open:
            return
        try:
            self._flush()
            quarantined = 0 if self._quarantine is None else self._quarantine.close()
            with fs.writing(self.path):
                own = self._files.finish(self._lineage, quarantined)
                self.manifest = self._publish(own)
        except BaseException:
            self.abandon()
            raise
        self._open = False
        self._life.end()

    def _publish(self, own: Manifest) -> Manifest:
        return publish(self.path, own, self._base, replace=self._replace, sync=self._files.sync)

    def abandon(self) -> None:
        """Throw away what was written; the set is as it was before."""
        if self._open:
            self._open = False
            self._files.abandon()
            if self._quarantine is not None:
                self._quarantine.abandon()
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


def create_records(  # noqa: PLR0917
    path: str | Path,
    schema: Mapping[str, Any] | None = None,
    shard_bytes: int | str = "256MB",
    append: bool = False,
    overwrite: bool = False,
    on_error: Literal["raise", "quarantine"] = "raise",
    *,
    vocab_size: int | None = None,
    facts: Sequence[str] = (),
    lineage: Mapping[str, Any] | None = None,
    sync: bool = True,
    storage_options: Mapping[str, Any] | None = None,
) -> RecordsWriter:
    """Open a record set for writing, as a context manager: its rows become a set, whole, after the block.

    Args:
        path: directory of the set; made if it is not there.
        schema: column to type, such as {"input_ids": "int32[*]", "text": "str"}. None: types are found from the
            values, column by column, and a later value of another type changes no earlier one.
        shard_bytes: size at which a shard ends, bytes or "256MB"; memory stays far below it.
        append: add a generation to the set; earlier ones stay openable.
        overwrite: replace the set; the old one stays until the new one is whole.
        on_error: "quarantine": bad rows go to a file in the set with the reason and are counted.
        vocab_size: refuse ids at or above it.
        facts: columns of numbers that are also kept beside the data, in 4 bytes a row.
        lineage: where the rows come from: tokenizer digest, pad_id, eos_id, inputs, config.
        sync: survive a power loss, not only a kill.
        storage_options: for fsspec, where the path is a URL. The set is written on this machine first.

    Raises:
        RecordsError: the path is in use and neither append nor overwrite is said, or another tokenizer made the set.
    """
    if append and overwrite:
        raise ConfigError("append and overwrite exclude each other")
    if on_error not in ("raise", "quarantine"):
        raise ConfigError(f"on_error={on_error!r}", fix='say "raise" or "quarantine"')
    about = dict(lineage or {})
    if vocab_size is not None:
        about.setdefault("vocab_size", vocab_size)
    files = {"shard_bytes": to_bytes(shard_bytes), "facts": tuple(facts), "sync": sync}
    if is_url(str(path)):
        from thalweg.store.records.farwrite import FarWriter, start  # noqa: PLC0415  (asks for fsspec)

        home, base = start(str(path), storage_options or {}, changes=append or overwrite)
        about, vocab = agreed(base if append else None, about, str(path))
        options = {"schema": schema, "files": {**files, "vocab_size": vocab, "sync": False}}
        return FarWriter(home, base=base, replace=overwrite, lineage=about, on_error=on_error, options=options)
    folder = Path(path)
    place.make_folder(folder)
    place.sweep(folder)
    newest = place.generations(folder)
    declared = [g for g in place.declarations(folder) if g not in newest]
    if (newest or declared) and not (append or overwrite):
        raise RecordsError("the path is in use", where=str(folder), fix="append=True, overwrite=True or another path")
    if not newest and any(not p.name.startswith(".") for p in folder.iterdir()) and not declared and not overwrite:
        foreign = sorted(p.name for p in folder.iterdir() if not place.is_ours(p.name))
        if foreign:
            raise RecordsError(
                f"the directory holds other files, such as {foreign[0]!r}", where=str(folder), fix="choose an empty one"
            )
    base = place.read_manifest(place.manifest_path(folder, newest[-1])) if newest else None
    about, vocab = agreed(base if append else None, about, str(folder))
    options = {"schema": schema, "files": {**files, "vocab_size": vocab}}
    return RecordsWriter(folder, base=base, replace=overwrite, lineage=about, on_error=on_error, options=options)


def agreed(base: Manifest | None, about: dict[str, Any], where: str) -> tuple[dict[str, Any], int | None]:
    """Give the lineage of rows that follow those of `base`, and the size of their vocabulary.

    Raises:
        RecordsError: they come from another tokenizer or template.
    """
    if base is None:
        return about, about.get("vocab_size")
    for key in ("tokenizer", "vocab_size", "pad_id", "eos_id", "template"):
        if key in about and key in base.lineage and about[key] != base.lineage[key]:
            raise RecordsError(
                f"{key} is {about[key]!r} here and {base.lineage[key]!r} in the set",
                where=where,
                fix="append what the same tokenizer made, or write another set",
            )
    both = {**base.lineage, **about}
    return both, both.get("vocab_size")
