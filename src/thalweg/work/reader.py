"""The one thread that reads: it numbers items, takes a credit for each, and makes jobs of them.

Decides how many items go into one job and when reading pauses. Knows nothing of what items are; it never calls user
code other than the source's own `next`.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from queue import Empty, SimpleQueue
from typing import Any

from thalweg.work.failure import Failure, travel
from thalweg.work.port import END, RESULT, Job, Message, Port


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
        self.end = threading.Event()
        self._port = port
        self._items = items
        self._free = credits_
        self._half = max(1, credits_ // 2)
        self._passes = passes
        self._lock = threading.Lock()
        # Read, in no job yet: the reader appends without a lock, sizes first; a flush from any thread takes.
        self._open: deque[Any] = deque()
        self._sizes: deque[int] = deque()
        self._sent = 0  # items in jobs, or sent on without a call

    @property
    def read(self) -> int:
        """Count the items read."""
        return self._sent + len(self._open)

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
            self._sent += 1
        finally:
            self._close(iterator)
            self._port.messages.put(Message(END, self.read))
            self.end.set()

    def _loop(self, iterator: Any) -> None:
        port = self._port
        while not port.closed:
            if self._free <= 0 and not self._wait_for_room():
                return
            room = max(1, min(self.chunk - len(self._open), self._free))
            if self._take(islice(iterator, room)) < room or port.limit < self.read:
                return

    def _take(self, items: Iterable[Any]) -> int:
        """Read up to a job full, and count it; what is read is in reach of a flush, should the source stop to wait."""
        port, passes, size_of = self._port, self._passes, self._port.size_of
        budget, put, measured = port.budget, self._open.append, self._sizes.append
        got, held = 0, sum(self._sizes)
        for item in items:
            if port.closed or port.limit < self._sent:
                return 0
            got += 1
            self._free -= 1
            if passes is not None and passes(item):
                self._pass_on(item)
                held = 0
                continue
            if size_of is not None:
                size = size_of(item)
                held += size
                if budget.limit is not None and budget.used + held > budget.limit:
                    self._pause(size)
                    held = size
                measured(size)
            put(item)
        if len(self._open) >= self.chunk:
            self.flush()
        return got

    def _pass_on(self, item: Any) -> None:
        """Send an item to the consumer without a call, at its place."""
        self.flush()
        number, self._sent = self._sent, self._sent + 1
        self._port.messages.put(Message(RESULT, number, [item], [[item]], 0))

    def _wait_for_room(self) -> bool:
        """Wait until a whole job fits again; all that is in flight is on its way, so room comes. False: closed."""
        self.flush()
        while self._free < self.chunk and not self._port.closed:
            self._free += self._port.returns.get()
            if self._free >= self._half:
                break
        return not self._port.closed

    def _pause(self, size: int) -> None:
        """Wait until an item fits, or is the next in order: that one never waits for bytes."""
        port = self._port
        self.flush()
        number = self._sent
        if port.budget.limit is not None and size > port.budget.limit:
            port.budget.oversize += 1
        port.budget.wait(lambda: port.closed or port.head >= number or not port.budget.full(size))

    def flush(self) -> bool:
        """Send the job that is being filled, from any thread; a consumer that starves calls this."""
        port, waiting = self._port, self._open
        with self._lock:
            n = len(waiting)
            if not n:
                return False
            items = [waiting.popleft() for _ in range(n)]
            size = sum([self._sizes.popleft() for _ in range(n)]) if port.size_of is not None else 0
            first, self._sent = self._sent, self._sent + n
            port.budget.add(size)
            # Inside the lock: jobs must be queued lowest number first.
            port.jobs.put(Job(first, items, size))
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
