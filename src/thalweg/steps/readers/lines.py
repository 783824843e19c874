"""Whole lines out of a file, a byte range or a compressed stream, in blocks of about a megabyte.

Decides which lines belong to a byte range: those whose first byte lies in it. Knows no format.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
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

    A block is a view from the start of a buffer, good until the next one is asked for; what was made of it without a
    copy (an Arrow array) stays good, since a buffer is filled again only when nobody holds it. Fresh megabytes would
    cost more in page faults than reading them.
    """
    at = start
    if start:
        file.seek(start - 1)
        at = start - 1 + len(file.readline())  # ends the line that began before
    buffer, held, first = _free_buffer(), 0, start == 0
    while stop < 0 or at < stop:
        if held + BLOCK > len(buffer):  # a line longer than a block
            buffer = buffer + bytes(max(len(buffer), BLOCK))
        room = BLOCK if stop < 0 else min(BLOCK, stop - at)
        got = file.readinto(memoryview(buffer)[held : held + room])
        if not got:
            break
        at, held = at + got, held + got
        if stop >= 0 and at >= stop and buffer[held - 1] != NEWLINE:
            rest = file.readline()
            buffer[held : held + len(rest)] = rest
            held += len(rest)
        if first and held >= len(BOM):
            first = False
            if buffer.startswith(BOM):
                buffer, held = buffer[len(BOM) :] + BOM, held - len(BOM)
        end = buffer.rfind(b"\n", 0, held) + 1
        if end:
            view = memoryview(buffer)[:end]
            yield view
            with suppress(BufferError):  # an array is made of it
                view.release()
            rest, held = buffer[end:held], held - end
            _give_back(buffer)
            buffer = _free_buffer()
            buffer[:held] = rest
    if held:
        yield memoryview(buffer)[:held]
    _give_back(buffer)


_USED: deque[bytearray] = deque(maxlen=4)  # of all readers of this process; the newest lie in the cache


def _give_back(buffer: bytearray) -> None:
    """Let a buffer be taken again; one that a long line has made large is not kept."""
    if len(buffer) <= 4 * BLOCK:
        _USED.append(buffer)


def _free_buffer() -> bytearray:
    """Take a buffer that nobody has a view of."""
    for _ in range(len(_USED)):
        try:
            buffer = _USED.pop()
        except IndexError:  # another thread was faster
            break
        try:
            buffer.append(0)  # refused while there are views
        except BufferError:
            _USED.appendleft(buffer)
            continue
        buffer.pop()
        return buffer
    return bytearray(BLOCK + BLOCK // 4)
