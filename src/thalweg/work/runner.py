"""Calls on items in this process, one after the other.

Decides what becomes of each call: a list of outputs, outputs one by one, or a failure at its place. Knows nothing
of threads, order or processes; a worker process runs the same code.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeAlias

from thalweg.work.failure import Failure, travel
from thalweg.work.port import Job, Outcome

Call: TypeAlias = Callable[[Any], "list[Any] | Iterator[Any]"]


class Sink(Protocol):
    """Where outcomes go: the port of this process, or the socket of a worker process."""

    def result(
        self, number: int, items: list[Any], outcomes: list[Outcome], charged: int, size: int | None = None
    ) -> None:
        """Take the outcomes of consecutive items."""

    def part(self, number: int, item: Any, output: Any, emitted: int) -> bool:
        """Take one output of a call that goes on; False asks to stop."""
        ...


class Runner:
    """Maps jobs by calling a function of one item.

    Args:
        call: item -> list of outputs, or an iterator whose outputs are handed on one by one.
        describe: item -> words for an error, such as "sample 17 of source 'web'".
        stop_on_error: leave the rest of a job after the first failure.
    """

    def __init__(self, call: Call, describe: Callable[[Any], str], stop_on_error: bool) -> None:
        self._call = call
        self._describe = describe
        self._stop_on_error = stop_on_error
        self.take: Callable[[], Job | None] | None = None  # of no use: a call here cannot begin before the last ends

    def run(self, job: Job, sink: Sink) -> None:
        """Map every item of a job in order and hand the outcomes to the sink."""
        call, done = self._call, []
        first, charged = job.first, job.size
        outcomes: list[Outcome] = []
        for item in job.items:
            done.append(item)
            try:
                got = call(item)
                if type(got) is list:
                    outcomes.append(got)
                    continue
            except BaseException as error:  # noqa: BLE001  every exception of user code has a place in the order
                outcomes.append(Failure(travel(error, self._describe(item))))
                if self._stop_on_error:
                    break
                continue
            # Outputs one by one: what came before goes first, then this item alone.
            if len(done) > 1:
                sink.result(first, done[:-1], outcomes, charged)
                charged = 0
            number = first + len(done) - 1
            outcome = self._stream(number, item, got, sink)
            sink.result(number, [item], [outcome], charged)
            first, done, outcomes, charged = number + 1, [], [], 0
            if type(outcome) is not list and self._stop_on_error:
                return
        if done:
            sink.result(first, done, outcomes, charged)

    def _stream(self, number: int, item: Any, outputs: Any, sink: Sink) -> Outcome:
        """Hand on the outputs of one call, and close its generator in this thread."""
        try:
            for emitted, output in enumerate(outputs):
                if not sink.part(number, item, output, emitted):
                    break
        except BaseException as error:  # noqa: BLE001
            return Failure(travel(error, self._describe(item)))
        finally:
            close = getattr(outputs, "close", None)
            if close is not None:
                with contextlib.suppress(BaseException):  # its outputs are out; nobody waits for what it says now
                    close()
        return []

    def begin(self) -> None:
        """Nothing to get ready."""

    def cancel(self) -> None:
        """Nothing to cancel: a call in this process ends by itself."""

    def end(self) -> None:
        """Nothing to give back."""

    def stack(self) -> str:
        """Nothing: calls happen in this process."""
        return ""
