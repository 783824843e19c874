"""Documents of files that pipelines read and write: what `thalweg inspect` shows where there is no record set.

Decides by the ending which reader is asked, and that a row without a text is shown as the conversation it holds.
Knows no format.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from thalweg import steps
from thalweg.check.report import Report
from thalweg.check.tokens import View
from thalweg.core.errors import InputError, ThalwegError
from thalweg.encode.layouts import read, recognise
from thalweg.steps.folder import Folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from thalweg.core.document import Document
    from thalweg.steps.readers.base import BaseDiskReader

READERS = {
    ".jsonl": "JsonlReader",
    ".parquet": "ParquetReader",
    ".csv": "CsvReader",
    ".arrow": "IpcReader",
    ".warc": "WarcReader",
    ".wet": "WarcReader",
}
PACKED = ("", ".gz", ".zst", ".bz2", ".xz")
TEXTLESS = "rows without text"
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


def documents(files: list[str], first: int, count: int, passed: Counter[str] | None = None) -> list[dict[str, Any]]:
    """Read some documents: {"id", "text", "characters", "metadata"} each.

    Args:
        files: as `files_with_documents` gives them; only those are opened that are reached.
        first: how many to pass over.
        count: how many to give.
        passed: counts the rows on the way that have neither text nor conversation, under `TEXTLESS`.

    Raises:
        InputError: there are not so many.
    """
    passed = Counter() if passed is None else passed
    every = chain.from_iterable(_read(file, passed) for file in files)
    found = [
        {"id": d.id, "characters": len(d.text), "metadata": d.metadata, "text": d.text}
        for d in islice(every, first, first + count)
    ]
    if not found:
        raise _none(files[0], first, passed[TEXTLESS])
    return found


def _none(file: str, first: int, textless: int) -> InputError:
    """Say why no document is shown."""
    if textless:
        rows = "1 row has" if textless == 1 else f"{textless:,} rows have"
        what = f"there is no document {first}: {rows} neither a text nor a conversation of a known layout"
        fix = (
            "look at the rows as they are: in a Python file write feed = tw.from_files(PATH), and inspect file.py:feed"
        )
        return InputError(what, where=file, fix=fix)
    fix = "give a smaller --row" if first else "name a file that holds documents"
    return InputError(f"there is no document {first}", where=file, fix=fix)


def _read(path: str, passed: Counter[str]) -> Iterator[Document]:
    name = _reader_of(path)
    assert name is not None
    reader: BaseDiskReader = getattr(steps, name)(path)
    reader.conversation = _any  # rows without text come too: whether they hold turns is seen here
    for document in reader.run():
        if not document.text:
            document.text = conversation_text(document.metadata)
            document.metadata = {k: v for k, v in document.metadata.items() if not _turns(v)}  # they are the text now
        if document.text:
            yield document
        else:
            passed[TEXTLESS] += 1


def _any(document: Document) -> bool:
    del document
    return True


def _turns(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def conversation_text(record: Mapping[str, Any]) -> str:
    """Write a conversation of a known layout, a turn a line under its role; "" for anything else."""
    try:
        turns = read(dict(record), recognise(dict(record))).messages
    except (ThalwegError, AttributeError, KeyError, TypeError, ValueError):
        return ""
    return "\n".join(f"{turn.role}: {turn.text()}" for turn in turns)


def report_of(title: str, found: list[dict[str, Any]]) -> Report:
    """Give documents as a report, whole texts: what its page shows."""
    views = [View(", ".join([str(d["id"]), *_metadata(d)]), (), d["text"]) for d in found]
    return Report(title, {"documents shown": len(views)}, samples=views)


def _metadata(document: dict[str, Any]) -> list[str]:
    return [f"{k}: {str(v)[:200]}" for k, v in document["metadata"].items()]


def text_of(found: list[dict[str, Any]]) -> str:
    """Write documents for people: a head, the metadata, and the beginning of the text."""
    blocks: list[str] = []
    for document in found:
        text = document["text"]
        more = f" ... and {len(text) - SHOWN:,} characters more" if len(text) > SHOWN else ""
        head = f"== {document['id']}  {document['characters']:,} characters"
        blocks.append("\n".join([head, *(f"   {told}" for told in _metadata(document)), text[:SHOWN] + more]))
    return "\n\n".join(blocks)
