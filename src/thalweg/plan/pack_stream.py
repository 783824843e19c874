"""Packers for documents that come one by one: state machines without a stream of their own.

Decides which packer a policy word names, and when the window of "fill" is used: that depends on the documents alone,
so one by one or many at a time the rows are the same. Knows no tokens, threads or sources.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeAlias

from thalweg.core import state as core_state
from thalweg.core.errors import ConfigError, ThalwegError, nearest
from thalweg.core.state import State
from thalweg.plan.pack_arrival import ArrivalPacker
from thalweg.plan.pack_fill import take_capped, take_fill
from thalweg.plan.pack_sorted import SortedPacker
from thalweg.plan.pack_state import PackedRow, Packer, PackerState, checked_state, outside

__all__ = ["PackedRow", "Packer", "PackerState", "WindowPacker", "packer", "window_of"]

Taker: TypeAlias = Callable[[list[int], list[int]], tuple[list[int], int]]
WAITING_DOCS, WAITING_ROWS = 64, 2  # a window holds so many documents and so many rows of tokens before it is used
ROUNDS = 3  # calls in a row in which a chooser may take nothing before that is an error


class WindowPacker:
    """Rows chosen from a bounded window of waiting documents.

    Args:
        capacity: tokens of a row.
        take: chooses a row: removes its documents from the two lists (lengths, keys; oldest first) and gives its
            keys and the room left. None: the set that fills the row exactly.
        align: each document takes up a multiple of this many tokens.
        max_docs: documents of a row at most.
        policy: name in the state.

    The window holds 64 documents and two rows of tokens before a row is chosen: bounded by the larger of the two.
    """

    def __init__(
        self,
        capacity: int,
        *,
        take: Taker | None = None,
        align: int = 1,
        max_docs: int | None = None,
        policy: str = "fill",
    ) -> None:
        self.capacity, self.align, self.policy = capacity, align, policy
        self._enough = WAITING_ROWS * capacity
        if take is not None:
            self._take = take
        elif max_docs is None:
            self._take = partial(take_fill, capacity=capacity)
        else:
            self._take = partial(take_capped, capacity=capacity, max_docs=max_docs)
        self._lengths: list[int] = []
        self._keys: list[int] = []
        self._tokens = self._left = self._rows = self._idle = 0

    def push(self, length: int, key: int) -> list[PackedRow]:
        """Take one document; give the rows that are ready.

        Raises:
            InputError: a length outside 1 to capacity.
            ThalwegError: the chooser took nothing from a full window several times.
        """
        taken = length if self.align == 1 else -(-length // self.align) * self.align
        if not 0 < taken <= self.capacity:
            raise outside(length, key, self.capacity)
        self._lengths.append(taken)
        self._keys.append(key)
        self._tokens += taken
        out: list[PackedRow] = []
        while self._tokens >= self._enough and len(self._keys) >= WAITING_DOCS:
            row = self._choose()
            if row is not None:
                self._tokens -= self.capacity - row.free
                out.append(row)
        return out

    def extend(self, lengths: Iterable[int], keys: Iterable[int]) -> list[PackedRow]:
        """Take many documents; give the rows that are ready, the same as one by one.

        Raises:
            InputError: a length outside 1 to capacity; no document was taken then.
        """
        sizes, align = list(lengths), self.align
        if align != 1:
            sizes = [-(-n // align) * align for n in sizes]
        if sizes and not 0 < min(sizes) <= max(sizes) <= self.capacity:
            bad = next(i for i, n in enumerate(sizes) if not 0 < n <= self.capacity)
            raise outside(sizes[bad], list(keys)[bad], self.capacity)
        out: list[PackedRow] = []
        names, enough, capacity = self._keys, self._enough, self.capacity
        add_length, add_key = self._lengths.append, names.append
        missing = enough - self._tokens  # until the window is used
        try:
            for length, key in zip(sizes, keys, strict=True):
                add_length(length)
                add_key(key)
                missing -= length
                while missing <= 0 and len(names) >= WAITING_DOCS:
                    row = self._choose()
                    if row is not None:
                        missing += capacity - row.free
                        out.append(row)
        finally:
            self._tokens = enough - missing
        return out

    def _choose(self) -> PackedRow | None:
        before = len(self._keys)
        keys, free = self._take(self._lengths, self._keys)
        if keys:
            self._idle = 0
            self._rows += 1
            self._left += before - len(self._keys)
            return PackedRow(keys, free)
        self._idle += 1
        if self._idle >= ROUNDS:
            raise ThalwegError(
                f"the packer chose nothing from {before} waiting documents, {ROUNDS} times",
                fix="let the chooser take the oldest document at least",
            )
        return None

    def flush(self) -> list[PackedRow]:
        """Give what is left, once; after that the packer is empty."""
        out: list[PackedRow] = []
        while self._keys:
            row = self._choose()
            if row is not None:
                out.append(row)
        self._tokens = 0
        return out

    def state(self) -> State:
        """Give the state as plain data."""
        return core_state.dump(
            PackerState(
                self.policy,
                self.capacity,
                self._left + len(self._keys),
                self._rows,
                list(self._keys),
                list(self._lengths),
                [],
                [],
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
        self._keys, self._lengths = list(read.keys), list(read.lengths)
        self._tokens, self._left = sum(read.lengths), read.pushed - len(read.keys)
        self._rows, self._idle = read.rows, 0


def packer(policy: str, capacity: int, *, align: int = 1, max_docs: int | None = None) -> Packer:
    """Make the packer of a policy for documents that come one by one.

    Args:
        policy: "fill", "next_fit", "window_N" or "concat_split"; "best_fit" and "auto" pack by "fill".
        capacity: tokens of a row.
        align: each document takes up a multiple of this many tokens.
        max_docs: documents of a row at most.

    Raises:
        ConfigError: a policy that can't work without all lengths, or an unknown one.
    """
    if capacity < 1 or capacity % align or (policy == "concat_split" and align != 1):
        raise ConfigError(f"capacity {capacity} does not go with align={align} and policy {policy!r}")
    if policy in {"fill", "best_fit", "auto"}:
        return WindowPacker(capacity, align=align, max_docs=max_docs)
    if policy in {"next_fit", "concat_split"}:
        return ArrivalPacker(capacity, split=policy == "concat_split", align=align, max_docs=max_docs)
    window = window_of(policy)
    if window is not None:
        return SortedPacker(capacity, window, align=align, max_docs=max_docs)
    if policy == "first_fit":
        raise ConfigError(
            "first_fit keeps every row open, which a stream can't", fix='say policy="fill" or "window_100"'
        )
    known = ["fill", "next_fit", "window_100", "concat_split"]
    raise ConfigError(f"unknown packing policy {policy!r}", fix=nearest(policy, known))


def window_of(policy: str) -> int | None:
    """Give N of "window_N", or None for another word.

    Raises:
        ConfigError: N is not a number of at least 1.
    """
    if not policy.startswith("window"):
        return None
    number = policy.removeprefix("window_")
    if not number.isdecimal() or int(number) < 1:
        raise ConfigError(f"the window of policy {policy!r} is not a number", fix='say "window_100" for 100 documents')
    return int(number)
