"""The first code of a worker process: find the parent's modules, watch the parent, run what it sent.

Decides that a worker ends with its parent, that Ctrl-C is the parent's business, and where stacks are written on
request. Knows nothing of the work.
"""

import contextlib
import faulthandler
import os
import pickle
import select
import signal
import socket
import threading

from thalweg.work.wire import Wire


def _watch(fd: int, parent: int) -> None:
    """Leave at once when the parent closes its end or is gone; a call that never returns cannot prevent it."""
    poll = select.poll()
    poll.register(fd, getattr(select, "POLLRDHUP", select.POLLHUP))
    while not poll.poll(1000) and os.getppid() == parent:
        pass
    os._exit(0)


def main(fd: int, stacks: int, parent: int) -> None:
    """Run in a fresh interpreter, once."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "SIGUSR2"):
        faulthandler.register(signal.SIGUSR2, file=stacks, all_threads=True)
    threading.Thread(target=_watch, args=(fd, parent), name="thalweg-watch", daemon=True).start()
    wire = Wire(socket.socket(fileno=fd))
    first = wire.receive()
    if first is None:
        return
    body, fds = pickle.loads(first[0])  # noqa: S301  from the parent
    with contextlib.suppress(BrokenPipeError, ConnectionError):
        body(wire, fds)
    # Threads of libraries (tokenizers, BLAS) must not hold up the end; everything was handed over.
    os._exit(0)
