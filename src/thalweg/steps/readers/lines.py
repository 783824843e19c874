"""Whole lines out of a file, a byte range or a compressed stream, in blocks of about a megabyte.

Decides which lines belong to a byte range: those whose first byte lies in it. Knows no format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

BLOCK = 1 << 20  # bytes; larger blocks leave the cache, smaller ones cost calls
BOM = b"\xef\xbb\xbf"


def blocks_of_chunks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Cut a stream of bytes at line ends. Each block but the last ends in a newline; a leading mark (BOM) goes."""
    rest, first = b"", True
    for chunk in chunks:
        data = rest + chunk if rest else chunk
        if first and len(data) >= len(BOM):
            data, first = data.removeprefix(BOM), False
        end = data.rfind(b"\n") + 1
        if end:
            yield data[:end]
        rest = data[end:]
    if first:
        rest = rest.removeprefix(BOM)
    if rest:
        yield rest


def blocks_of_range(file: Any, start: int, stop: int) -> Iterator[bytes]:
    """Give the lines of an open plain file that begin in bytes start..stop - 1; `stop` -1 means to its end."""
    at = start
    if start:
        file.seek(start - 1)
        at = start - 1 + len(file.readline())  # ends the line that began before
    rest, first = b"", start == 0
    while stop < 0 or at < stop:
        data = file.read(BLOCK if stop < 0 else min(BLOCK, stop - at))
        if not data:
            break
        at += len(data)
        if stop >= 0 and at >= stop and not data.endswith(b"\n"):
            data += file.readline()
            at += 1
        data = rest + data if rest else data
        if first:
            data, first = data.removeprefix(BOM), False
        end = data.rfind(b"\n") + 1
        if end:
            yield data[:end]
        rest = data[end:]
    if rest:
        yield rest
