"""What passes between the threads of an ordered map: jobs out, messages back, and who may go ahead.

Decides the words (job, message kinds) and the rule of bytes for outputs that come one by one. Knows no user code.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from thalweg.work.budget import ByteBudget

if TYPE_CHECKING:
    from thalweg.work.failure import Failure

# Kinds of messages to the consumer. RESULT: items whose calls are over. PART: one output of a call that goes on.
# END: the source ended after `number` items. DONE: a worker left. CLOSED: wake up, all is over.
RESULT: Final = "result"
PART: Final = "part"
END: Final = "end"
DONE: Final = "done"
CLOSED: Final = "closed"

PARTS_AHEAD: Final = 64  # outputs of one call that may wait for their turn
NO_LIMIT: Final = 1 << 62

Outcome: TypeAlias = "list[Any] | Failure"


class Job(NamedTuple):
    """Consecutive items from number `first` on, mapped by one worker in one go; `size` is their bytes."""

    first: int
    items: list[Any]
    size: int


class Message(NamedTuple):
    """What the consumer gets; `size` is the bytes that are given back once it has been handed over."""

    kind: str
    number: int = 0
    items: list[Any] | None = None
    outcomes: list[Outcome] | None = None
    size: int = 0


Running: TypeAlias = tuple[Job, float, Any]  # what a worker has in hand, since when, and its runner


@dataclass(slots=True)
class Port:
    """The queues and marks that reader, workers and consumer share.

    Every wait is on one of the queues or on the budget, so `stop` can wake all of them without a lock of its own.
    """

    budget: ByteBudget
    size_of: Callable[[Any], int] | None
    stop_on_error: bool
    messages: "SimpleQueue[Message]" = field(default_factory=SimpleQueue)
    jobs: "SimpleQueue[Job | None]" = field(default_factory=SimpleQueue)
    returns: "SimpleQueue[int]" = field(default_factory=SimpleQueue)  # item credits given back; 0 wakes
    closed: bool = False
    limit: int = NO_LIMIT  # no item after this number is worth mapping: it failed and the order ends there
    head: int = 0  # number that is handed over next
    taken: int = 0  # outputs of the head that the consumer took one by one
    remote: bool = False  # calls happen in other processes
    timed: bool = False  # note how long workers computed too: system calls for each job
    running: dict[int, Running] = field(default_factory=dict)  # by thread identity
    starting: dict[int, Any] = field(default_factory=dict)  # the same, of workers whose process starts
    item_bytes: float = 0.0  # of the results of an item, as last told
    pace: "deque[tuple[float, float, int]]" = field(default_factory=lambda: deque(maxlen=64))  # seconds, CPU, items

    def result(
        self, number: int, items: list[Any], outcomes: list[Outcome], charged: int, size: int | None = None
    ) -> None:
        """Send outcomes of the items from `number` on.

        Args:
            number: of the first item.
            items: as read.
            outcomes: one for each.
            charged: bytes that the items have cost so far.
            size: bytes of the outcomes; None measures them.
        """
        if size is not None:
            self.item_bytes = size / len(outcomes)
        if self.size_of is None:
            size = charged
        else:
            if size is None:
                size = sum(map(self.size_of, [o for o in outcomes if type(o) is list]))
            self.budget.add(size - charged)
        if self.stop_on_error:
            for k, outcome in enumerate(outcomes):
                if type(outcome) is not list:
                    self.limit = min(self.limit, number + k)
        self.messages.put(Message(RESULT, number, items, outcomes, size))

    def part(self, number: int, item: Any, output: Any, emitted: int) -> bool:
        """Send one output of a call that goes on; `emitted` came before it. False: closed, stop calling.

        Waits while the account is full or many outputs wait, except for the item next in order with none waiting.
        """
        size = 0 if self.size_of is None else self.size_of(output)

        def go() -> bool:
            is_head = self.head == number
            waiting = emitted - (self.taken if is_head else 0)
            return self.closed or (is_head and waiting <= 0) or (waiting < PARTS_AHEAD and not self.budget.full(size))

        self.budget.wait(go)
        if self.closed or number > self.limit:
            return False
        self.budget.add(size)
        self.messages.put(Message(PART, number, [item], [[output]], size))
        return True

    def stop(self, workers: int) -> None:
        """Wake every wait. Takes no lock, so a finalizer or a signal handler may call it."""
        self.closed = True
        self.limit = -1
        self.returns.put(0)
        for _ in range(workers):
            self.jobs.put(None)
        self.messages.put(Message(CLOSED))
