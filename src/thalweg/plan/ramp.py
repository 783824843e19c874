"""A batch-size ramp: how many rows a step takes, where that changes over a run.

Decides the size of a step from the number of rows of the order before it, never from the number of steps, so that a
run that goes on at another layout is as far along its ramp as one that was never stopped. Knows no epoch and no rank.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ramp:
    """Sizes of steps over a run. A step that begins before a breakpoint keeps its size.

    Args:
        entries: (rows of the run before it, rows of a step from there on); breakpoints rise from 0, sizes are at
            least 1.
    """

    entries: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, sizes: "int | Sequence[tuple[int, int]]", ranks: int = 1) -> "Ramp":
        """Make it from the rows of a rank and step: one number, or [(rows before, number)]."""
        entries = ((0, sizes),) if isinstance(sizes, int) else sizes
        return cls(tuple((start, size * ranks) for start, size in entries))

    @property
    def first(self) -> int:
        """Rows of the run's first step."""
        return self.entries[0][1]

    @property
    def largest(self) -> int:
        """Most rows of a step."""
        return max(size for _, size in self.entries)

    @property
    def last(self) -> int:
        """Rows of the run from which on nothing changes any more; 0 where nothing ever does."""
        return self.entries[-1][0]

    def size(self, before: int) -> int:
        """Give the rows of a step that begins behind so many rows of the run."""
        return next(size for start, size in reversed(self.entries) if start <= before)

    def stretches(self, before: int, rows: int, *, whole: bool = False) -> Iterator[tuple[int, int, int]]:
        """Give (first row, counted from the range's, steps, rows of each) of the steps that begin in a range of rows.

        Args:
            before: rows of the run before the range; a step begins at its first row.
            rows: rows of the range.
            whole: only steps that end in it too; the first that does not is the end.
        """
        stops = [start - before for start, _ in self.entries[1:]]
        at = 0
        for (_, size), stop in zip(self.entries, [*stops, rows], strict=True):
            until = min(stop, rows)
            if at >= until:
                continue
            begun = -(-(until - at) // size)
            fitting = min(begun, (rows - at) // size) if whole else begun
            if fitting:
                yield at, fitting, size
            if fitting < begun:
                return
            at += begun * size

    def steps(self, before: int, rows: int, *, whole: bool = False) -> int:
        """Count the steps that begin in a range of rows, as `stretches` gives them."""
        return sum(steps for _, steps, _ in self.stretches(before, rows, whole=whole))

    def rows(self, before: int, steps: int) -> int:
        """Count the rows of so many steps, the first of which begins behind `before` rows of the run."""
        at, left = before, steps
        while left:
            size = self.size(at)
            stop = next((start for start, _ in self.entries if start > at), None)
            take = left if stop is None else min(left, -(-(stop - at) // size))
            at, left = at + take * size, left - take
        return at - before
