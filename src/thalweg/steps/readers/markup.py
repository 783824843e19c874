"""Bytes of pages and mails become text: which character set they are in, and what kind of page they are.

Decides the order in which character sets are tried. Knows no archive and no folder.
"""

from __future__ import annotations

import codecs
import re
from contextlib import suppress

_DECLARED = re.compile(rb"""charset\s*=\s*["']?\s*([A-Za-z0-9_.:-]+)""", re.IGNORECASE)
_XML = re.compile(rb"""^\s*<\?xml[^>]*encoding\s*=\s*["']([A-Za-z0-9_.:-]+)""")
_BOMS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
HEAD = 1024  # bytes in which a page names its character set (HTML standard, "prescan")
# The beginnings that the MIME Sniffing standard takes for HTML, each followed by a space or ">".
_TAGS = b"!doctype html html head script iframe h1 div font table a style title b body br p !--"
_PAGE = re.compile(rb"^\s*<(?:%s)(?:[\s>]|(?<=--))" % rb"|".join([b"!doctype html", *_TAGS.split()[2:]]), re.IGNORECASE)


def decode(data: bytes, declared: str | None = None) -> str | None:
    """Decode a page: by its byte-order mark, as UTF-8, as declared outside or inside, then by a guess.

    Args:
        data: the bytes.
        declared: a character set that came from outside, such as a header of HTTP.

    Returns:
        the text, or None where no character set fits.
    """
    mark = next((name for mark, name in _BOMS if data.startswith(mark)), None)
    found = _XML.search(data[:HEAD]) or _DECLARED.search(data[:HEAD])
    inside = found[1].decode("ascii") if found else None
    names = (
        (mark, "utf-8", declared, inside) if b"\x1b$" not in data else (declared, inside, "utf-8")
    )  # ISO-2022 is ASCII
    for name in names:
        with suppress(LookupError, UnicodeDecodeError, ValueError):
            if name:
                return data.decode(name)
    return _guess(data)


def _guess(data: bytes) -> str | None:
    from charset_normalizer import from_bytes  # noqa: PLC0415  (only where nothing says it)

    best = from_bytes(data[: 1 << 16]).best()
    if best is None:
        return None
    with suppress(LookupError, UnicodeDecodeError):
        return data.decode(best.encoding)
    return None


def looks_like_html(data: bytes) -> bool:
    """Say whether bytes begin as a page does (MIME Sniffing standard, section 7.1)."""
    for mark, _ in _BOMS[:1]:
        data = data.removeprefix(mark)
    return _PAGE.match(data[:HEAD]) is not None or data[:HEAD].lstrip().startswith(b"<?xml")
