"""Work units and who gets them: `units[r::W]` over a sorted list.

Decides how one large file is cut and which rank works on which unit. Units depend on the data and the unit size
alone, never on the number of ranks or workers. Knows no file system.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from thalweg.core.errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True, slots=True, order=True)
class Unit:
    """A part of one input file that one rank reads in one go.

    Args:
        file: path of the file, relative to the reader's folder.
        start: first byte of a line format, first row group of a columnar one.
        stop: one past the last; -1 for the whole file.
        size: bytes to read, for progress; 0 where unknown.
    """

    file: str
    start: int = 0
    stop: int = -1
    size: int = 0

    @property
    def whole(self) -> bool:
        """True where the unit is a file from its first byte to its last."""
        return self.start == 0 and self.stop == -1


def cut(size: int, unit_bytes: int) -> list[tuple[int, int]]:
    """Cut `size` bytes into the fewest half-open ranges of about equal length, none above `unit_bytes`.

    A file of no bytes is one empty range, so that it is still seen.

    Raises:
        ConfigError: `unit_bytes` below 1.
    """
    if unit_bytes < 1:
        raise ConfigError(f"units of {unit_bytes} bytes cannot be made", fix="give unit_bytes of 1 or more")
    parts = max(1, -(-size // unit_bytes))
    edges = [size * k // parts for k in range(parts + 1)]
    return list(pairwise(edges))


def deal(units: Sequence[T], rank: int, world: int) -> list[T]:
    """Give rank `rank` of `world` its share: `units[rank::world]`. Ranks are disjoint and cover everything.

    Raises:
        ConfigError: a rank outside 0..world - 1.
    """
    if not 0 <= rank < world:
        raise ConfigError(f"rank {rank} does not fit world size {world}", fix="give 0 <= rank < world size")
    return list(units[rank::world])
