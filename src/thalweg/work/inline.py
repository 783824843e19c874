"""The ordered map without workers: calls happen in the consumer's thread, so a debugger stops inside them.

Decides nothing but that; outputs, errors and their places are those of `work.ordered`. Knows no threads.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from thalweg.work.failure import Failure, travel
from thalweg.work.runner import Call
from thalweg.work.turns import Turn


class InlineMap:
    """Map items one by one in the thread that asks.

    Args:
        items: the source.
        call: item -> list of outputs, or an iterator of outputs.
        describe: item -> words for an error.
        passes: item -> True where no call is wanted.
        wake: called by `stop`.
    """

    def __init__(
        self,
        items: Iterable[Any],
        call: Call,
        *,
        describe: Callable[[Any], str] = repr,
        passes: Callable[[Any], bool] | None = None,
        wake: Callable[[], None] | None = None,
    ) -> None:
        self._items, self._call, self._describe, self._passes, self._wake = items, call, describe, passes, wake
        self._iterator: Iterator[Any] | None = None
        self._turns: Iterator[Turn] | None = None
        self._passed = 0
        self._peeked: Turn | None = None

    def turns(self) -> Iterator[Turn]:
        """Give items with their outputs, in order; a failure is given, not raised."""
        while True:
            turn = self.peek()
            if turn is None:
                return
            self._peeked = None
            yield turn

    def _source(self) -> Iterator[Turn]:
        if self._turns is None:
            self._iterator = iter(self._items)
            self._turns = self._run(self._iterator)
        return self._turns

    def _run(self, iterator: Iterator[Any]) -> Iterator[Turn]:
        while True:
            try:
                item = next(iterator)
            except StopIteration:
                return
            except BaseException as error:  # noqa: BLE001  the source's error takes its place in the order
                yield Turn(None, [], True, travel(error, None))
                return
            yield from self._one(item)
            self._passed += 1

    def _one(self, item: Any) -> Iterator[Turn]:
        if self._passes is not None and self._passes(item):
            yield Turn(item, [item], True, None)
            return
        try:
            got = self._call(item)
        except Exception as error:  # noqa: BLE001
            yield Turn(item, [], True, travel(error, self._describe(item)))
            return
        if type(got) is list:
            yield Turn(item, got, True, None)
            return
        outputs, failure = iter(got), None
        while True:
            try:
                output = next(outputs)
            except StopIteration:
                break
            except Exception as error:  # noqa: BLE001
                failure = Failure(travel(error, self._describe(item)))
                break
            yield Turn(item, [output], False, None)
        yield Turn(item, [], True, None if failure is None else failure.error)

    def peek(self) -> Turn | None:
        """Make the next turn now and keep it for `turns`; None at the end."""
        if self._peeked is None:
            self._peeked = next(self._source(), None)
        return self._peeked

    def stop(self) -> None:
        """Wake what waits upstream."""
        if self._wake is not None:
            self._wake()

    def close(self) -> None:
        """Close the source. Twice is fine."""
        self.stop()
        close = getattr(self._iterator, "close", None)
        if close is not None:
            close()

    @property
    def stats(self) -> dict[str, float]:
        """Items handed over."""
        return {"passed": self._passed}
