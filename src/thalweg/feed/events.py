"""What flows between the nodes of a stream: values, places without a value, ends and failures, each with its place.

An event is a plain tuple (kind, sub, value, token, id, epoch), because millions are made. `sub` is its sub-stream;
`token` is the place of that sub-stream right after the event, for all nodes up to the one that gave it: restoring a
node with it gives the next event. Decides the words, nothing else.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol, TypeAlias

Token: TypeAlias = Any  # plain data, fit for JSON once `feed.streamstate` has written it
Tokens: TypeAlias = dict[int, Token]  # by sub-stream
Event: TypeAlias = tuple[int, int, Any, Token, Any, int]

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


class EventNode(Protocol):
    """A node of a stream. One thread iterates it; `stop` may be called from any."""

    def first(self, sub: int, epoch: int = 0) -> Token:
        """Give the token of the beginning of a sub-stream's epoch."""
        ...

    def origin_of(self, token: Token) -> Token:
        """Give the source's place, (epoch, items), inside a token of this node."""
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
