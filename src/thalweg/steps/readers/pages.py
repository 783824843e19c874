"""Files that are documents themselves: pages of HTML, XML with or without records, mails.

Decides what the text of each is. A file that cannot be read so costs that file, by the error policy.
"""

from __future__ import annotations

import io
import re
from abc import abstractmethod
from email import policy
from email.parser import BytesParser
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any, ClassVar
from xml.etree import ElementTree as ET

from thalweg.core.errors import InputError
from thalweg.plan.shard import Unit
from thalweg.steps.readers.base import BaseDiskReader
from thalweg.steps.readers.json_lines import BadLine
from thalweg.steps.readers.markup import decode
from thalweg.store.codec import chunks, codec_of, stream

if TYPE_CHECKING:
    from collections.abc import Iterator
    from email.message import EmailMessage

    from thalweg.core.document import Document


class FileReader(BaseDiskReader):
    """Reads files of which each gives a few rows. A format says which."""

    def read_file(self, filepath: str) -> Iterator[Document]:
        """Yield the documents of a file."""
        yield from self.read_unit(Unit(filepath))

    def read_unit(self, unit: Unit) -> Iterator[Document]:
        """Yield the documents of a file."""
        full = self.data_folder.full(unit.file)
        with self.data_folder.open(unit.file) as raw:
            pieces = chunks(raw, codec_of(unit.file or full, self.compression), full)
            for number, row in enumerate(self.rows(io.BufferedReader(stream(pieces)), full)):
                yield from self.documents([row], unit, number)
        self.count_bytes(unit.size, 1)

    @abstractmethod
    def rows(self, data: io.BufferedReader, full: str) -> Iterator[Any]:
        """Give the rows of a file."""


class HtmlReader(FileReader):
    """Reads pages of HTML: text is the page as it stands, for an extractor such as `Trafilatura`; `title` beside it.

    Args: see `BaseDiskReader`.
    """

    name = "Html reader"
    _requires_dependencies: ClassVar[list[str | tuple[str, str]]] = ["charset_normalizer"]

    def rows(self, data: io.BufferedReader, full: str) -> Iterator[Any]:
        """Give the page."""
        del full
        content = data.read()
        page = decode(content)
        if page is None:
            yield BadLine(0, content[:200], ValueError("its character set cannot be told"))
        else:
            yield {self.text_key: page, "title": _title(page)}


def _title(page: str) -> str:
    found = _Title()
    found.feed(page)
    return " ".join("".join(found.words).split())


class _Title(HTMLParser):
    """Keeps what stands in the first <title>."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.depth = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del attrs
        self.depth += tag == "title" and not self.words

    def handle_endtag(self, tag: str) -> None:
        self.depth -= tag == "title" and self.depth > 0

    def handle_data(self, data: str) -> None:
        if self.depth:
            self.words.append(data)


class XmlReader(FileReader):
    """Reads XML, one pass, one record in memory.

    Args:
        record: local name of the element that is a document, such as "page"; None makes one of each file.
        text: local name of the element below it whose text is the document's; None takes all text of the record.
        Others: see `BaseDiskReader`. Attributes of the record and its children that hold only text become metadata.

    Raises:
        InputError: the file is not well-formed, or its entities grow beyond all bounds.
    """

    name = "Xml reader"

    def __init__(
        self, data_folder: Any, *args: Any, record: str | None = None, text: str | None = None, **more: Any
    ) -> None:
        super().__init__(data_folder, *args, **more)
        self.record, self.text = record, text

    def rows(self, data: io.BufferedReader, full: str) -> Iterator[Any]:
        """Give the records as they end."""
        depth, root = 0, ET.Element("none")
        try:
            for event, element in ET.iterparse(data, ("start", "end")):  # noqa: S314  (expat bounds expansion itself)
                if event == "start":
                    root = root if depth else element
                    depth += 1
                    continue
                depth -= 1
                if (self.record is None and not depth) or _local(element) == self.record:
                    yield self._row(element)
                    if depth:
                        element.clear()
                        root[:] = []
        except ET.ParseError as error:
            raise InputError(f"the file is not well-formed XML: {error}", where=full) from error

    def _row(self, element: ET.Element) -> dict[str, Any]:
        found = next((e for e in element.iter() if _local(e) == self.text), None) if self.text else element
        row: dict[str, Any] = dict(element.attrib)
        for child in element:
            if not len(child) and child is not found and child.text and child.text.strip():
                row.setdefault(_local(child), child.text.strip())
        return row | {self.text_key: "" if found is None else "".join(found.itertext()).strip()}


def _local(element: ET.Element) -> str:
    return element.tag.rpartition("}")[2]


class EmailReader(FileReader):
    """Reads mails: files of one message (.eml), or mailboxes (.mbox, or a first line that begins with "From ").

    Text is the plain body; where there is none, the HTML body as it stands. Metadata: `subject`, `from`, `to`,
    `date`, `attachments` (names). The id is the Message-ID.

    Args: see `BaseDiskReader`.
    """

    name = "Email reader"

    def rows(self, data: io.BufferedReader, full: str) -> Iterator[Any]:
        """Give the messages of a file."""
        del full
        parser = BytesParser(policy=policy.default)
        for number, content in enumerate(_messages(data)):
            try:
                yield self._row(parser.parsebytes(content))
            except (LookupError, ValueError) as error:
                yield BadLine(number, content[:200], error)

    def _row(self, mail: EmailMessage) -> dict[str, Any]:
        body = mail.get_body(("plain", "html"))
        row: dict[str, Any] = {name: str(mail[name]) for name in ("subject", "from", "to", "date") if mail[name]}
        row["attachments"] = [part.get_filename() or "" for part in mail.iter_attachments()]
        if mail["message-id"]:
            row[self.id_key] = str(mail["message-id"]).strip()
        return row | {self.text_key: body.get_content() if body is not None else ""}


def _messages(data: io.BufferedReader) -> Iterator[bytes]:
    """Cut a mailbox at lines that begin with "From " after a blank one (format mboxrd: one ">" is taken off)."""
    if data.peek(5)[:5] != b"From ":
        yield data.read()
        return
    lines: list[bytes] = []
    blank = True
    for line in data:
        if blank and line.startswith(b"From "):
            if lines:
                yield _joined(lines)
            lines = []
        else:
            lines.append(line[1:] if re.match(rb">+From ", line) else line)
        blank = not line.strip()
    yield _joined(lines)


def _joined(lines: list[bytes]) -> bytes:
    """Join the lines of a message without the blank one that ends it in a mailbox."""
    return b"".join(lines[:-1] if lines and not lines[-1].strip() else lines)
