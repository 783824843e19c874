"""The one thread that reads: it numbers items, takes a credit for each, and makes jobs of them.

Decides how many items go into one job and when reading pauses. Knows nothing of what items are; it never calls user
code other than the source's own `next`.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from typing import Any

from thalweg.work.failure import Failure, travel
from thalweg.work.port import END, RESULT, Job, Message, Port

_NOTHING = object()


class Reader:
    """Reads a source on its own thread until it ends, fails, or the port is closed.

    Args:
        port: where jobs and messages go.
        items: the source; iterated and closed by this thread alone.
        credits: items that may be in flight, from before they are read until their turn has passed.
        chunk: most items in one job; may be raised and lowered while it runs.
        passes: item -> True where no call is wanted: it keeps its place and goes straight to the consumer.
    """

    def __init__(
        self, port: Port, items: Iterable[Any], credits_: int, chunk: int, passes: Callable[[Any], bool] | None
    ) -> None:
        self.chunk = chunk
        self.read = 0
        self.end = threading.Event()
        self._port = port
        self._items = items
        self._free = credits_
        self._half = max(1, credits_ // 2)
        self._passes = passes
        self._lock = threading.Lock()
        self._open: list[Any] = []
        self._open_first = 0
        self._open_size = 0

    def run(self) -> None:
        """Read to the end. Errors of the source take their place in the order."""
        iterator: Any = None
        try:
            iterator = iter(self._items)
            self._loop(iterator)
            self.flush()
        except BaseException as error:  # noqa: BLE001  the source is user code
            self.flush()
            failure = Failure(travel(error, None))
            self._port.limit = min(self._port.limit, self.read)
            self._port.messages.put(Message(RESULT, self.read, [None], [failure], 0))
            self.read += 1
        finally:
            self._close(iterator)
            self._port.messages.put(Message(END, self.read))
            self.end.set()

    def _loop(self, iterator: Any) -> None:
        port, passes, size_of = self._port, self._passes, self._port.size_of
        while not port.closed:
            if self._free <= 0 and not self._wait_for_room():
                return
            item = next(iterator, _NOTHING)
            if item is _NOTHING or port.closed or port.limit < self.read:
                return
            self._free -= 1
            if passes is not None and passes(item):
                self.flush()
                number, self.read = self.read, self.read + 1
                port.messages.put(Message(RESULT, number, [item], [[item]], 0))
                continue
            size = 0 if size_of is None else size_of(item)
            if size and port.budget.full(size + self._open_size):
                self._pause(size)
            self._add(item, size)

    def _wait_for_room(self) -> bool:
        """Wait until a whole job fits again; all that is in flight is on its way, so room comes. False: closed."""
        self.flush()
        while self._free < self.chunk and not self._port.closed:
            self._free += self._port.returns.get()
            if self._free >= self._half:
                break
        return not self._port.closed

    def _pause(self, size: int) -> None:
        """Wait until the item fits, or is the next in order: that one never waits for bytes."""
        port, number = self._port, self.read
        self.flush()
        if port.budget.limit is not None and size > port.budget.limit:
            port.budget.oversize += 1
        port.budget.wait(lambda: port.closed or port.head >= number or not port.budget.full(size))

    def _add(self, item: Any, size: int) -> None:
        with self._lock:
            if self.chunk <= 1 and not self._open:
                number, self.read = self.read, self.read + 1
                if size:
                    self._port.budget.add(size)
                self._port.jobs.put(Job(number, [item], size))
                return
            if not self._open:
                self._open_first = self.read
            self._open.append(item)
            self._open_size += size
            self.read += 1
            full = len(self._open) >= self.chunk
        if full:
            self.flush()

    def flush(self) -> bool:
        """Send the job that is being filled, from any thread; a consumer that starves calls this."""
        with self._lock:
            if not self._open:
                return False
            job = Job(self._open_first, self._open, self._open_size)
            self._open, self._open_size = [], 0
            self._port.budget.add(job.size)
            # Inside the lock: jobs must be queued lowest number first.
            self._port.jobs.put(job)
        return True

    def move_jobs(self, leaving: int) -> None:
        """Open a new queue of jobs for new workers, take along what waits, and send `leaving` workers home."""
        port = self._port
        with self._lock:
            old, port.jobs = port.jobs, SimpleQueue()
            with contextlib.suppress(Empty):
                while True:
                    port.jobs.put(old.get_nowait())
        for _ in range(leaving):
            old.put(None)

    @staticmethod
    def _close(iterator: Any) -> None:
        close = getattr(iterator, "close", None)
        if close is not None:
            with contextlib.suppress(BaseException):  # the data is out already, and nobody waits for this
                close()
