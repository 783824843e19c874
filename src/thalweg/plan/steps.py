"""Steps: which rows the next optimiser step takes, where an epoch ends, and which rows are whose.

Decides tails, places and the cut per rank (SEMANTICS 3.1, 3.4, 4.1), from the number of rows in each block alone.
Every rank computes the same, so that every rank takes the same number of steps. Knows no sample.
"""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from thalweg.core.errors import ConfigError
from thalweg.plan.ramp import Ramp

TAILS = ("drop", "carry", "pad", "repeat")
REPEATED = "repeated"  # rows that come again to fill a step; never counted
EMPTY_EPOCHS = 1_000  # epochs without a row in a row, before a run that can never end is given up


class Counts(Protocol):
    """Numbers of rows, as `plan.epoch.Order` gives them."""

    def num_blocks(self, epoch: int) -> int:
        """Count the blocks of an epoch."""
        ...

    def num_rows(self, epoch: int, number: int) -> int:
        """Count the rows of a block."""
        ...

    def rows(self, epoch: int) -> int:
        """Count the rows of an epoch."""
        ...


class Place(NamedTuple):
    """Where a run stands: before row `row` of block `block` of epoch `epoch`.

    Args:
        epoch: from 0.
        block: in the epoch.
        row: in the block.
        passed: rows of the epoch before it.
        base: rows of earlier epochs, counted only where the tail is carry (else 0).
    """

    epoch: int = 0
    block: int = 0
    row: int = 0
    passed: int = 0
    base: int = 0


class Span(NamedTuple):
    """Consecutive rows of a block. `before`: rows before the block, as runs of balance count them.

    Args:
        epoch: of the rows.
        block: of the rows.
        start: first row in the block.
        stop: end.
        first: number of its first row in the epoch.
        before: rows before the block, from the epoch's start (under carry: from the run's).
        mark: None, or REPEATED.
    """

    epoch: int
    block: int
    start: int
    stop: int
    first: int
    before: int
    mark: str | None = None

    def part(self, a: int, b: int) -> "Span":
        """Give rows a to b of it, counted from its first."""
        return Span(
            self.epoch, self.block, self.start + a, self.start + b, self.first + a, self.before, self.mark
        )  # fmt: skip


class Step(NamedTuple):
    """The rows of one optimiser step, all ranks.

    Args:
        epoch: of its first row.
        spans: its rows in order.
        filler: rows of weight zero at its end.
        after: the place when it has been handed over.
    """

    epoch: int
    spans: tuple[Span, ...]
    filler: int
    after: Place

    @property
    def size(self) -> int:
        """Count its rows, filler included."""
        if len(self.spans) == 1:
            return self.spans[0].stop - self.spans[0].start + self.filler
        return sum(s.stop - s.start for s in self.spans) + self.filler


