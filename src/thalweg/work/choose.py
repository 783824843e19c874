"""Threads or processes, and how many: chosen by timing the real calls while they run.

Decides by what becomes of a call's time when a second worker starts. Time in line for a CPU never counts, so a crowded
machine changes nothing: a call that waits for the world waits as long as before; one that waits for the interpreter's
lock waits longer; one that neither waits nor slows down released the lock. Every timed call is a call of the run: no
item is mapped twice, and the choice changes neither order nor state. Knows nothing of what the calls do.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from thalweg.work.turns import JobRunner

if TYPE_CHECKING:
    from collections import deque

FAST = 50e-6  # seconds a call below which more workers cost more than they bring
HEAVY = 300e-6  # Python-bound calls from here on are worth a process each
SLOW = 1e-3  # seconds of waiting in a call from which more threads are worth it
WAITS = 0.5  # share of a call's time in which its thread computes, below which it waits for something
LONGER = 1.3  # a wait that grows so much with a second worker was for that worker
AT_ONCE = 1.35  # CPU seconds a second that two threads reach when they run at the same time
LOOK_S, LOOK_CALLS = 0.08, 8  # a phase ends when it has seen so much


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen, and why, in words for the user."""

    mode: str
    workers: int
    why: str

    def __str__(self) -> str:
        """One line."""
        return f"{self.mode}, {self.workers} worker{'s' * (self.workers != 1)}: {self.why}"


class Times(NamedTuple):
    """What calls took together, time in line for a CPU left out: seconds, seconds of CPU, number of calls."""

    seconds: float
    cpu: float
    calls: int

    @classmethod
    def of(cls, jobs: "Iterable[tuple[float, float, int]]") -> "Times":
        """Add up jobs."""
        seconds, cpu, calls = zip(*jobs, strict=True)
        return cls(sum(seconds), sum(cpu), sum(calls))

    @property
    def each(self) -> float:
        """Seconds of a call."""
        return self.seconds / self.calls

    @property
    def wait(self) -> float:
        """Seconds of a call in which its thread neither computed nor stood in line."""
        return max(0.0, self.seconds - self.cpu) / self.calls

    @property
    def busy(self) -> float:
        """Share of the time in which the thread computed."""
        return self.cpu / max(self.seconds, 1e-12)

    def enough(self) -> bool:
        """Say whether there is enough to judge by."""
        return self.calls >= LOOK_CALLS or self.seconds >= LOOK_S


class Watched(Protocol):
    """What is looked at: an `OrderedMap`."""

    workers: int

    @property
    def pace(self) -> "deque[tuple[float, float, int]]":
        """Seconds, seconds of CPU, and calls of the last jobs."""
        ...

    def set_workers(self, n: int, make_runner: Callable[[], JobRunner] | None = None) -> None:
        """Replace the workers."""

    def timed(self, yes: bool) -> None:
        """Let workers that start from now on note their seconds of CPU, or stop that."""


class Chooser:
    """Watches a map that began with one worker thread, then two, and sets its workers once.

    Args:
        cpus: usable CPUs.
        in_processes: makes runners in processes; None where the function cannot be sent there.
        waiting_workers: threads for calls that wait.
        told: called once with the choice.
    """

    def __init__(
        self,
        cpus: int,
        in_processes: Callable[[], Callable[[], JobRunner]] | None,
        *,
        waiting_workers: int = 16,
        told: Callable[[Choice], None] | None = None,
    ) -> None:
        self._cpus, self._in_processes, self._told = cpus, in_processes, told
        self._waiting = waiting_workers
        self._alone: Times | None = None
        self.choice: Choice | None = None

    def look(self, run: Watched) -> None:
        """Look at the pace; called in the consumer's thread after each turn."""
        skip = 1 if self._alone is None else 2  # the first calls pay for imports, or ran while workers changed
        if self.choice is not None or len(run.pace) <= skip:
            return
        times = Times.of(list(run.pace)[skip:])
        if not times.enough():
            return
        if self._alone is None:
            self._first(run, times)
        else:
            self._second(run, self._alone, times)

    def _first(self, run: Watched, times: Times) -> None:
        waits = times.busy < WAITS and times.wait > SLOW
        if times.each < FAST:
            why = f"a call takes {times.each * 1e6:.0f} us, less than handing it on costs"
            self._choose(run, Choice("threads", 1, why))
        elif self._cpus < 2 and not waits:
            self._choose(run, Choice("threads", 1, "one CPU is usable"))
        else:
            self._alone = times
            run.pace.clear()
            run.set_workers(2)

    def _second(self, run: Watched, alone: Times, times: Times) -> None:
        if alone.busy < WAITS and alone.wait > SLOW and times.wait < LONGER * alone.wait:
            why = f"a call takes {alone.each * 1e3:.1f} ms and mostly waits, two at a time no longer than one"
            self._choose(run, Choice("threads", self._waiting, why))
            return
        at_once = 2 * times.busy
        need = alone.cpu / alone.calls
        took = f"a call takes {need * 1e3:.2f} ms of CPU"
        if self._cpus < 2:
            self._choose(run, Choice("threads", 1, "one CPU is usable"))
        elif at_once >= AT_ONCE:
            self._choose(run, Choice("threads", self._cpus, f"{took} and two ran at the same time"))
        elif self._in_processes is not None and need >= HEAVY:
            why = f"{took} and two did not run at the same time in threads"
            self._choose(run, Choice("processes", self._cpus, why), self._in_processes())
        elif need >= HEAVY:
            why = f"{took}, two did not run at the same time in threads, and it cannot be sent to a process"
            self._choose(run, Choice("threads", 1, why))
        else:
            why = f"{took}, too little for a process, and two did not run at the same time in threads"
            self._choose(run, Choice("threads", 1, why))

    def _choose(self, run: Watched, choice: Choice, make: Callable[[], JobRunner] | None = None) -> None:
        self.choice = choice
        run.timed(False)
        if make is not None or choice.workers != run.workers:
            run.set_workers(choice.workers, make)
        if self._told is not None:
            self._told(choice)
