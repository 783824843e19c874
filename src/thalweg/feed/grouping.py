"""How many micro-batches are read in one call: the first alone, then a few, then as many as come quickly.

Decides that a first batch waits for nothing behind it, that a call is large enough not to show, and that slow reads
(a cold disk, a network) come in small portions. Reads nothing itself.
"""

from collections.abc import Iterator

from thalweg.feed.micros import Micro

FEW, FEW_TOKENS = 16, 1 << 18  # micro-batches of a call, and their tokens, behind the first
MANY, MANY_TOKENS = 64, 1 << 20  # where calls are quick: about where the cost a call no longer shows; 4 MB
QUICK = 0.02  # seconds that a quick call takes at most


class Grouping:
    """Puts micro-batches together.

    Args:
        whole_steps: groups are whole steps: something is counted over all of a step's micro-batches.
        near: what is read lies in memory; else there are never many.
    """

    def __init__(self, *, whole_steps: bool, near: bool) -> None:
        self._whole_steps, self._near, self._size, self._began = whole_steps, near, 1, False

    def of(self, micros: Iterator[Micro]) -> Iterator[list[Micro]]:
        """Give groups in order; each is as large as is right when it is asked for."""
        group: list[Micro] = []
        for micro in micros:
            group.append(micro)
            if micro.last if self._whole_steps else len(group) >= self._size:
                yield group
                group = []
        if group:
            yield group

    def took(self, batches: int, tokens: int, seconds: float) -> None:
        """Learn from a group that was read."""
        many = self._near and self._began and seconds <= QUICK
        each = max(tokens // batches, 1)
        most, room = (MANY, MANY_TOKENS) if many else (FEW, FEW_TOKENS)
        self._size, self._began = max(1, min(most, room // each)), True
