"""Threads or processes, and how many: chosen by timing the real calls while they run.

Decides by two facts: whether a call waits (its thread uses little CPU) and whether two calls run at the same time
(they release the interpreter's lock). Every timed call is a call of the run: no item is mapped twice, and the choice
changes neither order nor state. Knows nothing of what the calls do.
"""

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter, process_time

from thalweg.work.ordered import OrderedMap
from thalweg.work.turns import JobRunner

FAST = 50e-6  # seconds a call below which more workers cost more than they bring
HEAVY = 300e-6  # Python-bound calls from here on are worth a process each
WAITS = 0.5  # share of a call's time in which its thread is busy, below which it waits
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
        self._phase = 0
        self._start = (0.0, 0.0, 0)
        self.choice: Choice | None = None

    def look(self, run: OrderedMap) -> None:
        """Look at the pace; called in the consumer's thread after each turn."""
        if self.choice is not None or not run.pace:
            return
        if self._phase == 0:
            self._first(run)
        else:
            self._second(run)

    def _first(self, run: OrderedMap) -> None:
        pace = list(run.pace)[1:] or list(run.pace)  # the first call pays for imports and caches
        wall, busy = sum(p[0] for p in pace), sum(p[1] for p in pace)
        calls = sum(p[2] for p in pace)
        if calls < LOOK_CALLS and wall < LOOK_S:
            return
        each = wall / calls
        if each < FAST:
            self._choose(run, Choice("threads", 1, f"a call takes {each * 1e6:.0f} us, less than handing it on costs"))
        elif busy / wall < WAITS and each > 1e-3:
            self._choose(run, Choice("threads", self._waiting, f"a call takes {each * 1e3:.1f} ms and mostly waits"))
        elif self._cpus < 2:
            self._choose(run, Choice("threads", 1, "one CPU is usable"))
        else:
            self._phase = 1
            self._each = each
            run.set_workers(2)
            self._start = (perf_counter(), process_time(), run.calls)

    def _second(self, run: OrderedMap) -> None:
        wall = perf_counter() - self._start[0]
        calls = run.calls - self._start[2]
        if wall < LOOK_S or calls < LOOK_CALLS:
            return
        at_once = (process_time() - self._start[1]) / wall
        each = self._each
        took = f"a call takes {each * 1e3:.2f} ms of CPU"
        if at_once >= AT_ONCE:
            why = f"{took} and two ran at the same time ({at_once:.1f} CPUs busy)"
            self._choose(run, Choice("threads", self._cpus, why))
        elif self._in_processes is not None and each >= HEAVY:
            why = f"{took} and two did not run at the same time in threads ({at_once:.1f} CPUs busy)"
            self._choose(run, Choice("processes", self._cpus, why), self._in_processes())
        else:
            why = f"{took}, too little for a process, and two did not run at the same time in threads"
            self._choose(run, Choice("threads", 1, why))

    def _choose(self, run: OrderedMap, choice: Choice, make: Callable[[], JobRunner] | None = None) -> None:
        self.choice = choice
        if make is not None or choice.workers != run.workers:
            run.set_workers(choice.workers, make)
        if self._told is not None:
            self._told(choice)
