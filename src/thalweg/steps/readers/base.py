"""What all readers share: from raw rows to documents, with ids, provenance, counts and an error policy.

Decides how a row becomes a document and which units a rank reads. Knows no file format: a format gives rows.
"""

from __future__ import annotations

import json
import logging
import random
from abc import abstractmethod
from itertools import count
from types import MethodType
from typing import TYPE_CHECKING, Any

from thalweg.core.document import ROW, SOURCE, UNIT, Document, Media
from thalweg.core.errors import ConfigError, InputError
from thalweg.core.sizes import to_bytes
from thalweg.plan.shard import Unit, cut, deal
from thalweg.steps.folder import FileInfo, Folder, FolderLike
from thalweg.steps.policy import ErrorPolicy, OnError
from thalweg.steps.readers.json_lines import BadLine
from thalweg.steps.readers.textless import no_text
from thalweg.steps.step import Documents, PipelineStep
from thalweg.store.codec import codec_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

log = logging.getLogger("thalweg.steps")


class BaseReader(PipelineStep):
    """Makes documents of rows.

    Args:
        limit: most documents to read per rank; -1 for all.
        skip: documents to leave out at the start of each rank's input.
        adapter: `(self, data: dict, path: str, id_in_file) -> dict` with "text" and "id" at least.
        text_key, id_key: where the default adapter finds text and id.
        default_metadata: values for every document's metadata where it has none of that name.
        on_error, max_bad, quarantine: what to do with a row that cannot be read; see `ErrorPolicy`.
    """

    type = "reader"

    def __init__(  # noqa: PLR0917
        self,
        limit: int = -1,
        skip: int = 0,
        adapter: Callable[..., dict[str, Any]] | None = None,
        text_key: str = "text",
        id_key: str = "id",
        default_metadata: dict[str, Any] | None = None,
        *,
        on_error: OnError = "skip",
        max_bad: float = 0.01,
        quarantine: FolderLike | None = None,
    ) -> None:
        super().__init__()
        self.limit, self.skip = limit, skip
        self.text_key, self.id_key = text_key, id_key
        self.custom_adapter = adapter is not None
        self.adapter: Callable[..., dict[str, Any]] = MethodType(adapter, self) if adapter else self._default_adapter
        self.default_metadata = default_metadata
        self.policy = ErrorPolicy(on_error, max_bad, quarantine)
        self._rank = 0
        # says which documents go on though they have no text: those that a later EncodeChat takes
        self.conversation: Callable[[Document], bool] | None = None

    def inherit(self, before: list[Any]) -> None:
        """Forget what steps of another pipeline said: called when the chain is put together."""
        del before
        self.conversation = None

    def _default_adapter(self, data: dict[str, Any], path: str, id_in_file: int | str) -> dict[str, Any]:
        """Take text, id, media and metadata by name; everything else goes into the metadata."""
        text, given = data.pop(self.text_key, ""), data.pop(self.id_key, None)
        media, metadata = data.pop("media", None), data.pop("metadata", None)
        if isinstance(metadata, str):
            try:
                metadata = json.loads(metadata)
            except ValueError:
                metadata = {"metadata": metadata}
        if isinstance(metadata, dict):
            metadata |= data
        else:
            metadata = data if metadata is None else {"metadata": metadata} | data
        name = f"{path}/{id_in_file}" if given is None else given if isinstance(given, str) else str(given)
        return {"text": text, "id": name, "media": media or [], "metadata": metadata}

    def document(self, data: Any, path: str, id_in_file: int | str, *, row: int, seen: int) -> Document | None:
        """Make one document, or None for a row that is dropped and counted.

        A row without text is bad, unless it is a conversation and `EncodeChat` comes later in the pipeline.

        Raises:
            SampleError: the row cannot be read and the policy is "fail".
            BudgetError: too many bad rows.
        """
        try:
            if not isinstance(data, dict):
                raise TypeError(f"the row is a {type(data).__name__}, not an object with keys")  # noqa: TRY301
            parts = self.adapter(data, path, id_in_file)
            text = parts.get("text")
            if text is not None and not isinstance(text, str):
                raise TypeError(f"{self.text_key!r} is a {type(text).__name__}, not text")  # noqa: TRY301
            if parts.get("media"):
                parts["media"] = [m if isinstance(m, Media) else Media(**m) for m in parts["media"]]
            parts["text"] = text or ""
            document = Document(**parts)
        except Exception as error:  # noqa: BLE001  (an adapter is the user's: its errors follow the policy)
            self._bad("bad_row", self.shown(path), row, seen, error, data)
            return None
        if not text and not (self.conversation and self.conversation(document)):
            lack = no_text(self.text_key, document.metadata, adapted=self.custom_adapter)
            self._bad("no_text", self.shown(path), row, seen, lack, document)
            return None
        if self.default_metadata:
            document.metadata = self.default_metadata | document.metadata
        return document

    def shown(self, path: str) -> str:
        """Say where a row's file lies, for logs and errors."""
        return path

    def _bad(self, reason: str, path: str, row: int, seen: int, error: BaseException | None, item: Any) -> None:  # noqa: PLR0917
        where = f"{path}, row {row}"
        self.policy.take(self.stats, self._rank, reason=reason, where=where, seen=seen, error=error, item=item)

    def refuse(self, reason: str, path: str, row: int, error: BaseException, item: Any) -> None:
        """Deal with a row that cannot be used, by the policy."""
        self._bad(reason, path, row, self.stats.tally.made, error, item)

    def _window(self, documents: Iterator[Document]) -> Iterator[Document]:
        """Apply skip and limit."""
        if self.limit == -1 and not self.skip:
            yield from documents
            return
        given = skipped = 0
        for document in documents:
            if skipped < self.skip:
                skipped += 1
                self.drop("skipped_at_start")
                continue
            if self.limit != -1 and given >= self.limit:
                self.stats.tally.made -= 1  # read ahead and not given
                return
            given += 1
            yield document


