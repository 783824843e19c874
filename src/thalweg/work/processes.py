"""Supervised worker processes: jobs out, messages and outcomes back, deaths noticed and named.

Decides how workers start (forkserver or spawn, never a bare fork), who is told of a death, and how they end. A
worker runs one job at a time; its death costs that job's attempt. Workers end when their parent does, by whatever
cause. User code travels by cloudpickle, so a script needs no `if __name__ == "__main__"`. Knows nothing of ranks.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import cloudpickle

from thalweg.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from multiprocessing.context import ForkServerContext, SpawnContext

StartMethod: TypeAlias = Literal["forkserver", "spawn"]
GRACE = 2.0  # seconds between asking a worker to end and killing it


@dataclass(frozen=True, slots=True)
class Failure:
    """What was raised in a worker.

    Args:
        kind: name of the exception's class, or of the signal that ended the worker.
        message: its text.
        trace: the worker's traceback; empty when the worker died.
        died: True when the process ended without an answer.
    """

    kind: str
    message: str
    trace: str = ""
    died: bool = False

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Describe an exception, notes included."""
        notes = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
        return cls(type(error).__name__, f"{error}{notes}", "".join(traceback.format_exception(error)))


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one job ended: a result, or a failure after all its attempts."""

    job: Any
    result: Any = None
    failure: Failure | None = None


@dataclass(slots=True, eq=False)
class _Worker:
    process: Any
    pipe: Connection
    job: Any = None
    deaths: int = 0  # how many workers this job has cost
    busy: bool = False


def _ignore(job: Any, news: Any) -> None:
    del job, news


def supervise(
    work: Callable[[Any, Callable[[Any], None]], Any],
    jobs: Iterable[Any],
    *,
    workers: int,
    start_method: StartMethod = "forkserver",
    retries: int = 0,
    on_message: Callable[[Any, Any], None] = _ignore,
    on_retry: Callable[[Any, Failure], None] = _ignore,
) -> Iterator[Outcome]:
    """Run `work(job, send)` for every job in worker processes and yield outcomes as they come.

    Args:
        work: called in a worker; `send(message)` reaches `on_message(job, message)` here.
        jobs: any picklable values.
        workers: processes at once, at least 1; no more are started than there are jobs.
        start_method: "forkserver" or "spawn".
        retries: how often a job is given out again after its worker died. What `work` raises is not retried.
        on_message, on_retry: called in this process, between outcomes.

    Leaving the generator early, by an error or Ctrl-C, ends all workers before control returns.

    Raises:
        ConfigError: another start method, or workers below 1.
    """
    if workers < 1:
        raise ConfigError(f"workers={workers} cannot work", fix="give 1 or more")
    crew = _Crew(
        cloudpickle.dumps(work), deque((job, 0) for job in jobs), workers, start_method, retries, on_message, on_retry
    )
    try:
        yield from crew.run()
    finally:
        crew.close()


class _Crew:
    """The parent's side: who works on what."""

    def __init__(  # noqa: PLR0917  (names and order that callers know)
        self,
        work: bytes,
        jobs: deque[tuple[Any, int]],
        workers: int,
        start_method: StartMethod,
        retries: int,
        on_message: Callable[[Any, Any], None],
        on_retry: Callable[[Any, Failure], None],
    ) -> None:
        self.work, self.jobs, self.size, self.retries = work, jobs, min(workers, max(len(jobs), 1)), retries
        self.on_message, self.on_retry = on_message, on_retry
        self.context = _context(start_method)
        self.crew: list[_Worker] = []

    def run(self) -> Iterator[Outcome]:
        while self.jobs or any(w.busy for w in self.crew):
            while self.jobs and len(self.crew) < self.size:
                self.crew.append(self._start())
            for worker in self.crew:
                if self.jobs and not worker.busy:
                    self._give(worker)
            handles: dict[Any, _Worker] = {w.pipe: w for w in self.crew} | {w.process.sentinel: w for w in self.crew}
            for worker in {id(w): w for w in map(handles.__getitem__, wait(list(handles)))}.values():
                yield from self._hear(worker)

    def _start(self) -> _Worker:
        ours, theirs = self.context.Pipe()
        process = self.context.Process(target=_serve, args=(theirs, self.work), name="thalweg-worker", daemon=False)
        with _without_main():
            process.start()
        theirs.close()
        return _Worker(process, ours)

    def _give(self, worker: _Worker) -> None:
        (worker.job, worker.deaths), worker.busy = self.jobs.popleft(), True
        with suppress(OSError):  # it died: its sentinel says so next
            worker.pipe.send(worker.job)

    def _hear(self, worker: _Worker) -> Iterator[Outcome]:
        try:
            while worker.pipe.poll():
                kind, body = worker.pipe.recv()
                if kind == "message":
                    self.on_message(worker.job, body)
                    continue
                worker.busy = False
                yield Outcome(worker.job, body) if kind == "done" else Outcome(worker.job, failure=body)
                if self.jobs:
                    self._give(worker)
        except (EOFError, OSError):
            yield from self._bury(worker)
            return
        if not worker.process.is_alive():
            yield from self._bury(worker)

    def _bury(self, worker: _Worker) -> Iterator[Outcome]:
        worker.process.join()
        worker.pipe.close()
        self.crew.remove(worker)
        if not worker.busy:
            return
        failure = _death(worker.process.exitcode, worker.process.pid)
        if worker.deaths < self.retries:
            self.on_retry(worker.job, failure)
            self.jobs.appendleft((worker.job, worker.deaths + 1))
        else:
            yield Outcome(worker.job, failure=failure)

    def close(self) -> None:
        """End all workers: those that wait leave by themselves, those at work are told, then killed."""
        for worker in self.crew:
            if worker.busy:
                worker.process.terminate()
            worker.pipe.close()
        for worker in self.crew:
            worker.process.join(GRACE)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self.crew.clear()


