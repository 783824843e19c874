"""Rows from a sliding window that is kept sorted by length: "window_N".

Each row begins with the oldest document and goes on with the longest that still fits; the window is filled up again
after each one, so nothing waits for ever and rows may hold more documents than the window. Knows no tokens.
"""

from bisect import bisect_right, insort
from collections.abc import Iterable

from thalweg.core import state as core_state
from thalweg.core.state import State
from thalweg.plan.pack_state import PackedRow, PackerState, checked_state, outside


class SortedWindow:
    """Waiting documents sorted by length, of which the oldest is known.

    Ties in length go to the oldest. Holds (length, number) pairs, numbers rising with arrival.
    """

    def __init__(self) -> None:
        self.by_length: list[tuple[int, int]] = []
        self.length_of: dict[int, int] = {}  # in arrival order

    def __len__(self) -> int:
        """Count the waiting documents."""
        return len(self.by_length)

    def add(self, length: int, number: int) -> None:
        """Add the newest document."""
        insort(self.by_length, (length, -number))
        self.length_of[number] = length

    def oldest(self) -> tuple[int, int]:
        """Take out the oldest document: (number, length)."""
        number = next(iter(self.length_of))
        length = self.length_of.pop(number)
        del self.by_length[bisect_right(self.by_length, (length, -number)) - 1]
        return number, length

    def longest(self, room: int) -> tuple[int, int] | None:
        """Take out the longest document of at most `room` tokens, or None where there is none."""
        at = bisect_right(self.by_length, (room, 1)) - 1
        if at < 0:
            return None
        length, number = self.by_length.pop(at)
        del self.length_of[-number]
        return -number, length


class SortedPacker:
    """Rows from a sliding window of N documents sorted by length: the oldest, then ever the longest that fits.

    The window is filled up again after each document taken, so a row may hold more than N.

    Args:
        capacity: tokens of a row.
        window: documents that wait, N >= 1.
        align: each document takes up a multiple of this many tokens.
        max_docs: documents of a row at most.
    """

    def __init__(self, capacity: int, window: int, *, align: int = 1, max_docs: int | None = None) -> None:
        self.capacity, self.window, self.align = capacity, window, align
        self.policy, self._most = f"window_{window}", max_docs or 1 << 62
        self._waiting = SortedWindow()
        self._key_of: dict[int, int] = {}
        self._open: list[int] = []
        self._open_lengths: list[int] = []
        self._room, self._pushed, self._rows = capacity, 0, 0

    def push(self, length: int, key: int) -> list[PackedRow]:
        """Take one document; give the rows that are ready.

        Raises:
            InputError: a length outside 1 to capacity.
        """
        taken = -(-length // self.align) * self.align
        if not 0 < taken <= self.capacity:
            raise outside(length, key, self.capacity)
        self._waiting.add(taken, self._pushed)
        self._key_of[self._pushed] = key
        self._pushed += 1
        return self._step() if len(self._waiting) >= self.window else []

    def extend(self, lengths: Iterable[int], keys: Iterable[int]) -> list[PackedRow]:
        """Take many documents; give the rows that are ready, the same as one by one."""
        return [row for length, key in zip(lengths, keys, strict=True) for row in self.push(length, key)]

    def _step(self) -> list[PackedRow]:
        """Move one document from the window to the open row; give the row before where it was full."""
        out: list[PackedRow] = []
        found = None
        if self._open and len(self._open) < self._most:
            found = self._waiting.longest(self._room)
        if found is None:
            out = self._close()
            found = self._waiting.oldest()
        number, length = found
        self._open.append(self._key_of.pop(number))
        self._open_lengths.append(length)
        self._room -= length
        return out

    def _close(self) -> list[PackedRow]:
        if not self._open:
            return []
        row = PackedRow(self._open, self._room)
        self._open, self._open_lengths, self._room = [], [], self.capacity
        self._rows += 1
        return [row]

    def flush(self) -> list[PackedRow]:
        """Give what is left, once; after that the packer is empty."""
        out: list[PackedRow] = []
        while len(self._waiting):
            out += self._step()
        return out + self._close()

    def state(self) -> State:
        """Give the state as plain data."""
        order = self._waiting.length_of
        keys = [self._key_of[n] for n in order]
        return core_state.dump(
            PackerState(
                self.policy,
                self.capacity,
                self._pushed,
                self._rows,
                keys,
                list(order.values()),
                list(self._open),
                list(self._open_lengths),
                0,
            )
        )

    def restore(self, state: State) -> None:
        """Take a state of the same policy and capacity.

        Raises:
            StateError: a state of something else.
            ConfigError: another policy or capacity.
        """
        read = checked_state(state, self.policy, self.capacity)
        self._waiting, self._key_of = SortedWindow(), {}
        for n, (key, length) in enumerate(zip(read.keys, read.lengths, strict=True), read.pushed - len(read.keys)):
            self._waiting.add(length, n)
            self._key_of[n] = key
        self._open, self._open_lengths = list(read.open_keys), list(read.open_lengths)
        self._room = self.capacity - sum(read.open_lengths)
        self._pushed, self._rows = read.pushed, read.rows
