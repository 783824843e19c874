"""What flows between the nodes of a stream: values, places without a value, ends and failures, each with its place.

An event is a plain tuple (kind, sub, value, token, id, epoch, source), because millions are made. `sub` is its
sub-stream, `source` the source and the epoch of its own that a sample is from; `token` is the place of that sub-stream
right after the event, for all nodes up to the one that gave it: restoring a node with it gives the next event. Decides
the words, nothing else.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

Token: TypeAlias = Any  # plain data, fit for JSON once `feed.streamstate` has written it
Tokens: TypeAlias = dict[int, Token]  # by sub-stream


@dataclass(frozen=True, slots=True, eq=False)
class SourceEpoch:
    """A source, an epoch of its own (not that of the mix it is in) and a sub-stream: one object for all its samples.

    Compared by identity, so that counting costs no more than counting objects.
    """

    name: str
    epoch: int
    sub: int


NO_SOURCE: Final = SourceEpoch("", 0, -1)  # of events that are no sample
Event: TypeAlias = tuple[int, int, Any, Token, Any, int, SourceEpoch]

ITEM: Final = 0  # a value
PASS: Final = 1  # no value: the place moved on (a filter, an item without output)
END: Final = 2  # a sub-stream's epoch ended; stages flush
FAIL: Final = 3  # value is the exception; nothing comes after it

KIND: Final = 0
SUB: Final = 1
VALUE: Final = 2
TOKEN: Final = 3
ID: Final = 4
EPOCH: Final = 5
SOURCE: Final = 6


class EventNode(Protocol):
    """A node of a stream. One thread iterates it; `stop` may be called from any."""

    def first(self, sub: int, epoch: int = 0) -> Token:
        """Give the token of the beginning of a sub-stream's epoch."""
        ...

    def begin_of(self, sub: int, token: Token) -> Token:
        """Give the token of the beginning of the epoch that a token of this node stands in."""
        ...

    def origin_of(self, token: Token) -> Token:
        """Give the source's place inside a token of this node: the epoch first, the rest is the source's own."""
        ...

    def head_of(self, token: Token) -> Token:
        """Give the token of the chain's head (source, concat, mix) up to which it was read for a node's token."""
        ...

    def restore(self, tokens: Mapping[int, Token]) -> None:
        """Go to the places of these sub-streams, before the first event."""
        ...

    def __iter__(self) -> Iterator[Event]:
        """Give the events, once."""
        ...

    def stop(self) -> None:
        """Wake every wait and end soon; takes no lock."""
        ...

    def close(self) -> None:
        """End now. Twice is fine."""
        ...


class Head(Protocol):
    """What stands behind the reading end of a chain: states of the user's source, and how much was read."""

    @property
    def read(self) -> int:
        """Count the items read, other ranks' included."""
        ...

    def snapshot_for(self, sub: int, place: Token) -> Any | None:
        """Find the newest state of the source at or before a place, as JSON-like data."""
        ...

    def take_snapshots(self, given: Sequence[Any]) -> None:
        """Take states of the source that a saved state brought along, instead of those there."""
        ...

    def forget_before(self, places: Mapping[int, Token]) -> None:
        """Forget states that no place from here on needs."""
        ...
