"""A pool of workers that maps list after list, in order: for callers that decide themselves what is read.

Decides only how lists go through one running map. The workers live as long as the pool, so that a list of a few
samples does not pay for starting them.
"""

import threading
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from typing import Any, Protocol

from thalweg.core.errors import WorkerError
from thalweg.work.turns import Turn

_END = object()


class RunningMap(Protocol):
    """A map of this room: `OrderedMap` or `InlineMap`."""

    def turns(self) -> Iterator[Turn]:
        """Give items with their outputs, in order."""
        ...

    def stop(self) -> None:
        """Wake every wait and end soon."""
        ...

    def close(self) -> None:
        """End now."""
        ...


class Inlet:
    """A source that gives what is put in, until it is ended."""

    def __init__(self) -> None:
        self._items: SimpleQueue[Any] = SimpleQueue()

    def put(self, item: Any) -> None:
        """Add an item."""
        self._items.put(item)

    def end(self) -> None:
        """End the source; takes no lock."""
        self._items.put(_END)

    stop = end

    def __iter__(self) -> Iterator[Any]:
        """Give items as they are put in."""
        while (item := self._items.get()) is not _END:
            yield item


class CallPool:
    """Maps lists of items through one running map.

    Args:
        inlet: the source of `run`.
        run: a map over `inlet` that goes on after errors.
    """

    def __init__(self, inlet: Inlet, run: RunningMap) -> None:
        self._inlet, self._run = inlet, run
        self._turns: Iterator[Turn] | None = None
        self._lock = threading.Lock()  # one list at a time: outputs belong to who put the items in

    def map(self, items: Sequence[Any]) -> list[Turn]:
        """Give each item's outputs, or its error, in order. Several threads may call; lists do not mix."""
        with self._lock:
            if self._turns is None:
                self._turns = self._run.turns()
            for item in items:
                self._inlet.put(item)
            return [self._whole() for _ in items]

    def _whole(self) -> Turn:
        """Take one item's turn; outputs that come one by one are put together."""
        assert self._turns is not None
        outputs: list[Any] = []
        for turn in self._turns:
            outputs += turn.outputs
            if turn.last:
                return Turn(turn.item, outputs, True, turn.error)
        raise WorkerError("the pool is closed", fix="make a new one")

    def close(self) -> None:
        """End the workers. Twice is fine."""
        self._inlet.end()
        self._run.close()
