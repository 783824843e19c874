"""A fresh worker process: started by exec, never by a bare fork, and never left behind.

Decides how a child starts, how its death is noticed and put into words, and how it is ended. Knows nothing of what
it computes: it is given a function of (wire, extra descriptors), pickled by cloudpickle, so that lambdas, closures
and functions of a script or notebook work without a main guard.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import cloudpickle

from thalweg.work.arena import memory_file
from thalweg.work.wire import Wire

# The child learns the parent's import path first, so that thalweg is found where the parent found it.
_START = "import sys; sys.path[:] = {path!r}; from thalweg.work.child import main; main({fd}, {stacks}, {parent})"


class Child:
    """One worker process.

    The child ends when its wire closes or its parent dies, kill -9 included, whatever it is doing.

    Args:
        body: (wire, fds) -> None, run in the child.
        fds: descriptors that the child inherits under the same numbers.
        name: in errors.
    """

    def __init__(self, body: Callable[[Wire, Sequence[int]], None], fds: Sequence[int] = (), name: str = "") -> None:
        self.name = name
        payload = cloudpickle.dumps((body, tuple(fds)), 5)
        ours, theirs = socket.socketpair()
        self._stacks = memory_file()
        try:
            start = _START.format(path=sys.path, fd=theirs.fileno(), stacks=self._stacks, parent=os.getpid())
            self._process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-c", start],
                pass_fds=(theirs.fileno(), self._stacks, *fds),
                stdin=subprocess.DEVNULL,
            )
        except BaseException:
            ours.close()
            os.close(self._stacks)
            raise
        finally:
            theirs.close()
        self.pid = self._process.pid
        self.wire = Wire(ours)
        self._send_first(payload)

    def _send_first(self, payload: bytes) -> None:
        with contextlib.suppress(OSError):  # it died while starting; the first `receive` says so
            self.wire.send(payload)

    def kill(self) -> None:
        """End it at once. Takes no lock; twice is fine."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def alive(self) -> bool:
        """Say whether it runs."""
        return self._process.poll() is None

    def death(self, seconds: float = 5.0) -> str:
        """Wait for its end and say how it came: by which signal, or with which exit status."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return "closed its connection and still runs"
        if code < 0:
            try:
                name = signal.Signals(-code).name
            except ValueError:
                name = f"signal {-code}"
            hint = " (the system kills so when memory runs out)" if name == "SIGKILL" else ""
            return f"was killed by {name}{hint}"
        return f"ended with exit status {code}"

    def stack(self, seconds: float = 1.0) -> str:
        """Ask where its threads stand; empty where it does not answer."""
        number = getattr(signal, "SIGUSR2", None)
        if number is None or not self.alive():
            return ""
        before = os.fstat(self._stacks).st_size
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return ""
        end = time.monotonic() + seconds
        size, quiet = before, 0
        while time.monotonic() < end and quiet < 5:  # it is written in pieces: wait until it has been quiet for 0.1 s
            time.sleep(0.02)
            now = os.fstat(self._stacks).st_size
            quiet = quiet + 1 if now == size > before else 0
            size = now
        return os.pread(self._stacks, max(0, size - before), before).decode("utf-8", "replace").rstrip()

    def end(self, seconds: float = 1.0) -> None:
        """Close the wire, wait a moment for it to leave, then kill it. Twice is fine."""
        self.wire.close()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()
        stacks, self._stacks = self._stacks, -1
        if stacks >= 0:
            os.close(stacks)
