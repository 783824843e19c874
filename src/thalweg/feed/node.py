"""The contract of whatever gives batches, and what it is told about the run.

Decides the methods that a loader calls and the options that it hands down. Knows neither plans nor streams:
`feed.planned` walks a plan, `feed.stream.batches(feed, options)` runs a stream; both give a `BatchNode`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from thalweg.core.batch import Batch
from thalweg.core.state import State
from thalweg.core.topology import Topology
from thalweg.feed.slicing import Slicing


@runtime_checkable
class Node(Protocol):
    """One stage at work. Its state is the place after the last item that was handed over."""

    def __iter__(self) -> Iterator[Any]:
        """Give itself."""
        ...

    def __next__(self) -> Any:
        """Hand over the next item; an error of an item comes at its place in the order."""
        ...

    def state(self) -> State:
        """Say where it is. Cheap, and callable from another thread."""
        ...

    def restore(self, state: State) -> None:
        """Go to where a state says, before the first `next`."""
        ...

    def close(self) -> None:
        """End threads and processes. Twice is fine."""
        ...


@runtime_checkable
class BatchNode(Node, Protocol):
    """A node that gives micro-batches of this rank: numpy values, `batch.info` filled in.

    `state()` is a flat dict of str to str, fit for `loader.state_dict()`: constant keys, and on a stream one key
    for each sub-stream, named for it. After a micro-batch inside a step it is the state at the step's beginning.
    """

    def __next__(self) -> Batch:
        """Hand over the next micro-batch; StopIteration ends the `for` (a group of `options.epochs` epochs)."""
        ...

    def look(self) -> Batch:
        """Give the next micro-batch without moving, also before a `for`."""
        ...

    def coming(self, n: int) -> list[Batch]:
        """Give up to n micro-batches behind the last one handed over, without moving; a stream waits for none."""
        ...

    def begin(self) -> None:
        """Start a `for`: continue right after `restore`, else go to the first row of the running epoch."""
        ...

    @property
    def step(self) -> int:
        """Count the steps handed over in the run."""
        ...

    @property
    def epoch(self) -> int:
        """Epoch of the last batch handed over."""
        ...

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; of the running one: nothing."""
        ...

    def note_leg(self) -> None:
        """Tell the ledger that it was given how this leg runs and where it begins."""
        ...

    def stats(self) -> dict[str, Any]:
        """Counters and seconds by stage."""
        ...


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a feed is run. Nothing here is part of the fingerprint.

    Args:
        topology: the place of this process.
        epochs: epochs of one `for`; None is endless.
        max_steps: optimiser steps in the run at which it ends; None has no end.
        accumulation: micro-batches of a step on this rank, at least 1.
        tail: "drop" | "carry" | "pad" | "repeat".
        seed: used by every random stage without its own.
        workers: where a stage does not say; 0 runs all in the consumer's thread.
        max_bytes: in flight on this rank.
        prefetch: batches made ahead.
        agree: for streams: called as SEMANTICS 5.2 says; None on one rank.
        until: for streams: "first" | "all".
        stall_after: seconds without progress until a stall is named.
        slicing: the slice of rows that this context-parallel rank gets; None: whole rows.
        read: False: steps and numbers alone, no sample is read.
    """

    topology: Topology = field(default_factory=Topology)
    epochs: int | None = 1
    max_steps: int | None = None
    accumulation: int = 1
    tail: str = "drop"
    seed: int = 0
    workers: int | str = "auto"
    max_bytes: int | str = "auto"
    prefetch: int = 2
    agree: Callable[[int, str], Any] | None = None
    until: str = "first"
    stall_after: float = 300.0
    slicing: Slicing | None = None
    read: bool = True


StreamEngine = Callable[[Any, RunOptions], BatchNode]
