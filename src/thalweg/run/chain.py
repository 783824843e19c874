"""One rank's chain: steps put together so that what crosses each border is counted.

Decides how a step is called and how its books are made: in, made, out, dropped by reason, quarantined. Composition
reads nothing; only `drain` lights the chain.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import Any

from thalweg.core.errors import ConfigError
from thalweg.core.stats import PipelineStats, StepStats
from thalweg.core.tally import Tally
from thalweg.plan.shard import deal
from thalweg.run.foreign import complete, read_live, reasons_of
from thalweg.run.manifest import step_ids
from thalweg.steps.batches import LINE, batch_prefix, columns_of, without
from thalweg.steps.step import PipelineStep


class Chain:
    """The steps of one rank, composed.

    Args:
        pipeline: this rank's own copy of the steps.
        rank, world_size: which share.

    Raises:
        ConfigError: a step is neither callable nor, as the first, a sequence of documents.
    """

    def __init__(self, pipeline: list[Any], rank: int, world_size: int) -> None:
        self.pipeline, self.rank = pipeline, rank
        self.crossed: list[_Border] = []
        data: Any = None
        columnar = batch_prefix(pipeline)
        if columnar:
            data = self._in_batches(columnar, world_size)
        for place, step in enumerate(pipeline[columnar:], columnar):
            if callable(step):
                data = step(data, rank, world_size)
            elif place == 0 and isinstance(step, Sequence) and not isinstance(step, str):
                documents: Any = step
                data = deal(documents, rank, world_size)
            else:
                raise ConfigError(
                    f"step {place} is a {type(step).__name__}",
                    fix="give a callable (data, rank, world_size), or documents as the first step",
                )
            border = _Border(data)
            self.crossed.append(border)
            data = iter(border)
        self.end: Iterator[Any] = data if data is not None else iter(())

    def _in_batches(self, columnar: int, world_size: int) -> Any:
        """Put the first steps together over record batches; what follows sees documents."""
        reader, *others = self.pipeline[:columnar]
        known = columns_of(others) + ((LINE,) if columnar < len(self.pipeline) else ())
        data: Any = self._counted(reader.read_batches(known, self.rank, world_size))
        for place, step in enumerate(others, 1):
            later = columns_of(others[place:])
            spent = tuple(name for name in known if name not in later)
            if hasattr(step, "documents_of"):
                step.documents_of = reader.documents_of
            if hasattr(step, "spent"):
                step.spent = spent
                data = step.run_batches(data, self.rank, world_size)
            else:
                data = without(step.run_batches(data, self.rank, world_size), spent)
            known = later
            data = self._counted(data)
        if columnar == len(self.pipeline):
            return data
        return (document for batch in data for document in reader.documents_of(batch))

    def _counted(self, data: Any) -> Any:
        border = _BatchBorder(data)
        self.crossed.append(border)
        return iter(border)

    def drain(self) -> None:
        """Pull everything through."""
        deque(self.end, maxlen=0)

    def progress(self) -> tuple[int, int]:
        """Count documents and bytes read so far; another thread may ask."""
        documents = bytes_read = 0
        for step in self.pipeline:
            if isinstance(step, PipelineStep):
                documents, bytes_read = documents + step.progress[0], bytes_read + step.progress[1]
        return documents or (self.crossed[0].seen() if self.crossed else 0), bytes_read

    def stats(self) -> PipelineStats:
        """Make the books of every step."""
        steps: list[StepStats] = []
        taken = 0
        for name, step, border in zip(step_ids(self.pipeline), self.pipeline, self.crossed, strict=True):
            out = border.seen()
            steps.append(_books(name, step, taken, out))
            taken = out
        return PipelineStats(steps, ranks=1)


class _Border:
    """Counts what passes. Reading the count does not disturb it."""

    def __init__(self, data: Any) -> None:
        self.data: Iterable[Any] = data if data is not None else ()
        self.counter = count()

    def __iter__(self) -> Iterator[Any]:
        step = self.counter.__next__
        for item in self.data:
            step()
            yield item

    def seen(self) -> int:
        return int(repr(self.counter)[6:-1])  # "count(7)": the only way to look without taking


class _BatchBorder(_Border):
    """Counts the rows of the batches that pass."""

    def __init__(self, data: Any) -> None:
        super().__init__(data)
        self.rows = 0

    def __iter__(self) -> Iterator[Any]:
        for batch in self.data:
            self.rows += batch.num_rows
            yield batch

    def seen(self) -> int:
        return self.rows


def _books(name: str, step: Any, taken: int, out: int) -> StepStats:
    own = getattr(step, "stats", None)
    if isinstance(own, StepStats):
        own.id = name
        own.tally.taken, own.tally.out = taken, out
        if not type(step).__module__.startswith("thalweg."):
            complete(own.tally)
        return own
    books = StepStats(getattr(step, "name", None) or getattr(step, "__name__", None) or name, name)
    if own is not None and hasattr(own, "time_stats"):
        read_live(own, books)
    kept = getattr(step, "tally", None)
    if isinstance(kept, Tally):  # a step that keeps books without being a PipelineStep
        books.tally = kept
        kept.taken, kept.out = taken, out
        return books
    books.tally = Tally(taken, 0, out)
    books.tally.dropped.update(reasons_of(books))
    complete(books.tally)
    return books