class BaseDiskReader(BaseReader):
    """Reads the files of a folder, dealt to ranks in units.

    Args:
        data_folder: path, URL, (path, options of fsspec) or folder.
        paths_file: a file with one path a line, relative to `data_folder`, instead of a listing.
        file_progress, doc_progress: accepted for compatibility; a run shows its progress itself.
        recursive, glob_pattern: which files; a pattern without wildcards means "ends in".
        shuffle_files: read a rank's units in random order; ids and provenance do not change.
        add_file_path: put the file's path into the metadata as "file_path".
        split: "auto" cuts plain files larger than `unit_bytes`; "file" gives exactly `files[rank::world_size]`.
        unit_bytes: largest unit: bytes, or such as "128MB".
        on_damage: "fail", or "keep" the rows before the damage of a compressed file, counted and reported.
        Others: see `BaseReader`.

    Raises:
        InputError: the folder or the files are missing, or a file is damaged.
    """

    columnar = False  # True: units are row groups

    def __init__(  # noqa: PLR0917
        self,
        data_folder: FolderLike,
        paths_file: Any = None,
        limit: int = -1,
        skip: int = 0,
        file_progress: bool = False,
        doc_progress: bool = False,
        adapter: Callable[..., dict[str, Any]] | None = None,
        text_key: str = "text",
        id_key: str = "id",
        default_metadata: dict[str, Any] | None = None,
        recursive: bool = True,
        glob_pattern: str | None = None,
        shuffle_files: bool = False,
        add_file_path: bool = True,
        *,
        compression: str | None = "infer",
        split: str = "auto",
        unit_bytes: int | str = "128MB",
        on_error: OnError = "skip",
        max_bad: float = 0.01,
        quarantine: FolderLike | None = None,
        on_damage: str = "fail",
    ) -> None:
        policy: dict[str, Any] = {"on_error": on_error, "max_bad": max_bad, "quarantine": quarantine}
        super().__init__(limit, skip, adapter, text_key, id_key, default_metadata, **policy)
        del file_progress, doc_progress
        for name, value, known in (("split", split, {"auto", "file"}), ("on_damage", on_damage, {"fail", "keep"})):
            if value not in known:
                raise ConfigError(f"{name}={value!r} is unknown", fix=f"say one of {sorted(known)}")
        self.data_folder: Folder = Folder.of(data_folder)
        self.paths_file = paths_file
        self.recursive, self.glob_pattern = recursive, glob_pattern
        self.shuffle_files, self.add_file_path = shuffle_files, add_file_path
        self.compression, self.split, self.on_damage = compression, split, on_damage
        self.unit_bytes = to_bytes(unit_bytes)
        self.planned: list[Unit] | None = None
        # nothing of the user's or a subclass takes part in making a document
        self.plain = not self.custom_adapter and not default_metadata and self._is_plain()

    def _is_plain(self) -> bool:
        kind = type(self)
        own = ("_default_adapter", "place", "get_document_from_dict")
        return all(getattr(kind, name) is getattr(BaseDiskReader, name) for name in own)

    def files(self) -> list[FileInfo]:
        """List the input files, sorted by path.

        Raises:
            InputError: there are none.
        """
        if self.paths_file is not None:
            folder = Folder.of(self.paths_file)
            with folder.open("") as lines:
                names = [line.decode().strip() for line in lines]
            found = [FileInfo(name, 0, "") for name in names if name]
        else:
            found = self.data_folder.list_files(recursive=self.recursive, glob_pattern=self.glob_pattern)
        if not found:
            pattern = f" that match {self.glob_pattern!r}" if self.glob_pattern else ""
            raise InputError(f"there are no files{pattern}", where=self.data_folder.path, fix="check path and pattern")
        return found

    def shown(self, path: str) -> str:
        """Say where a row's file lies, for logs and errors."""
        return self.data_folder.full(path)

    def units(self, files: list[FileInfo] | None = None) -> list[Unit]:
        """Cut the input files into units, sorted by (file, start)."""
        result: list[Unit] = []
        for info in self.files() if files is None else files:
            result += self.cut_file(info)
        return result

    def cut_file(self, info: FileInfo) -> list[Unit]:
        """Cut one file; the default knows whole files only."""
        return [Unit(info.path, size=info.size)]

    def cut_bytes(self, info: FileInfo) -> list[Unit]:
        """Cut a plain line file into byte ranges."""
        whole = self.split == "file" or codec_of(info.path, self.compression) or info.size <= self.unit_bytes
        if whole:
            return [Unit(info.path, size=info.size)]
        return [Unit(info.path, a, b, b - a) for a, b in cut(info.size, self.unit_bytes)]

    @abstractmethod
    def read_file(self, filepath: str) -> Iterator[Document]:
        """Yield the documents of a whole file, through `get_document_from_dict`; a format may override this."""

    def read_unit(self, unit: Unit) -> Iterator[Document]:
        """Yield the documents of a unit; formats that can be cut override this."""
        yield from self.read_file(unit.file)

    def get_document_from_dict(self, data: dict[str, Any], source_file: str, id_in_file: int | str) -> Document | None:
        """Make one document of a row, for readers written outside; counts it."""
        self.stats.tally.made += 1
        row = id_in_file if isinstance(id_in_file, int) else self.stats.tally.made - 1
        document = self.document(data, source_file, id_in_file, row=row, seen=self.stats.tally.made)
        if document:
            self.place(document, self.data_folder.full(source_file), 0, row)
        return document

    def place(self, document: Document, path: str, unit: int, row: int) -> None:
        """Write a document's provenance into its metadata: file, start of the unit, row in the unit."""
        metadata = document.metadata
        metadata.setdefault(SOURCE, path)
        metadata[UNIT], metadata[ROW] = str(unit), row
        if self.add_file_path:
            metadata.setdefault("file_path", path)

    def documents(self, rows: list[Any], unit: Unit, first: int) -> Iterator[Document]:
        """Make the documents of consecutive rows of a unit, the first of which has number `first` in it."""
        path, start = unit.file, max(unit.start, 0)
        full = self.data_folder.full(path)
        prefix = path if start == 0 else f"{path}/@{start}"
        quick = self.quick(zip(count(first), rows), prefix, full, str(start)) if self.plain else iter(rows)
        before, made, lengths = self.stats.tally.made, 0, [0] * 0
        try:
            for row, data in enumerate(quick, first):
                if type(data) is Document:
                    made += 1
                    lengths.append(len(data.text))
                    yield data
                elif data != ():
                    made += 1
                    document = self._slow(data, prefix, full, row, before + made)
                    if document is not None:
                        self.place(document, full, start, row)
                        lengths.append(len(document.text))
                        yield document
        finally:
            self.stats.tally.made += made
            self.stats["doc_len"].update_many(lengths)

    def _slow(self, data: Any, prefix: str, full: str, row: int, seen: int) -> Document | None:
        if isinstance(data, BadLine):
            self._bad("bad_line", full, row, seen, data.error, data.line)
            return None
        return self.document(data, prefix, row, row=row, seen=seen)

    def quick(self, rows: Iterable[tuple[int, Any]], prefix: str, full: str, unit: str) -> Iterator[Any]:
        """Make the documents of ordinary numbered rows at once; hand on every other row as it is."""
        text_key, id_key, shown = self.text_key, self.id_key, self.add_file_path
        for row, data in rows:
            if type(data) is not dict or not data.get(text_key) or type(data[text_key]) is not str or "media" in data:
                yield data
                continue
            metadata = data.pop("metadata", None)
            if metadata is not None and type(metadata) is not dict:
                data["metadata"] = metadata
                yield data
                continue
            text, given = data.pop(text_key), data.pop(id_key, None)
            if metadata is None:
                metadata = data
            elif data:
                metadata |= data
            if SOURCE not in metadata:
                metadata[SOURCE] = full
            metadata[UNIT], metadata[ROW] = unit, row
            if shown and "file_path" not in metadata:
                metadata["file_path"] = full
            name = given if type(given) is str else f"{prefix}/{row}" if given is None else str(given)
            yield Document(text, name, [], metadata)

    def count_bytes(self, size: int, documents: int) -> None:
        """Note progress: bytes and rows just read."""
        done = self.progress
        self.progress = (done[0] + documents, done[1] + size)

    def run(self, data: Documents = None, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        """Yield what came before, then the documents of this rank's units."""
        if data:
            yield from data
        self._rank = rank
        mine = deal(self.units() if self.planned is None else self.planned, rank, world_size)
        if self.shuffle_files:
            random.shuffle(mine)
        yield from self._window(self._read(mine))
        self.policy.settle(self.stats.tally.made)

    def _read(self, units: list[Unit]) -> Iterator[Document]:
        for unit in units:
            self.stat_update("input_files" if unit.whole else "input_units", unit="unit")
            before = self.stats.tally.made
            try:
                yield from self.read_unit(unit)
            except InputError as error:
                self._damage(unit, error, self.stats.tally.made - before)
            self.stat_update("documents", value=self.stats.tally.made - before, unit="input_file")

    def _damage(self, unit: Unit, error: InputError, rows: int) -> None:
        error.what += f", after {rows} rows"
        if self.on_damage == "fail":
            raise error
        self.stat_update("damaged_files", unit="input_file")
        log.warning("%s; the rows before are kept", replace_where(error, self.data_folder.full(unit.file)))


def replace_where(error: InputError, where: str) -> str:
    """Say an input error with the full path of its file."""
    return str(InputError(error.what, where=where))
