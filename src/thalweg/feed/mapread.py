"""Reads samples through their functions, inline, on threads or in processes: one call for the documents of some rows.

Decides how a planned map runs: the words of its stage and of the loader choose workers, the engine of `work` runs
them, results come in the order of the plan. Books are kept by the consumer, whoever called. Knows no batch.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from thalweg.core.errors import WorkerError
from thalweg.core.sample import Sample
from thalweg.core.tally import Tally
from thalweg.feed import stages as st
from thalweg.feed.engine import engine_of
from thalweg.feed.mapped import Failed, Leaf
from thalweg.feed.source import columns_of, hash_ids, samples_of
from thalweg.work.choose import Chooser
from thalweg.work.cpus import usable_cpus
from thalweg.work.ordered import OrderedMap
from thalweg.work.percopy import for_worker
from thalweg.work.remote import RemoteCalls
from thalweg.work.runner import Runner

Ints = NDArray[np.int64]
T = TypeVar("T")
log = logging.getLogger("thalweg")


@dataclass(frozen=True, eq=False)
class Request:
    """Documents to be read: source, index and epoch of each, int (n,); `raw` where they were read already.

    What goes to a process is read here, so that no source has to go there.
    """

    source: NDArray[np.int32]
    index: Ints
    epoch: NDArray[Any]
    raw: tuple[list[Sample], list[str]] | None = None


@dataclass(frozen=True, eq=False)
class Result:
    """Samples in the order asked, None for a hole; the books of each leaf and function; what failed."""

    samples: list[Any]
    books: dict[tuple[int, int], Tally]
    failed: list[tuple[int, Failed]]
    seconds: tuple[float, float] = (0.0, 0.0)  # spent on reading, and in functions


class MapRows:
    """Request -> samples. Fit to be sent to a worker process.

    Args:
        leaves: the sources, with their functions.
        seed: of functions that ask for random numbers.
    """

    def __init__(self, leaves: Sequence[Leaf], seed: int) -> None:
        self.leaves, self.seed = list(leaves), seed

    def like(self, leaves: Sequence[Leaf]) -> "MapRows":
        """Give the same call on other leaves."""
        return MapRows(leaves, self.seed)

    def of_leaf(self, leaf: Leaf, index: Ints, epoch: int) -> list[Any]:
        """Give what is made of samples of one leaf, one for each."""
        return list(leaf.samples(index, epoch, self.seed))

    def __call__(self, request: Request) -> list[Result]:
        """Read and map; the one result is in a list, as the engine wants it."""
        samples: list[Any] = [None] * len(request.index)
        seconds = [0.0, 0.0]
        books: dict[tuple[int, int], Tally] = {}
        failed: list[tuple[int, Failed]] = []
        for epoch in np.unique(request.epoch).tolist():
            for s, leaf in enumerate(self.leaves):
                mine = np.flatnonzero((request.source == s) & (request.epoch == epoch))
                if not len(mine):
                    continue
                own = replace(leaf, tallies={}, failures=[], seconds=seconds)
                if request.raw is not None:
                    rows, ids = request.raw
                    own.source = Rows(
                        [rows[i] for i in mine.tolist()], [ids[i] for i in mine.tolist()], request.index[mine]
                    )
                made = self.of_leaf(own, request.index[mine], epoch)
                for at, sample in zip(mine.tolist(), made, strict=True):
                    samples[at] = sample
                for number, tally in own.tallies.items():
                    books[s, number] = books.get((s, number), Tally()) + tally
                failed += [(s, f) for f in own.failures or ()]
        return [Result(samples, books, failed, (seconds[0], seconds[1]))]

    def read(self, request: Request) -> Request:
        """Read what a request asks for, functions not yet applied."""
        rows: list[Sample] = [{}] * len(request.index)
        ids = [""] * len(request.index)
        for s, leaf in enumerate(self.leaves):
            mine = np.flatnonzero(request.source == s)
            if len(mine):
                index = request.index[mine]
                read = samples_of(leaf.source.read(index, None), len(index))
                for at, row, name in zip(mine.tolist(), read, leaf.source.ids(index), strict=True):
                    rows[at], ids[at] = row, name
        return replace(request, raw=(rows, ids))

    def without_sources(self) -> "MapRows":
        """Give a call that is light to send: it maps what was read already."""
        return self.like(
            [
                replace(leaf, source=Rows([], [], np.empty(0, np.int64)), filters=[], shuffle=None)
                for leaf in self.leaves
            ]
        )

    def for_worker(self) -> "MapRows":
        """Give a call for one worker thread: tokenizers are its own."""
        copied = [
            replace(leaf, maps=[replace(m, fn=for_worker(m.fn)) for m in leaf.maps]) if leaf.maps else leaf
            for leaf in self.leaves
        ]
        return self.like(copied)

    def take(self, result: Result) -> list[Any]:
        """Enter a result into the books, in the consumer's thread.

        Raises:
            BudgetError: more samples failed than a stage allows.
        """
        for (s, number), tally in result.books.items():
            leaf = self.leaves[s]
            leaf.tallies[number] = leaf.tallies.get(number, Tally()) + tally
        for s, failure in result.failed:
            self.leaves[s].account(failure)
        return result.samples


def words_of(leaves: Sequence[Leaf]) -> st.Map | None:
    """Give the stage whose words decide how the functions run: the first that says something, else the first."""
    maps = [m for leaf in leaves for m in leaf.maps]
    said = [m for m in maps if m.workers != "auto" or m.mode != "auto"]
    return next(iter(said or maps), None)


def read_ahead(
    items: Iterable[tuple[T, Request]],
    call: MapRows,
    stage: st.Map,
    *,
    workers: int | str,
    ahead: int,
    stall_after: float,
) -> Iterator[tuple[T, Result]]:
    """Give each item with its result, in order; some are worked on ahead.

    Args:
        items: what the result belongs to, and what to read.
        call: reads and maps.
        stage: its words decide mode, workers and timeout.
        workers: the loader's.
        ahead: items in flight besides those that are worked on.
        stall_after: seconds without a result before it is said who waits for what.
    """
    engine = engine_of(stage, workers, stall_after)
    if engine.mode == "inline":
        for item, request in items:
            yield item, call(request)[0]
        return
    where, cpus = str(stage)[:200], usable_cpus()

    def describe(pair: Any) -> str:
        return f"samples {pair[1].index[:3].tolist()}..."

    def in_threads() -> Runner:
        return Runner(_second(call.for_worker()), describe, True)

    def in_processes() -> RemoteCalls:
        return RemoteCalls(_second(call.without_sources()), describe, True, name=where)

    measured = engine.mode == "auto" and engine.workers is None
    away = engine.mode == "processes" or measured
    many = 1 if measured else engine.workers or cpus
    kept: dict[int, T] = {}

    def numbered() -> Iterator[tuple[int, Request]]:
        for number, (item, request) in enumerate(items):
            kept[number] = item
            yield number, call.read(request) if away else request

    run = OrderedMap(
        numbered(),
        _second(call),
        workers=many,
        ahead=ahead + max(many, cpus),
        name="map",
        describe=describe,
        timeout=stage.timeout,
        stall_after=stall_after,
        make_runner=in_processes() if engine.mode == "processes" else in_threads,
        watch=Chooser(cpus, _sendable(in_processes), told=partial(log.info, "%s: %s", where)).look
        if measured
        else None,
    )
    try:
        for number, result in enumerate(run):
            yield kept.pop(number), result
    finally:
        run.close()


def _sendable(make: Callable[[], RemoteCalls]) -> Callable[[], RemoteCalls] | None:
    """Give the maker of processes if the functions can be sent to one, else None."""
    try:
        make().arena.close()
    except WorkerError as error:
        log.info("%s", error)
        return None
    return make


class Rows:
    """Samples that were read already, in the order in which they will be asked for."""

    columns = lengths = None
    facts: Mapping[str, Any] = {}
    lineage: Mapping[str, Any] = {}
    fingerprint = ""

    def __init__(self, rows: list[Sample], ids: list[str], index: Ints) -> None:
        self.rows, self.names = rows, dict(zip(index.tolist(), ids, strict=True))

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, indices: Ints, columns: Sequence[str] | None = None) -> dict[str, Any]:
        """Give the columns of all rows."""
        del indices, columns
        return columns_of(self.rows)

    def ids(self, indices: Ints) -> list[str]:
        """Give the ids."""
        return [self.names[i] for i in indices.tolist()]

    def id_hashes(self, indices: Ints) -> NDArray[np.uint64]:
        """Hash the ids."""
        return hash_ids(self.ids(indices))


class _second:  # noqa: N801  (a function that can be sent to a process)
    """Call on the request of a (number, request) pair."""

    def __init__(self, call: MapRows) -> None:
        self.call = call

    def __call__(self, pair: tuple[int, Request]) -> list[Result]:
        return self.call(pair[1])

    def for_worker(self) -> "_second":
        return _second(self.call.for_worker())
