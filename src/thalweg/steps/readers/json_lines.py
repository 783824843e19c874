"""JSON values out of blocks of lines: a fast path for good blocks, line by line for the rest.

Decides what one bad byte costs (its line), and that a lone surrogate is repaired to U+FFFD and counted. NaN and
infinities are not JSON and are refused; whole numbers of any size come back exactly. Knows no document.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from thalweg.steps.readers.lines import NEWLINE

if TYPE_CHECKING:
    from collections.abc import Iterator

_decode_lines = msgspec.json.Decoder().decode_lines
_decode = msgspec.json.Decoder().decode


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is not JSON."""

    row: int
    line: bytes
    error: Exception


@dataclass(slots=True)
class Repairs:
    """Counts of what was made right on the way."""

    surrogates: int = 0


def rows_of_block(block: bytes | memoryview, first_row: int, repairs: Repairs) -> tuple[list[Any], int]:
    """Decode the lines of one block.

    Args:
        block: whole lines.
        first_row: number of its first line.
        repairs: counted into.

    Returns: the values, a `BadLine` in the place of each bad line and `None` nowhere but for null; and the number
        of lines. A blank line has a number and is no value: it comes as the empty tuple.
    """
    array = np.frombuffer(block, np.uint8)
    lines = int(np.count_nonzero(array == NEWLINE)) + int(array[-1] != NEWLINE)
    try:
        values = _decode_lines(block)
    except (msgspec.MsgspecError, UnicodeError):
        values = []
    if len(values) == lines:
        return values, lines
    return list(_line_by_line(bytes(block), first_row, repairs)), lines


def _line_by_line(block: bytes, first_row: int, repairs: Repairs) -> Iterator[Any]:
    lines = block.split(b"\n")
    if not lines[-1]:
        lines.pop()
    for row, line in enumerate(lines, first_row):
        if not line.strip():
            yield ()
            continue
        try:
            yield _decode(line)
        except (msgspec.MsgspecError, UnicodeError) as error:
            yield _second_look(row, line, error, repairs)


def _second_look(row: int, line: bytes, error: Exception, repairs: Repairs) -> Any:
    if b"\\u" not in line:
        return BadLine(row, line, error)
    try:
        value = json.loads(line, parse_constant=_refuse)
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return BadLine(row, line, error)
    if not _has_lone(text):
        return BadLine(row, line, error)
    repairs.surrogates += 1
    return repair(value)


def _has_lone(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def repair(value: Any) -> Any:
    """Replace each lone surrogate in the strings of a JSON value by U+FFFD."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if _has_lone(value) else value
    if isinstance(value, list):
        return [repair(v) for v in value]
    if isinstance(value, dict):
        return {repair(k): repair(v) for k, v in value.items()}
    return value


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")
