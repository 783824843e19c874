"""The rows of one rank as steps: what a step takes, what happens at the end of an epoch, and the place after it.

Decides the tail (SEMANTICS 3.4) for rows that come one by one. Runs in the thread that reads ahead; knows no batch
format, no agreement and no consumer.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from thalweg.core.errors import InputError
from thalweg.feed.events import (
    END,
    EPOCH,
    FAIL,
    ID,
    ITEM,
    SOURCE,
    SUB,
    TOKEN,
    VALUE,
    Event,
    EventNode,
    SourceEpoch,
    Token,
)
from thalweg.feed.streamgiven import Given, counted
from thalweg.feed.streampack import Piece

Row = list[Piece]


@dataclass(slots=True)
class StepRows:
    """One optimiser step of this rank, not yet laid out; without micro-batches only the place moved.

    Args:
        micros: rows of each micro-batch.
        fillers: rows of weight zero behind each.
        epoch: of the first row.
        keys: (sub-stream, epoch, number of the row in it) of the step's rows.
        after: where the sub-streams stand right after the step's last row.
        came: samples that begin in the step by source, where there are several.
    """

    micros: list[list[Row]]
    fillers: list[int]
    epoch: int
    keys: list[tuple[int, int, int]]
    after: "Stand"
    came: Counter[SourceEpoch] = field(default_factory=Counter[SourceEpoch])


class EmptyPassError(InputError):
    """A whole pass over the data gave no row."""

    code = "TW210"


@dataclass(frozen=True, slots=True)
class Shape:
    """What a step takes.

    Args:
        micro: rows of a micro-batch.
        accumulation: micro-batches of a step.
        tail: "drop" | "carry" | "pad" | "repeat".
        until: a step that would begin in this epoch is not taken; None: endless.
        packed: values are rows of pieces already.
        mixed: there are several sources, and what each gave is counted.
    """

    micro: int
    accumulation: int
    tail: str
    until: int | None
    packed: bool
    mixed: bool = False


@dataclass(slots=True)
class Stand:
    """Where the sub-streams of a rank stand.

    Args:
        places: token of each.
        counts: rows that each gave in its epoch.
        epochs: epoch that each is in; they differ where some have ended theirs.
        given: samples of each source that each handed over, where there are several; replaced whole.
    """

    places: dict[int, Token]
    counts: dict[int, int]
    epochs: dict[int, int]
    given: dict[int, Given]

    def copy(self) -> "Stand":
        """Copy all four."""
        return Stand(dict(self.places), dict(self.counts), dict(self.epochs), self.given)


def steps(node: EventNode, stand: Stand, shape: Shape, read: Any, *, whole: bool = True) -> Iterator[StepRows]:
    """Give steps; the last item may have no micro-batch: it is the place where the group of epochs ended.

    Args:
        node: the chain, restored to the places of `stand`.
        stand: of this rank's sub-streams; copied.
        shape: of a step.
        read: () -> items read so far, to tell an empty source from one whose items are all left out.
        whole: the places are the beginning of an epoch.

    Raises:
        EmptyPassError: an epoch was read from its beginning, had items, and gave no row.
    """
    now, first = stand.copy(), 0
    rows: list[Row] = []
    keys: list[tuple[int, int, int]] = []
    given, began, before = 0, read(), now.copy()
    size = shape.micro * shape.accumulation
    for event in node:
        kind = event[0]
        if kind == FAIL:
            raise event[VALUE]
        sub = event[SUB]
        if kind == ITEM:
            if not rows:
                first = event[EPOCH]
                if shape.until is not None and first >= shape.until:
                    break
            rows.append(event[VALUE] if shape.packed else [_single(event)])
            keys.append((sub, event[EPOCH], now.counts[sub]))
            now.places[sub], now.counts[sub] = event[TOKEN], now.counts[sub] + 1
            given += 1
            if len(rows) == size:
                yield _step(rows, keys, shape, first, now)
                rows, keys, before = [], [], now.copy()
            continue
        now.places[sub] = event[TOKEN]
        if kind != END:
            continue
        now.epochs[sub], now.counts[sub] = event[EPOCH] + 1, 0
        if min(now.epochs.values()) <= event[EPOCH]:
            continue
        if given == 0 and whole and read() > began:
            raise EmptyPassError(
                f"a whole pass over the data gave no row: {read() - began:,} items were read and all left out",
                where=f"epoch {event[EPOCH]}",
                fix="look at the filters and maps with feed.peek(), or at loader.stats()",
            )
        given, began, whole = 0, read(), True
        if rows and shape.tail in {"pad", "repeat"}:
            yield _step(rows, keys, shape, first, now)
            rows, keys = [], []
        elif rows and shape.tail == "drop":
            rows, keys = [], []
        if not rows:
            before = now.copy()
    if rows and shape.tail == "carry" and shape.until is None:
        yield _step(rows, keys, shape, first, now)
        before = now.copy()
    yield StepRows([], [], first, [], before)


def _single(event: Event) -> Piece:
    sample = event[VALUE]
    ids = sample.get("input_ids") if type(sample) is dict else None
    return Piece(sample, 0, len(ids) if ids is not None else 0, event[ID], event[SOURCE])


def _step(rows: list[Row], keys: list[tuple[int, int, int]], shape: Shape, epoch: int, now: Stand) -> StepRows:
    """Cut rows into micro-batches; what is missing is filler. Samples that begin in them are handed over now."""
    micros, fillers = [], []
    for k in range(shape.accumulation):
        part = rows[k * shape.micro : (k + 1) * shape.micro]
        micros.append(part)
        fillers.append(shape.micro - len(part))
    came = Counter[SourceEpoch]()
    for of in sorted({key[1] for key in keys}) if shape.mixed else ():
        part = [row for row, key in zip(rows, keys, strict=True) if key[1] == of]
        found = Counter([piece.source for piece in chain.from_iterable(part) if not piece.start])
        now.given = counted(now.given, of, found)
        came.update(found)
    return StepRows(micros, fillers, epoch, keys, now.copy(), came)
