"""Rows in arrival order, one document after another: next fit, and concatenate and cut.

Only the open row waits. Knows no tokens.
"""

from collections.abc import Iterable

from thalweg.core import state as core_state
from thalweg.core.state import State
from thalweg.plan.pack_state import PackedRow, PackerState, checked_state, outside


class ArrivalPacker:
    """Rows in arrival order: next fit, or concatenate and cut.

    Args:
        capacity: tokens of a row.
        split: cut documents where a row is full ("concat_split"); False: a document that does not fit begins a row.
        align: each document takes up a multiple of this many tokens; 1 with split.
        max_docs: documents of a row at most.
    """

    def __init__(self, capacity: int, *, split: bool = False, align: int = 1, max_docs: int | None = None) -> None:
        self.capacity, self.split, self.align = capacity, split, align
        self.policy, self._most = "concat_split" if split else "next_fit", max_docs or 1 << 62
        self._open: list[int] = []
        self._sizes: list[int] = []
        self._pieces: list[tuple[int, int]] = []
        self._room, self._pushed, self._rows = capacity, 0, 0

    def push(self, length: int, key: int) -> list[PackedRow]:
        """Take one document; give the rows that are ready. Several where a document is cut.

        Raises:
            InputError: a length below 1, or above the capacity where documents are not cut.
        """
        taken = -(-length // self.align) * self.align
        if taken < 1 or (taken > self.capacity and not self.split):
            raise outside(length, key, self.capacity)
        out: list[PackedRow] = []
        if self._open and (len(self._open) >= self._most or (not self.split and taken > self._room)):
            out += self._close()
        start = 0
        while taken - start > self._room:
            self._add(key, start, start + self._room)
            start = self._pieces[-1][1]
            out += self._close()
        self._add(key, start, taken)
        self._pushed += 1
        return out + self._close() if self._room == 0 else out

    def _add(self, key: int, start: int, stop: int) -> None:
        self._open.append(key)
        self._sizes.append(stop - start)
        self._pieces.append((start, stop))
        self._room -= stop - start

    def extend(self, lengths: Iterable[int], keys: Iterable[int]) -> list[PackedRow]:
        """Take many documents; give the rows that are ready, the same as one by one."""
        return [row for length, key in zip(lengths, keys, strict=True) for row in self.push(length, key)]

    def _close(self) -> list[PackedRow]:
        if not self._open:
            return []
        row = PackedRow(self._open, self._room, self._pieces if self.split else None)
        self._open, self._sizes, self._pieces, self._room = [], [], [], self.capacity
        self._rows += 1
        return [row]

    def flush(self) -> list[PackedRow]:
        """Give what is left, once; after that the packer is empty."""
        return self._close()

    def state(self) -> State:
        """Give the state as plain data."""
        offset = self._pieces[0][0] if self._pieces else 0
        return core_state.dump(
            PackerState(
                self.policy,
                self.capacity,
                self._pushed,
                self._rows,
                [],
                [],
                list(self._open),
                list(self._sizes),
                offset,
            )
        )

    def restore(self, state: State) -> None:
        """Take a state of the same policy and capacity.

        Raises:
            StateError: a state of something else.
            ConfigError: another policy or capacity.
        """
        read = checked_state(state, self.policy, self.capacity)
        self._open, self._sizes = list(read.open_keys), list(read.open_lengths)
        starts = [read.offset, *[0] * (len(self._sizes) - 1)]
        self._pieces = [(a, a + n) for a, n in zip(starts, self._sizes, strict=False)]
        self._room = self.capacity - sum(self._sizes)
        self._pushed, self._rows = read.pushed, read.rows
