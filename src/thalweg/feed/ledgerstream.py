"""Rows of a stream in a ledger: which rows of which sub-streams a micro-batch had, in as few bytes as they need.

Decides the bytes of an entry without its digests: numbers of variable length, relative to the entry before, so that a
batch of one row takes 6 of them. Writer and reader keep the same memory. Knows no file.
"""

from collections.abc import Sequence
from itertools import groupby

from thalweg.feed.ledgerfile import Run

Key = tuple[int, int, int]  # sub-stream, epoch, number of the row in it


def runs_of_rows(keys: Sequence[Key]) -> tuple[tuple[Run, ...], list[int]]:
    """Write rows as runs: grouped by sub-stream, consecutive ones as one. Gives the runs and the order of the rows."""
    order = sorted(range(len(keys)), key=lambda i: keys[i])
    out: list[Run] = []
    lead = [(keys[i][0], keys[i][1], keys[i][2] - k) for k, i in enumerate(order)]
    for (sub, epoch, _), group in groupby(range(len(order)), key=lead.__getitem__):
        places = list(group)
        out.append(Run(epoch, keys[order[places[0]]][2], len(places), sub=sub))
    return tuple(out), order


class RowCoder:
    """Writes and reads entries.

    Args:
        accumulation: micro-batches of a step.
    """

    def __init__(self, accumulation: int) -> None:
        self._accumulation = accumulation
        self.reset()

    def reset(self) -> None:
        """Forget what came before: something else was written."""
        self._next = (0, 0)
        self._expected: dict[int, tuple[int, int]] = {}  # sub-stream -> epoch, number

    def _moved(self, step: int, micro: int, runs: Sequence[Run]) -> None:
        last = micro + 1 == self._accumulation
        self._next = (step + 1, 0) if last else (step, micro + 1)
        for run in runs:
            self._expected[run.sub] = (run.epoch, run.index + run.count)

    def encode(self, step: int, micro: int, runs: Sequence[Run]) -> bytes:
        """Write one entry."""
        new_place = (step, micro) != self._next
        out = [2 * len(runs) + new_place, *([step, micro] if new_place else [])]
        for run in runs:
            epoch, number = self._expected.get(run.sub, (0, 0))
            out += [run.sub, _folded(run.epoch - epoch), _folded(run.index - number), run.count]
        self._moved(step, micro, runs)
        return b"".join(map(_varint, out))

    def decode(self, data: memoryview, at: int) -> tuple[int, int, tuple[Run, ...], int]:
        """Read one entry: step, micro-batch, runs, and where it ends.

        Raises:
            IndexError: it is cut off.
        """
        head, at = _read(data, at)
        step, micro = self._next
        if head % 2:
            step, at = _read(data, at)
            micro, at = _read(data, at)
        runs: list[Run] = []
        for _ in range(head // 2):
            sub, at = _read(data, at)
            de, at = _read(data, at)
            dn, at = _read(data, at)
            count, at = _read(data, at)
            epoch, number = self._expected.get(sub, (0, 0))
            runs.append(Run(epoch + _unfolded(de), number + _unfolded(dn), count, sub=sub))
        self._moved(step, micro, runs)
        return step, micro, tuple(runs), at


def _folded(n: int) -> int:
    return 2 * n if n >= 0 else -2 * n - 1


def _unfolded(n: int) -> int:
    return n // 2 if n % 2 == 0 else -(n + 1) // 2


def _varint(n: int) -> bytes:
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)


def _read(data: memoryview, at: int) -> tuple[int, int]:
    n = shift = 0
    while True:
        byte = data[at]
        n |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return n, at