class Walk:
    """Steps one after another.

    Args:
        counts: rows of each block.
        size: rows of a step: world x micro-batch x accumulation; a ramp where that changes over the run.
        tail: "drop" | "carry" | "pad" | "repeat".
        epochs: of one `for`; None is endless.
    """

    def __init__(self, counts: Counts, size: int | Ramp, tail: str, epochs: int | None) -> None:
        self.counts, self.tail, self.epochs = counts, tail, epochs
        self.ramp = size if isinstance(size, Ramp) else Ramp.of(size)
        self._block = (-1, -1, 0)  # the block looked at last, and its rows
        self._largest, self._same = self.ramp.largest, None if self.ramp.last else self.ramp.first
        self._epochs: dict[int, int] = {}  # rows of the run before each epoch, as far as the ramp asks

    def steps(self, place: Place) -> Iterator[Step]:
        """Give the steps of one `for` from a place: to the end of its group of epochs.

        Raises:
            ConfigError: endless epochs in which no step begins.
        """
        end = None if self.epochs is None else (place.epoch // self.epochs + 1) * self.epochs
        idle = 0
        while end is None or place.epoch < end:
            if not self.begins(place):
                place, idle = self.next_epoch(place), idle + 1
                if end is None and idle > 2:
                    raise self.never(place.epoch)
                continue
            idle = 0
            while (step := self._inside(place)) is not None:
                place = step.after
                yield step
            if self.begins(place):
                step = self.step(place)
                place = step.after
                yield step

    def _inside(self, place: Place) -> Step | None:
        """Give the step that begins at a place where it and the next one lie in one block: nothing else to look at."""
        epoch, block, row, passed, base = place
        if self._block[1] != block or self._block[0] != epoch:
            if block >= self.counts.num_blocks(epoch):
                return None
            self._block = (epoch, block, self.counts.num_rows(epoch, block))
        size = self._same or self.size(place)
        if row + size + self._largest > self._block[2]:
            return None
        span = Span(epoch, block, row, row + size, passed, base + passed - row)
        return Step(epoch, (span,), 0, Place(epoch, block, row + size, passed + size, base))

    def begins(self, place: Place) -> bool:
        """Say whether a step begins at a place in what is left of its epoch."""
        return self.left(place, self.size(place) if self.tail == "drop" else 1)

    def size(self, place: Place) -> int:
        """Give the rows of a step that begins at a place."""
        return self.ramp.size(self.before(place)) if self.ramp.last else self.ramp.first

    def before(self, place: Place) -> int:
        """Count the rows of the run before a place, as the ramp counts them: behind its last breakpoint any number.

        Every row of an epoch counts when the epoch is over, also one that a tail left out: the number depends on the
        order alone, not on the layouts that it was walked at.
        """
        epoch = place.epoch
        if epoch not in self._epochs:
            self._epochs[epoch] = place.base or self._counted(epoch)
        return self._epochs[epoch] + place.passed

    def _counted(self, epoch: int) -> int:
        """Count the rows of all epochs before one, no further than the ramp goes."""
        rows = 0
        for e in range(epoch):
            for block in range(self.counts.num_blocks(e)):
                if rows >= self.ramp.last:
                    return rows
                rows += self.counts.num_rows(e, block)
        return rows

    def left(self, place: Place, rows: int) -> bool:
        """Say whether at least so many rows are left in the epoch; looks at no more blocks than it must."""
        found = -place.row
        for block in range(place.block, self.counts.num_blocks(place.epoch)):
            found += self.counts.num_rows(place.epoch, block)
            if found >= rows:
                return True
        return False

    def step(self, place: Place) -> Step:
        """Give the step that begins at a place."""
        spans: list[Span] = []
        place, need = self._take(place, self.size(place), spans)
        epoch = spans[0].epoch
        filler, empty = 0, 0
        while need:
            if self.tail == "carry":
                place = self.next_epoch(place)
                place, left = self._take(place, need, spans)
                empty = empty + 1 if left == need else 0
                if empty > EMPTY_EPOCHS:
                    raise self.never(place.epoch)
                need = left
            elif self.tail == "pad":
                filler, need = need, 0
            else:
                need = self._repeat(epoch, need, spans)
        if (self.tail != "carry" and not self.begins(place)) or not self.left(place, 1):
            place = self.next_epoch(place)
        return Step(epoch, tuple(spans), filler, place)

    def _take(self, place: Place, need: int, spans: list[Span]) -> tuple[Place, int]:
        """Take up to `need` rows of the place's epoch. Gives the place behind them and what is still needed."""
        blocks = self.counts.num_blocks(place.epoch)
        while need and place.block < blocks:
            rows = self.counts.num_rows(place.epoch, place.block)
            take = min(need, rows - place.row)
            if take:
                before = place.base + place.passed - place.row
                spans.append(Span(place.epoch, place.block, place.row, place.row + take, place.passed, before))
                need -= take
            row, passed = place.row + take, place.passed + take
            if row == rows:
                place = Place(place.epoch, place.block + 1, 0, passed, place.base)
            else:
                place = Place(place.epoch, place.block, row, passed, place.base)
        return place, need

    def _repeat(self, epoch: int, need: int, spans: list[Span]) -> int:
        """Fill with the epoch's rows from its first, as often as it takes."""
        again: list[Span] = []
        while need:
            _, need = self._take(Place(epoch), need, again)
        spans.extend(s._replace(mark=REPEATED) for s in again)
        return 0

    def next_epoch(self, place: Place) -> Place:
        """Give the start of the next epoch. `base` goes on counting under carry, rows passed over included."""
        if self.tail != "carry":
            return Place(place.epoch + 1)
        rows = place.passed - place.row
        for block in range(place.block, self.counts.num_blocks(place.epoch)):
            rows += self.counts.num_rows(place.epoch, block)
        return Place(place.epoch + 1, base=place.base + rows)

    def count(self, place: Place) -> int:
        """Count the steps of one `for` from a place. Endless epochs have no count."""
        assert self.epochs is not None
        end = (place.epoch // self.epochs + 1) * self.epochs
        if self.tail == "carry":
            rows = sum(self.counts.rows(e) for e in range(place.epoch, end)) - place.passed
            return self.ramp.steps(self.before(place) if self.ramp.last else 0, max(rows, 0))
        return sum(self.count_in(e, place.passed if e == place.epoch else 0) for e in range(place.epoch, end))

    def count_in(self, epoch: int, index: int = 0) -> int:
        """Count the steps that begin in an epoch at or behind its row `index`."""
        left = max(self.counts.rows(epoch) - index, 0)
        before = self.before(Place(epoch, passed=index)) if self.ramp.last else 0
        return self.ramp.steps(before, left, whole=self.tail == "drop")

    def never(self, epoch: int) -> ConfigError:
        """Say that no step will ever begin."""
        rows, size = self.counts.rows(max(epoch - 1, 0)), self.size(Place(epoch))
        works = "carry, pad or repeat" if rows else "none: there is no row"
        return ConfigError(
            f"an epoch has {rows:,} rows and a step takes {size:,}: with tail={self.tail!r} no step begins",
            where="Loader(epochs=None)",
            fix=f"tails that work: {works}; or a smaller global batch",
        )


def shares(step: Step, world: int, micro: int, accumulation: int) -> Iterator[tuple[int, int, tuple[Span, ...], int]]:
    """Cut a step into contiguous ranges: (micro-batch, rank, spans, filler rows), micro-batch by micro-batch."""
    for m in range(accumulation):
        for rank in range(world):
            first = (m * world + rank) * micro
            spans, filler = cut(step, first, first + micro)
            yield m, rank, spans, filler


def cut(step: Step, first: int, stop: int) -> tuple[tuple[Span, ...], int]:
    """Give rows first to stop of a step, as spans and a number of filler rows."""
    if len(step.spans) == 1:  # as nearly all are
        span = step.spans[0]
        n = span.stop - span.start
        if stop <= n:
            return (step.spans if stop - first == n else (span.part(first, stop),)), 0
    out: list[Span] = []
    at = 0
    for span in step.spans:
        n = span.stop - span.start
        a, b = max(first - at, 0), min(stop - at, n)
        if a < b:
            out.append(span.part(a, b))
        at += n
        if at >= stop:
            break
    found = sum(s.stop - s.start for s in out)
    return tuple(out), stop - first - found
