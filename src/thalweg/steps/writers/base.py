"""What all writers share: names of files, rotation, adapters, counts; documents pass through after they are written.

Decides under which name a document is written. Knows no format: a format opens, appends and closes.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from dataclasses import asdict
from itertools import islice
from string import Template
from types import MethodType
from typing import TYPE_CHECKING, Any, Self

from thalweg.core.errors import ConfigError, nearest
from thalweg.core.sizes import to_bytes
from thalweg.steps.folder import FolderLike, OutputFolder
from thalweg.steps.step import Documents, PipelineStep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from thalweg.core.document import Document

BATCH = 256  # documents encoded in one call


class DiskWriter(PipelineStep):
    """Writes documents to files, and lets them pass.

    Args:
        output_folder: path, URL, (path, options) or folder.
        output_filename: name with `${rank}`, `${id}` and any `${metadata key}`.
        adapter: `(self, document) -> dict` that is written instead of the default.
        expand_metadata: write each metadata key as a column of its own.
        max_file_size: bytes, or such as "1GB", after which a new file begins (`000_`, `001_`, ... before the name);
            -1 for one file.
        save_media_bytes: write the bytes of media too.

    Under an executor, files are made in a staging directory and appear under their names when the rank is complete.
    """

    type = "writer"
    default_output_filename = "${rank}"

    def __init__(  # noqa: PLR0917  (names and order that callers know)
        self,
        output_folder: FolderLike,
        output_filename: str | None = None,
        adapter: Callable[..., dict[str, Any]] | None = None,
        expand_metadata: bool = False,
        max_file_size: int | str = -1,
        save_media_bytes: bool = False,
    ) -> None:
        super().__init__()
        self.output_folder: OutputFolder = OutputFolder.of(output_folder)
        self.filename = output_filename or self.default_output_filename
        self.output_filename = Template(self.filename)
        self.custom_adapter = adapter is not None
        self.adapter: Callable[..., dict[str, Any]] = MethodType(adapter, self) if adapter else self._default_adapter
        self.expand_metadata, self.save_media_bytes = expand_metadata, save_media_bytes
        own = type(self)._default_adapter is not DiskWriter._default_adapter  # noqa: SLF001  (a subclass's)
        self.plain = not (self.custom_adapter or expand_metadata or own)
        self.max_file_size = -1 if max_file_size == -1 else to_bytes(max_file_size)
        self._open: dict[str, Any] = {}
        self._turn: dict[str, int] = {}
        self._fixed: dict[int, str] = {}
        names = set(self.output_filename.get_identifiers())
        self._per_document = bool(names - {"rank"})

    def _default_adapter(self, document: Document) -> dict[str, Any]:
        """Give the fields that are not empty."""
        data: dict[str, Any] = {"text": document.text, "id": document.id}
        if document.media:
            media = [asdict(m) for m in document.media]
            data["media"] = media if self.save_media_bytes else [m | {"media_bytes": None} for m in media]
        if document.metadata:
            if self.expand_metadata:
                data |= document.metadata
            else:
                data["metadata"] = document.metadata
        return data

    def rows(self, documents: list[Document]) -> list[dict[str, Any]]:
        """Give what is written of each document."""
        if self.plain and not any(d.media for d in documents):  # the ordinary case, without a call for each
            return [
                {"text": d.text, "id": d.id, "metadata": d.metadata} if d.metadata else {"text": d.text, "id": d.id}
                for d in documents
            ]
        return list(map(self.adapter, documents))

    def file_of(self, document: Document, rank: int) -> str:
        """Name the file of a document, before rotation.

        Raises:
            ConfigError: the template names a metadata key that the document does not have.
        """
        if not self._per_document:
            return self.file_of_rank(rank)
        values = {**document.metadata, "rank": f"{rank:05d}", "id": document.id}
        try:
            return self.output_filename.substitute(values)
        except KeyError as error:
            raise ConfigError(
                f"output_filename names {error}, which document {document.id!r} does not have",
                fix=nearest(str(error.args[0]), values),
            ) from error

    def file_of_rank(self, rank: int) -> str:
        """Name the one file of a rank, where no document has a say in it."""
        name = self._fixed.get(rank)
        if name is None:
            name = self._fixed[rank] = self.output_filename.substitute(rank=f"{rank:05d}")
        return name

    def name_pattern(self, rank: int) -> str | None:
        """Give a regular expression of all file names that this rank may ever write; None where `${rank}` is absent."""
        return pattern_of(self.output_filename, rank)

    @abstractmethod
    def open_file(self, name: str) -> Any:
        """Begin a file. A format returns what its `append` and `finish` understand."""

    @abstractmethod
    def append(self, file: Any, documents: list[Document]) -> None:
        """Write documents to an open file."""

    @abstractmethod
    def finish(self, file: Any) -> None:
        """End a file."""

    @abstractmethod
    def written(self, file: Any) -> int:
        """Count the bytes of an open file so far."""

    def write(self, document: Document, rank: int = 0) -> None:
        """Write one document."""
        self.write_batch([document], rank)

    def write_batch(self, documents: list[Document], rank: int) -> None:
        """Write documents, each to its file."""
        if self._per_document:
            groups: dict[str, list[Document]] = {}
            for document in documents:
                groups.setdefault(self.file_of(document, rank), []).append(document)
        else:
            groups = {self.file_of(documents[0], rank): documents}
        for name, group in groups.items():
            file = self._current(name)
            self.append(file, group)
            if self.max_file_size > 0 and self.written(file) >= self.max_file_size:
                self._rotate(name)
        self.stats["doc_len"].update_many([len(d.text) for d in documents])

    def _current(self, name: str) -> Any:
        file = self._open.get(name)
        if file is None:
            real = name
            if self.max_file_size > 0:
                folder, slash, base = name.rpartition("/")
                real = f"{folder}{slash}{self._turn.get(name, 0):03d}_{base}"
            file = self._open[name] = self.open_file(real)
            self.stat_update("files", unit="file")
        return file

    def _rotate(self, name: str) -> None:
        self.finish(self._open.pop(name))
        self._turn[name] = self._turn.get(name, 0) + 1

    # ---- record batches, for formats that can write them
    columns: tuple[str, ...] = ()
    prefers_batches = takes_batches = False

    def close(self) -> None:
        """Finish all files; twice is fine."""
        while self._open:
            self.finish(self._open.popitem()[1])

    def __enter__(self) -> Self:
        """Give the writer itself."""
        return self

    def __exit__(self, *failure: object) -> None:
        """Close all files, also on an error: nothing under a final name depends on it."""
        self.close()

    def run(self, data: Documents, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        """Write all documents and let them pass."""
        del world_size
        size = 1 if self.max_file_size > 0 else BATCH
        documents = iter(data or ())
        with self:
            while batch := list(islice(documents, size)):
                self.write_batch(batch, rank)
                yield from batch


def pattern_of(template: Template, rank: int) -> str | None:
    """Give a regular expression of the names that a template gives one rank, rotation included."""
    if "rank" not in template.get_identifiers():
        return None
    marked = template.safe_substitute(rank="\0")
    parts = [re.escape(part) for part in re.split(r"\$\{\w+\}|\$\w+", marked)]
    pattern = ".+".join(parts).replace(re.escape("\0"), f"{rank:05d}")
    folder, slash, base = pattern.rpartition("/")
    return f"{folder}{slash}(\\d{{3,}}_)?{base}"
