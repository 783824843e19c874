"""One account of bytes for a whole chain, and the place where everybody waits while it is full.

Decides when a waiter looks again. Who may go ahead is the waiter's own rule: the item next in order never waits.
"""

import threading
from collections.abc import Callable


class ByteBudget:
    """Bytes held between reading and hand-over, over all maps of one chain.

    Args:
        limit: bytes that may be held; None counts without limit.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self.used = 0
        self.peak = 0
        self.oversize = 0  # items that alone exceed the limit: let through, counted
        self._changed = threading.Condition(threading.Lock())
        self._waiters = 0

    def add(self, n: int) -> None:
        """Charge n bytes; negative n gives them back."""
        if n == 0:
            return
        with self._changed:
            self.used += n
            self.peak = max(self.peak, self.used)
            if n < 0 and self._waiters:
                self._changed.notify_all()

    def full(self, more: int = 0) -> bool:
        """Say whether `more` bytes would exceed the limit."""
        return self.limit is not None and self.used + more > self.limit

    def wait(self, go: Callable[[], bool]) -> None:
        """Wait until `go` is true; it is asked again after every change and every `stir`."""
        if go():
            return
        with self._changed:
            self._waiters += 1
            try:
                # The timeout is only for a waker that may take no lock: a finalizer sets a flag and goes on.
                while not go():
                    self._changed.wait(0.5)
            finally:
                self._waiters -= 1

    def stir(self) -> None:
        """Let all who wait look again: the next item moved on."""
        if self._waiters:
            with self._changed:
                self._changed.notify_all()
