"""The inside of an ordered map: its threads, and the consumer's way through messages to turns.

Decides how threads start, wait, are noticed to be late or stuck, and stop. Who is next is `plan.inorder`; what a call
is, a runner knows.
"""

import contextlib
import os
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from queue import Empty
from time import monotonic, perf_counter
from typing import Any, NamedTuple, Protocol

from thalweg.core.errors import StalledError, WorkerError
from thalweg.plan.inorder import WaitingRoom
from thalweg.work.cpus import ThreadClock
from thalweg.work.failure import Failure
from thalweg.work.port import CLOSED, DONE, END, PART, RESULT, Job, Message, Outcome, Port
from thalweg.work.reader import Reader
from thalweg.work.runner import Sink
from thalweg.work.stacks import stack_of, stacks

CLOSE_SECONDS = 5.0
STARTING = 10  # times `stall_after` that worker processes may take to start: imports crawl on a crowded machine


class Turn(NamedTuple):
    """What is handed over: an item with outputs. `last` is False while a call still gives outputs one by one."""

    item: Any
    outputs: list[Any]
    last: bool
    error: BaseException | None


class JobRunner(Protocol):
    """Runs jobs for one worker thread.

    `take`: set by the worker; gives the job that it runs next where one waits, for those who can send it ahead.
    """

    take: Callable[[], Job | None] | None

    def begin(self) -> None:
        """Get ready, before the first job is taken; raises nothing: a fault shows in the first run."""

    def run(self, job: Job, sink: Sink) -> None:
        """Map the items of a job and hand the outcomes to the sink."""

    def cancel(self) -> None:
        """End a run in another thread as soon as possible; takes no lock."""

    def end(self) -> None:
        """Give back what the runner holds; called by its own thread."""

    def stack(self) -> str:
        """Say where a run stands that happens in another process; empty where it happens here."""
        ...


