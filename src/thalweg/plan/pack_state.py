"""What packers of single documents have in common: the row, the state and the protocol.

A packer takes (length, key) pairs and gives the rows that are ready; its state is how many documents it took and
which of them wait. Keys are rising integers of the caller's. Knows no policy.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

from thalweg.core import state as core_state
from thalweg.core.errors import ConfigError, InputError
from thalweg.core.state import State


class PackedRow(NamedTuple):
    """One row: keys in token order; parts of documents where some are cut.

    Args:
        keys: one for each document or piece.
        pieces: (start, stop) of each piece in its document; None where all are whole.
        free: tokens of the row that are not used.
    """

    keys: list[int]
    free: int
    pieces: list[tuple[int, int]] | None = None


@dataclass(frozen=True, slots=True)
class PackerState:
    """Documents that wait, oldest first, and those already in the open row. Pieces only for "concat_split"."""

    KIND: ClassVar[str] = "packer"
    VERSION: ClassVar[int] = 1
    policy: str
    capacity: int
    pushed: int
    rows: int
    keys: list[int]
    lengths: list[int]
    open_keys: list[int]
    open_lengths: list[int]
    offset: int  # first token of the oldest open document that is not yet in a row


class Packer(Protocol):
    """What every packer can do. `state()` is the place after the last document pushed."""

    def push(self, length: int, key: int) -> list[PackedRow]:
        """Take one document; give the rows that are ready."""
        ...

    def extend(self, lengths: Iterable[int], keys: Iterable[int]) -> list[PackedRow]:
        """Take many documents; give the rows that are ready, the same as one by one."""
        ...

    def flush(self) -> list[PackedRow]:
        """Give what is left, once; after that the packer is empty."""
        ...

    def state(self) -> State:
        """Give the state as plain data."""
        ...

    def restore(self, state: State) -> None:
        """Take a state of the same policy and capacity."""
        ...


def outside(length: int, key: int, capacity: int) -> InputError:
    """Make the error of a length that no row can take."""
    return InputError(f"document {key} has {length} tokens and rows take 1 to {capacity}", fix="say overlong=")


def checked_state(state: State, policy: str, capacity: int) -> PackerState:
    """Read a state back, or refuse that of another packer.

    Raises:
        StateError: a state of something else, or of a newer version.
        ConfigError: another policy or capacity.
    """
    read = core_state.load(PackerState, state)
    if (read.policy, read.capacity) != (policy, capacity):
        raise ConfigError(
            f"a packer {policy!r} of capacity {capacity} was given a state of {read.policy!r}, {read.capacity}",
            fix="resume with the settings that the run began with",
        )
    return read
