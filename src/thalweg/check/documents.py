"""Documents of files that pipelines read and write: what `thalweg inspect` shows where there is no record set.

Decides by the ending which reader is asked. Knows no format.
"""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from thalweg import steps
from thalweg.core.errors import InputError
from thalweg.steps.folder import Folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from thalweg.core.document import Document

READERS = {
    ".jsonl": "JsonlReader",
    ".parquet": "ParquetReader",
    ".csv": "CsvReader",
    ".arrow": "IpcReader",
    ".warc": "WarcReader",
    ".wet": "WarcReader",
}
PACKED = ("", ".gz", ".zst", ".bz2", ".xz")
SHOWN = 600  # characters of a text


def files_with_documents(target: str) -> list[str]:
    """List the files below a path or URL whose ending tells that they hold documents; empty where there are none."""
    folder: Folder = Folder.of(target)
    try:
        names = [info.path for info in folder.list_files()]
    except InputError:
        return []
    return [folder.full(name) for name in names if _reader_of(name or folder.path) is not None]


def _reader_of(path: str) -> str | None:
    for ending, reader in READERS.items():
        if path.endswith(tuple(ending + packed for packed in PACKED)):
            return reader
    return None


def documents(files: list[str], first: int, count: int) -> list[dict[str, Any]]:
    """Read some documents: {"id", "text", "characters", "metadata"} each.

    Args:
        files: as `files_with_documents` gives them; only those are opened that are reached.
        first: how many to pass over.
        count: how many to give.

    Raises:
        InputError: there are not so many.
    """
    every = chain.from_iterable(map(_read, files))
    found = [
        {"id": d.id, "characters": len(d.text), "metadata": d.metadata, "text": d.text}
        for d in islice(every, first, first + count)
    ]
    if not found:
        raise InputError(f"there is no document {first}", where=files[0], fix="give a smaller --row")
    return found


def _read(path: str) -> Iterator[Document]:
    name = _reader_of(path)
    assert name is not None
    yield from getattr(steps, name)(path).run()


def text_of(found: list[dict[str, Any]]) -> str:
    """Write documents for people: a head, the metadata, and the beginning of the text."""
    blocks: list[str] = []
    for document in found:
        text = document["text"]
        more = f" ... and {len(text) - SHOWN:,} characters more" if len(text) > SHOWN else ""
        head = f"== {document['id']}  {document['characters']:,} characters"
        blocks.append(
            "\n".join(
                [head, *(f"   {k}: {str(v)[:200]}" for k, v in document["metadata"].items()), text[:SHOWN] + more]
            )
        )
    return "\n\n".join(blocks)