def _context(start_method: str) -> ForkServerContext | SpawnContext:
    if start_method not in {"forkserver", "spawn"}:
        raise ConfigError(
            f"start_method={start_method!r} is not used here",
            fix="say 'forkserver' or 'spawn': a fork of a process with threads can hang",
        )
    context = multiprocessing.get_context(start_method)
    if start_method == "forkserver":
        cast("ForkServerContext", context).set_forkserver_preload(["thalweg.work.processes"])
    return cast("ForkServerContext | SpawnContext", context)


class _without_main:  # noqa: N801  (reads as a word of the language)
    """Start children without running the caller's script again in each: functions travel by value."""

    def __enter__(self) -> None:
        self.main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")

    def __exit__(self, *failure: object) -> None:
        sys.modules["__main__"] = self.main


def _death(exitcode: int | None, pid: int | None) -> Failure:
    if exitcode is not None and exitcode < 0:
        name = signal.Signals(-exitcode).name
        cause = ": killed, perhaps for want of memory" if name == "SIGKILL" else ""
        return Failure(name, f"worker process {pid} was ended by {name}{cause}", died=True)
    return Failure("WorkerExit", f"worker process {pid} left with exit status {exitcode}", died=True)


def _serve(pipe: Connection, work: bytes) -> None:
    """The worker's side: take a job, answer, until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    threading.Thread(target=_leave_with_parent, name="thalweg-parent-watch", daemon=True).start()
    lock = threading.Lock()

    def send(message: Any, kind: str = "message") -> None:
        with lock:
            pipe.send((kind, message))

    call = cloudpickle.loads(work)
    while True:
        try:
            job = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            answer, kind = call(job, send), "done"
        except BaseException as error:  # noqa: BLE001  (also SystemExit of user code: a job must not end as a success)
            answer, kind = Failure.of(error), "raised"
        send(answer, kind)


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
