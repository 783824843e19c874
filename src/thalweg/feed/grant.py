"""Equal steps on ranks whose streams end at different places: how many steps all may take next.

Decides from the answers of all ranks alone. A step is granted only when every rank has it ready in its queue, so no
rank enters a step that another cannot take. Knows no clock and no network.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

READING: Final = "reading"
ENDED: Final = "ended"
FAILED: Final = "failed"
EMPTY: Final = "empty"  # a whole pass of the stream gave no row
STALLED: Final = "stalled"  # reading, and all have asked for longer than this rank waits


@dataclass(frozen=True, slots=True)
class Answer:
    """What one rank says at once, never after waiting: steps ready, and whether more may come."""

    ready: int
    status: str


@dataclass(frozen=True, slots=True)
class Grant:
    """What all ranks do next.

    Args:
        steps: steps that all take before they ask again.
        filler: ranks that take them with batches of weight zero.
        over: the end: nobody takes a step any more.
        failed: a rank that failed before its next step; all raise.
        empty: a rank whose stream gave no row in a whole pass; all raise.
    """

    steps: int
    filler: tuple[int, ...] = ()
    over: bool = False
    failed: int | None = None
    empty: int | None = None


def of_ranks(answers: Sequence[tuple[int, Answer]], world: int) -> list[Answer]:
    """Put the answers of processes that read the same rows together: tensor- and context-parallel peers of a rank.

    Peers have handed over the same steps of the same order. So one that has ended says it for those that have not
    seen it yet, and what one has not ready none may take.

    Args:
        answers: (data-parallel rank, answer) of every process.
        world: data-parallel ranks.
    """
    by_rank: list[list[Answer]] = [[] for _ in range(world)]
    for rank, answer in answers:
        by_rank[rank].append(answer)
    found: list[Answer] = []
    for peers in by_rank:
        ready = min(a.ready for a in peers)
        words = [a.status for a in peers if a.ready == ready]
        found.append(Answer(ready, next((w for w in (FAILED, EMPTY, ENDED, STALLED) if w in words), READING)))
    return found


def grant(answers: Sequence[Answer], most: int, until: str) -> Grant:
    """Grant the least of what is ready, at most `most` steps.

    With nothing granted and a rank still reading, all ask again. Neither the order of rows nor the end depends on
    how often that happens, on `most`, or on how far a rank reads ahead.

    Args:
        answers: of all ranks, in their order.
        most: a ceiling that is never waited for.
        until: "first": ends after exactly the smallest total of steps. "all": goes on until every rank has ended.
    """
    for rank, answer in enumerate(answers):
        if answer.ready == 0 and answer.status == FAILED:
            return Grant(0, over=True, failed=rank)
        if answer.ready == 0 and answer.status == EMPTY:
            return Grant(0, over=True, empty=rank)
    done = tuple(rank for rank, a in enumerate(answers) if a.ready == 0 and a.status == ENDED)
    if done and (until == "first" or len(done) == len(answers)):
        return Grant(0, over=True)
    ready = [a.ready for rank, a in enumerate(answers) if rank not in done]
    return Grant(min(most, *ready), filler=done)
