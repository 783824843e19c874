"""One call that runs in a thread of its own while its caller does something else, and ends before the caller goes on.

Decides when that is worth a thread, and that an error is raised where the caller waits. Knows nothing of what is done:
it helps where both sides spend their time without the interpreter's lock, as in a write, numpy and a hash of much.
"""

import threading
from collections.abc import Callable

from thalweg.work.cpus import usable_cpus


def has_second_cpu() -> bool:
    """Whether anything can be done beside at all. Asks the system, 50 us: once an owner, not once a call."""
    return usable_cpus() > 1


class Beside:
    """A call that is started, and waited for.

    Args:
        call: what to do.
        name: of the thread.
    """

    def __init__(self, call: Callable[[], None], *, name: str) -> None:
        self._call, self._thread = call, threading.Thread(target=self._run, name=name)
        self._error: BaseException | None = None

    def start(self, *, here: bool = False) -> None:
        """Start the call; its thread runs when this returns, and goes on from where it needs no interpreter.

        Args:
            here: without a thread: the call is over when this returns.
        """
        if not here:
            try:
                self._thread.start()
            except RuntimeError:  # no more threads: a limit, or the interpreter ends
                here = True
        if here:
            self._run()

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as error:  # noqa: BLE001  (raised where the caller waits)
            self._error = error

    def wait(self) -> None:
        """Wait until the call is over, whatever became of it. Twice is fine."""
        if self._thread.ident is not None:
            self._thread.join()

    def end(self) -> None:
        """Wait until the call is over, and raise what it raised."""
        self.wait()
        if self._error is not None:
            raise self._error
