"""An ordered map: one reader, many workers, one order, bounded in items and bytes from read to hand-over.

Decides what a caller may say and what is closed when. The threads are in `work.turns`; what runs a call (this process
or another) is a runner; what an item is, it does not know.
"""

import atexit
import contextlib
import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from thalweg.core.errors import WorkerError
from thalweg.work.budget import ByteBudget
from thalweg.work.failure import Failure
from thalweg.work.pace import ChunkTuner
from thalweg.work.port import Message, Outcome, Port
from thalweg.work.reader import Reader
from thalweg.work.runner import Call, Runner
from thalweg.work.size import size_of as default_size
from thalweg.work.turns import Core, JobRunner, Turn, turns_of

if TYPE_CHECKING:
    from collections import deque

_live: "weakref.WeakSet[Core]" = weakref.WeakSet()


def _close_all() -> None:
    for core in list(_live):
        core.close()


atexit.register(_close_all)


class OrderedMap:
    """Map items with several workers; outputs come strictly in the order of the items.

    Nothing starts before the first `next`. An error is raised at its place, after all outputs of earlier items, and
    ends the map. Leaving it (end, error, `close`, garbage collection) leaves no thread behind, except one that sits
    in user code, which is named and ends when that returns.

    Args:
        items: the source; read by one thread, in order.
        call: item -> list of outputs (0, 1 or many), or an iterator of outputs, handed over one by one.
        workers: threads that call; at least 1.
        ahead: items in flight, from before they are read until their turn has passed. None: 128, at least 4 a worker.
        budget: bytes in flight, shared by all maps of a chain; None: without limit and not measured.
        chunk: most items in one job; None measures the calls and joins only those that are fast.
        name: in thread names and errors.
        describe: item -> words for an error.
        passes: item -> True where no call is wanted; the item keeps its place and is its own output.
        stop_on_error: an error ends the map; False goes on after it (`turns` gives it with its item).
        timeout: seconds a call may take, counted from its start, noticed when its turn has come. Jobs then have one
            item, so that no other pays for it.
        stall_after: seconds without anything arriving before StalledError.
        size_of: value -> bytes.
        make_runner: gives each worker its runner; None calls in this process.
        hook: sees every message to the consumer, in its thread.
        wake: called by `stop`: wakes a reader that waits inside another map of ours.
        watch: called with this map after turns, in the consumer's thread; may set workers.
    """

    def __init__(
        self,
        items: Iterable[Any],
        call: Call,
        *,
        workers: int = 1,
        ahead: int | None = None,
        budget: ByteBudget | None = None,
        chunk: int | None = 1,
        name: str = "map",
        describe: Callable[[Any], str] | None = None,
        passes: Callable[[Any], bool] | None = None,
        stop_on_error: bool = True,
        timeout: float | None = None,
        stall_after: float | None = 300.0,
        size_of: Callable[[Any], int] = default_size,
        make_runner: Callable[[], JobRunner] | None = None,
        hook: Callable[[Message], None] | None = None,
        wake: Callable[[], None] | None = None,
        watch: "Callable[[OrderedMap], None] | None" = None,
    ) -> None:
        self.workers = max(1, workers)
        chunk = 1 if timeout is not None else chunk
        ahead = max(128, 4 * self.workers) if ahead is None else max(1, ahead)
        measured = budget is not None and budget.limit is not None
        port = Port(budget or ByteBudget(), size_of if measured else None, stop_on_error)
        reader = Reader(port, items, ahead, chunk or 1, passes)
        core = self._core = Core(port, reader, name, ahead)
        words = describe or _number_words
        self._make = make_runner or (lambda: Runner(call, words, stop_on_error))
        port.remote = bool(getattr(make_runner, "remote", False))
        core.stall_after, core.timeout, core.hook, core.wake = stall_after, timeout, hook, wake
        make = self._make
        core.replace = lambda job: core.add_worker(make(), job)
        if chunk is None:
            core.tune.append(ChunkTuner(port, reader, ahead, self.workers).look)
        if watch is not None:
            port.timed = True
            face = weakref.ref(self)
            core.tune.append(lambda: _watched(watch, face))
        self._handed: Iterator[Message] | None = None
        self._finalizer = weakref.finalize(self, Core.stop, core)
        self._finalizer.atexit = False  # _close_all does it, and waits

    def __iter__(self) -> Iterator[Any]:
        """Give all outputs in order; raises at the place of a failure."""
        try:
            for message in self._started():
                for outcome in message.outcomes or ():
                    if isinstance(outcome, Failure):
                        yield from outcome.outputs
                        raise outcome.error
                    yield from outcome
        finally:
            self._core.stop()

    def turns(self) -> Iterator[Turn]:
        """Give items with their outputs, in order; a failure is given, not raised."""
        return turns_of(self._started())

    def _started(self) -> Iterator[Message]:
        if self._handed is None:
            core = self._core
            _live.add(core)
            core.spawn(core.reader.run, "reader")
            for _ in range(self.workers):
                core.add_worker(self._make())
            self._handed = core.handed()
        if os.getpid() != self._core.pid:
            raise WorkerError(
                "this iterator was started in another process and its threads stayed there",
                where=self._core.name,
                fix="call iter() again in this process; hand datasets to workers, not running iterators",
            )
        return self._handed

    def stop(self) -> None:
        """Wake every wait and end soon; waits for nobody, takes no lock."""
        self._core.stop()

    def close(self) -> None:
        """End now: no thread is left after this, except one held by user code, which is named. Twice is fine."""
        self._finalizer.detach()
        handed = self._handed
        if handed is not None:
            self._core.close()
            _live.discard(self._core)
            with contextlib.suppress(ValueError):  # another thread is in it; it has been woken
                handed.close()  # type: ignore[attr-defined]

    def set_workers(self, n: int, make_runner: Callable[[], JobRunner] | None = None) -> None:
        """Replace the workers while running; order and items in flight stay."""
        core = self._core
        if core.total is not None:
            return  # all is read, and the workers there are have been told to finish
        core.reader.move_jobs(core.alive)
        self._make = make_runner or self._make
        core.port.remote = bool(getattr(self._make, "remote", False))
        make = self._make
        core.replace = lambda job: core.add_worker(make(), job)
        self.workers = n
        for _ in range(n):
            core.add_worker(make())

    @property
    def pace(self) -> "deque[tuple[float, float, int]]":
        """Seconds that count, seconds of CPU (see `ThreadClock`), and items of the last jobs."""
        return self._core.port.pace

    def timed(self, yes: bool) -> None:
        """Let workers that start from now on note their seconds of CPU, or stop that: it is two system calls a job."""
        self._core.port.timed = yes

    def poll(self) -> "tuple[int, Outcome | None, BaseException | None]":
        """Say what is ready without waiting: outcomes in order, the last one's outputs, and an error behind them."""
        self._started()
        return self._core.poll()

    @property
    def calls(self) -> int:
        """Items whose turn has passed."""
        return self._core.room.next

    @property
    def stats(self) -> dict[str, float]:
        """Items read and handed over, items and bytes in flight, seconds the consumer waited."""
        core = self._core
        return {
            "read": core.reader.read,
            "passed": core.room.next,
            "waiting": len(core.room),
            "bytes": core.port.budget.used,
            "peak_bytes": core.port.budget.peak,
            "oversize": core.port.budget.oversize,
            "waited_s": core.waited,
        }


def _watched(watch: Callable[[OrderedMap], None], face: "weakref.ref[Any]") -> None:
    found = face()
    if found is not None:
        watch(found)


def _number_words(item: Any) -> str:
    text = repr(item)
    return "item " + (text if len(text) <= 60 else text[:57] + "...")
