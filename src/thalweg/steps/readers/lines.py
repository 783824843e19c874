"""Whole lines out of a file, a byte range or a compressed stream, in blocks of about a megabyte.

Decides which lines belong to a byte range: those whose first byte lies in it. Knows no format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

BLOCK = 1 << 20  # bytes; larger blocks leave the cache, smaller ones cost calls
BOM = b"\xef\xbb\xbf"
NEWLINE = 10


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


def blocks_of_range(file: Any, start: int, stop: int) -> Iterator[memoryview]:
    """Give the lines of an open plain file that begin in bytes start..stop - 1; `stop` -1 means to its end.

    A block is a view that is good until the next one is asked for: one buffer serves the whole file, since fresh
    megabytes cost more in page faults than reading them.
    """
    at = start
    if start:
        file.seek(start - 1)
        at = start - 1 + len(file.readline())  # ends the line that began before
    buffer = bytearray(2 * BLOCK)
    held, first = 0, start == 0
    while stop < 0 or at < stop:
        if held + BLOCK > len(buffer):  # a line longer than a block
            buffer = buffer + bytes(len(buffer))
        room = BLOCK if stop < 0 else min(BLOCK, stop - at)
        got = file.readinto(memoryview(buffer)[held : held + room])
        if not got:
            break
        at, held = at + got, held + got
        if stop >= 0 and at >= stop and buffer[held - 1] != NEWLINE:
            rest = file.readline()
            buffer[held : held + len(rest)] = rest
            held += len(rest)
        end = buffer.rfind(b"\n", 0, held) + 1
        if end:
            mark = len(BOM) if first and buffer.startswith(BOM) else 0
            first = False
            yield memoryview(buffer)[mark:end]
            buffer[: held - end] = buffer[end:held]
            held -= end
    if held:
        yield memoryview(buffer)[len(BOM) if first and buffer.startswith(BOM) else 0 : held]