class Core:
    """All that threads refer to. The face refers to it, never the other way, so garbage collection can end it."""

    def __init__(self, port: Port, reader: Reader, name: str, ahead: int) -> None:
        self.port = port
        self.reader = reader
        self.name = name
        self.ahead = ahead
        self.room: WaitingRoom[Message] = WaitingRoom()
        self.parts: dict[int, deque[Message]] = {}
        self.total: int | None = None
        self.pid = os.getpid()
        self.threads: list[threading.Thread] = []
        self.runners: list[JobRunner] = []
        self.alive = 0  # workers that have not said DONE
        self.owed = 0  # item credits of turns that passed, not yet given back
        self.waited = 0.0  # seconds the consumer waited
        self.stall_after: float | None = None
        self.timeout: float | None = None
        self.hook: Callable[[Message], None] | None = None
        self.wake: Callable[[], None] | None = None
        self.replace: Callable[[Job | None], None] | None = None
        self.tune: list[Callable[[], None]] = []

    # -- threads ------------------------------------------------------------------------------------------------
    def spawn(self, target: Callable[[], None], label: str) -> None:
        """Start a daemon thread of ours."""
        thread = threading.Thread(target=target, name=f"thalweg-{self.name}-{label}", daemon=True)
        self.threads.append(thread)
        thread.start()

    def add_worker(self, runner: JobRunner, job: Job | None = None) -> None:
        """Start one more worker, with a job to begin with."""
        self.runners.append(runner)
        self.alive += 1
        self.spawn(lambda: work(self.port, runner, job), str(len(self.runners) - 1))

    def retire(self, n: int) -> None:
        """Ask n workers to leave once the jobs before are taken."""
        for _ in range(n):
            self.port.jobs.put(None)

    def stop(self) -> None:
        """Flag and wake everybody; takes no lock and waits for nobody."""
        self.port.stop(self.alive + 1)
        for runner in self.runners:
            runner.cancel()
        if self.wake is not None:
            self.wake()

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Stop, then wait for all threads; name those that user code holds."""
        if os.getpid() != self.pid:
            return
        self.stop()
        end = monotonic() + seconds
        for thread in self.threads:
            if thread is not threading.current_thread() and thread.is_alive():
                thread.join(max(0.0, end - monotonic()))
        left = [t for t in self.threads if t.is_alive() and t is not threading.current_thread()]
        self.threads = left
        if left:
            held = "\n".join(f"{t.name}:\n{stack_of(t.ident, 6)}" for t in left)
            warnings.warn(
                f"{len(left)} thread(s) are still inside user code {seconds:g} s after close; "
                f"they end when it returns:\n{held}",
                RuntimeWarning,
                stacklevel=3,
            )

    # -- the consumer's side --------------------------------------------------------------------------------------
    def handed(self) -> Iterator[Message]:
        """Give results and single outputs in order until the source has ended. Stops all however it is left.

        Room is given back when the next one is asked for.
        """
        room, port, parts = self.room, self.port, self.parts
        try:
            while True:
                if parts and parts.get(room.next):
                    message = parts[room.next].popleft()
                    yield message
                    port.taken += 1
                    port.budget.add(-message.size)
                    port.budget.stir()
                elif room.ready():
                    parts.pop(room.next, None)
                    message = room.take()
                    yield message
                    self._passed(message)
                elif self.total is not None and room.next >= self.total:
                    break
                else:
                    self._receive(self._message())
            while self.alive or not self.reader.end.is_set():
                self._receive(self._message())
        finally:
            self.stop()

    def _passed(self, message: Message) -> None:
        """Give credits and bytes back, and let the next in order go ahead."""
        assert message.items is not None
        port = self.port
        port.taken = 0
        port.head = self.room.next
        self.owed += len(message.items)
        if self.owed >= self._batch():
            self.owed, owed = 0, self.owed
            port.returns.put(owed)
        if message.size:
            port.budget.add(-message.size)
        port.budget.stir()
        for look in self.tune:
            look()

    def _batch(self) -> int:
        """Count the credits that are given back at once: waking the reader for each costs more than a fast call.

        So many are left that every worker has two items; with less room than that, each is given back alone.
        """
        return max(1, min(self.ahead // 2, self.ahead - 2 * self.alive))

    def _receive(self, message: Message) -> None:
        if self.hook is not None:
            self.hook(message)
        kind = message.kind
        if kind is RESULT:
            assert message.items is not None
            number = message.number
            if number >= self.room.next:
                self.room.arrive(number, message, len(message.items))
            else:
                self.port.budget.add(-message.size)  # it was given up, and came after all
        elif kind is PART:
            self.parts.setdefault(message.number, deque()).append(message)
        elif kind is END:
            self.total = message.number
            self.retire(self.alive)
        elif kind is DONE:
            self.alive -= 1
        elif kind is CLOSED:
            raise WorkerError(
                "the stream was closed while it was still being read", where=self.name, fix="close it after the loop"
            )

    def _message(self) -> Message:
        """Wait for the next message; notices starving, items over their time, and stalls."""
        port = self.port
        if not port.messages.empty():  # nobody else takes from it
            return port.messages.get()
        start = perf_counter()
        tick = 0.005
        while True:
            with contextlib.suppress(Empty):
                message = port.messages.get(timeout=tick)
                self.waited += perf_counter() - start
                return message
            tick = 0.1 if not self.reader.flush() else tick
            waited = perf_counter() - start
            late = None if self.timeout is None else self._late()
            if late is not None:
                return late
            patience = STARTING if port.starting else 1
            if self.stall_after is not None and waited > patience * self.stall_after:
                raise self._stalled(waited)

    def poll(self) -> "tuple[int, Outcome | None, BaseException | None]":
        """Take in what has arrived and count what is ready to be handed over, without waiting."""
        with contextlib.suppress(Empty):
            while True:
                self._receive(self.port.messages.get_nowait())
        ready, last = 0, None
        for outcome in (o for m in self.room.coming() for o in m.outcomes or ()):
            if not isinstance(outcome, list):
                return ready, last, outcome.error
            ready, last = ready + 1, outcome
        return ready, last, None

    def _late(self) -> Message | None:
        """Fail the next item where its call is over its time; its worker is given up and replaced."""
        number, now = self.room.next, perf_counter()
        for ident, running in list(self.port.running.items()):
            job = running[0]
            if not job.first <= number < job.first + len(job.items) or now - running[1] <= (self.timeout or 0.0):
                continue
            error = StalledError(
                f"the call took longer than timeout={self.timeout:g} s and was given up; it stood at\n"
                + (running[2].stack() or stack_of(ident)),
                where=f"item {number}",
                fix="raise timeout=, or on_error='skip' to go on without such samples",
            )
            del self.port.running[ident]
            self.alive -= 1  # it does not say DONE any more
            running[2].cancel()
            rest = job.items[number - job.first + 1 :]
            if self.port.stop_on_error:
                self.port.limit = min(self.port.limit, number)
            elif self.replace is not None:
                self.replace(Job(number + 1, rest, 0) if rest else None)
            return Message(RESULT, number, [job.items[number - job.first]], [Failure(error)], 0)
        return None

    def _stalled(self, waited: float) -> StalledError:
        port = self.port
        flight = self.reader.read - self.room.next
        stage = "a worker" if port.running else "the reader (source)"
        stage = "a worker process that starts" if port.starting else stage
        runners = [*port.starting.values(), *(running[2] for running in port.running.values())]
        remote = [text for runner in runners if (text := runner.stack())]
        where = "\n".join([stacks(), *(f"in a worker process:\n{text}" for text in remote)])
        return StalledError(
            f"nothing came for {waited:.0f} s: the consumer waits for item {self.room.next}, {flight} in flight, "
            f"{len(self.room)} done and waiting, {port.budget.used:,} bytes held; {stage} is busy\n{where}",
            where=self.name,
            fix="look at the stacks above; raise stall_after= where this is expected",
        )


def turns_of(messages: Iterator[Message]) -> Iterator[Turn]:
    """Give items with their outputs one by one."""
    for message in messages:
        whole = message.kind is RESULT
        for item, outcome in zip(message.items or (), message.outcomes or (), strict=True):
            if type(outcome) is list:
                yield Turn(item, outcome, whole, None)
            elif isinstance(outcome, Failure):
                yield Turn(item, outcome.outputs, True, outcome.error)


def _begin(port: Port, runner: JobRunner) -> None:
    """Make a worker ready, noted as long as that takes."""
    port.starting[threading.get_ident()] = runner
    try:
        runner.begin()
    finally:
        del port.starting[threading.get_ident()]


def work(port: Port, runner: JobRunner, job: Job | None = None) -> None:
    """The life of a worker: take the lowest job, run it, note the pace; leave when told."""
    me, given_up, jobs = threading.get_ident(), False, port.jobs
    clock = ThreadClock() if port.timed else None
    early: deque[Job | None] = deque()  # taken by the runner before its turn

    def take() -> Job | None:
        with contextlib.suppress(Empty):
            early.append(jobs.get_nowait())
        return early[0] if early and early[0] is not None and early[0].first <= port.limit else None

    runner.take = take
    try:
        _begin(port, runner)
        while True:
            job = job or (early.popleft() if early else jobs.get())
            if job is None:
                break
            if port.closed or job.first > port.limit:
                job = None
                continue
            _begin(port, runner)  # a worker that died starts again here, outside of any call's time
            start = perf_counter()
            before = clock() if clock else (start, 0.0)
            port.running[me] = (job, start, runner)
            try:
                runner.run(job, port)
            except BaseException as error:  # noqa: BLE001  a fault of ours must not become a silent wait
                port.result(job.first, job.items[:1], [Failure(error)], job.size)
                break
            spent = getattr(runner, "spent", None)
            if spent is None:
                after = clock() if clock else (perf_counter(), 0.0)
                spent = after[0] - before[0], after[1] - before[1]
            port.pace.append((spent[0], spent[1], len(job.items)))
            if port.running.pop(me, None) is None:
                given_up = True  # for being late: another worker has this one's place
                break
            job = None
    finally:
        port.running.pop(me, None)
        runner.end()
        for left in early:
            jobs.put(left)
        if clock is not None:
            clock.close()
        if not given_up:
            port.messages.put(Message(DONE))
