"""The rows of one rank as steps: what a step takes, what happens at the end of an epoch, and the place after it.

Decides the tail (SEMANTICS 3.4) for rows that come one by one. Runs in the thread that reads ahead; knows no batch
format, no agreement and no consumer.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from thalweg.core.errors import InputError
from thalweg.feed.events import END, EPOCH, FAIL, ID, ITEM, SOURCE, SUB, TOKEN, VALUE, Event, EventNode, Token
from thalweg.feed.streampack import Piece

Row = list[Piece]


@dataclass(slots=True)
class StepRows:
    """One optimiser step of this rank, not yet laid out; without micro-batches only the place moved.

    Args:
        micros: rows of each micro-batch.
        fillers: rows of weight zero behind each.
        epoch: of the first row.
        places: place of every sub-stream right after the step's last row.
    """

    micros: list[list[Row]]
    fillers: list[int]
    epoch: int
    places: dict[int, Token]


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
    """

    micro: int
    accumulation: int
    tail: str
    until: int | None
    packed: bool


def steps(
    node: EventNode, places: dict[int, Token], epochs: dict[int, int], shape: Shape, read: Any, *, whole: bool = True
) -> Iterator[StepRows]:
    """Give steps; the last item may have no micro-batch: it is the place where the group of epochs ended.

    Args:
        node: the chain, restored to `places`.
        places: of this rank's sub-streams; copied.
        epochs: epoch that each sub-stream is in; they differ where some have ended theirs.
        shape: of a step.
        read: () -> items read so far, to tell an empty source from one whose items are all left out.
        whole: `places` are the beginning of an epoch.

    Raises:
        EmptyPassError: an epoch was read from its beginning, had items, and gave no row.
    """
    now, first = dict(places), 0
    rows: list[Row] = []
    given, began, epochs, before = 0, read(), dict(epochs), dict(now)
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
            now[sub] = event[TOKEN]
            given += 1
            if len(rows) == size:
                yield _step(rows, shape, first, now)
                rows, before = [], dict(now)
            continue
        now[sub] = event[TOKEN]
        if kind != END:
            continue
        epochs[sub] = event[EPOCH] + 1
        if min(epochs.values()) <= event[EPOCH]:
            continue
        if given == 0 and whole and read() > began:
            raise EmptyPassError(
                f"a whole pass over the data gave no row: {read() - began:,} items were read and all left out",
                where=f"epoch {event[EPOCH]}",
                fix="look at the filters and maps with feed.peek(), or at loader.stats()",
            )
        given, began, whole = 0, read(), True
        if rows and shape.tail in {"pad", "repeat"}:
            yield _step(rows, shape, first, now)
            rows = []
        elif rows and shape.tail == "drop":
            rows = []
        if not rows:
            before = dict(now)
    if rows and shape.tail == "carry" and shape.until is None:
        yield _step(rows, shape, first, now)
        before = dict(now)
    yield StepRows([], [], first, before)


def _single(event: Event) -> Piece:
    sample = event[VALUE]
    ids = sample.get("input_ids") if type(sample) is dict else None
    return Piece(sample, 0, len(ids) if ids is not None else 0, event[ID], event[SOURCE])


def _step(rows: list[Row], shape: Shape, epoch: int, now: dict[int, Token]) -> StepRows:
    """Cut rows into micro-batches; what is missing is filler."""
    micros, fillers = [], []
    for k in range(shape.accumulation):
        part = rows[k * shape.micro : (k + 1) * shape.micro]
        micros.append(part)
        fillers.append(shape.micro - len(part))
    return StepRows(micros, fillers, epoch, dict(now))
