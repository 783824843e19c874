"""WARC in: the pages of a web archive, or its extracted texts (WET).

Decides which records are pages: responses that are HTML by their header or their first bytes, and conversions that
are text. Every other record is counted and passed over. What a page says stays HTML; `Trafilatura` takes its text.
"""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any, ClassVar

from thalweg.core.errors import InputError
from thalweg.plan.shard import Unit
from thalweg.steps.readers.base import BaseDiskReader
from thalweg.steps.readers.json_lines import BadLine
from thalweg.steps.readers.markup import decode, looks_like_html
from thalweg.store.codec import chunks, codec_of, stream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from thalweg.core.document import Document

PAGES = {"text/html", "application/xhtml+xml"}
_CHARSET = re.compile(r"charset\s*=\s*[\"']?([\w.:-]+)", re.IGNORECASE)


class WarcReader(BaseDiskReader):
    """Reads WARC files, plain, gzip or zstd: text is the page as it stands, id the record's own; `url` and `date` too.

    Args: see `BaseDiskReader`. A file is one unit. A page whose character set nobody can tell is a bad row.

    Raises:
        InputError: a file is no WARC, damaged, or ends in the middle of a record.
    """

    name = "Warc reader"
    _requires_dependencies: ClassVar[list[str | tuple[str, str]]] = ["warcio", "charset_normalizer"]

    def read_file(self, filepath: str) -> Iterator[Document]:
        """Yield the documents of a file."""
        yield from self.read_unit(Unit(filepath))

    def read_unit(self, unit: Unit) -> Iterator[Document]:
        """Yield the documents of a file's pages; rows are numbers of records."""
        from warcio.archiveiterator import ArchiveIterator  # noqa: PLC0415  (only where it is used)
        from warcio.exceptions import ArchiveLoadFailed  # noqa: PLC0415

        full = self.data_folder.full(unit.file)
        with self.data_folder.open(unit.file) as raw:
            data = io.BufferedReader(stream(chunks(raw, codec_of(unit.file or full, self.compression), full)), 1 << 16)
            try:
                for number, record in enumerate(ArchiveIterator(data)):
                    row = self._row(record, number, full)
                    if row is None:
                        self.stat_update("other_records")
                    else:
                        yield from self.documents([row], unit, number)
            except ArchiveLoadFailed as error:
                raise InputError(f"the archive cannot be read: {error}", where=full, fix="fetch it again") from error
        self.count_bytes(unit.size, 0)

    def _row(self, record: Any, number: int, full: str) -> Any:
        """Give the row of a record; None where it is no page."""
        kind, headers = record.rec_type, record.rec_headers
        if kind not in {"response", "conversion"}:
            return None
        content = record.content_stream().read()
        left = getattr(record.raw_stream, "limit", 0)
        if left:
            raise InputError(f"record {number} ends {left} bytes too early", where=full, fix="fetch the file again")
        mime = headers.get_header("WARC-Identified-Payload-Type")
        if mime is None:
            text = kind == "conversion" or looks_like_html(content)
            mime = "text/plain" if kind == "conversion" else "text/html" if text else ""
        if mime not in PAGES and not (kind == "conversion" and mime == "text/plain"):
            return None
        http = record.http_headers.get_header("Content-Type", "") if record.http_headers else ""
        declared = _CHARSET.search(http or "")
        page = decode(content, declared[1] if declared else None)
        if page is None:
            return BadLine(number, content[:200], ValueError("its character set cannot be told"))
        named = {self.text_key: page, self.id_key: headers.get_header("WARC-Record-ID")}
        url = headers.get_header("WARC-Target-URI") or headers.get_header("uri")
        return named | {"url": url, "date": headers.get_header("WARC-Date") or headers.get_header("archive-date")}
