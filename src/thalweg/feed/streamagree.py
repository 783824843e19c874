"""The question that ranks of a stream ask each other before steps, and when it is asked again.

Decides how long all ask again while a rank is reading, and what is said then. What is granted is `feed.grant`. Runs in
the consumer's thread only. Knows no row.
"""

import time
from collections.abc import Callable

from thalweg.core.errors import StalledError
from thalweg.core.topology import Topology
from thalweg.feed.grant import EMPTY, ENDED, FAILED, READING, STALLED, Answer, Grant, grant, of_ranks
from thalweg.feed.node import RunOptions
from thalweg.feed.streamsteps import EmptyPassError
from thalweg.work.inline import InlineMap
from thalweg.work.ordered import OrderedMap
from thalweg.work.stacks import stacks

BACK_OFF = (0.001, 0.1)  # seconds between two questions while a rank has nothing ready


def ask_all(options: RunOptions, answer: Callable[[], Answer]) -> Grant:
    """Ask all ranks until some step is granted, or the end is.

    Args:
        options: with `agree`.
        answer: what this rank says, at once.

    Raises:
        StalledError: a rank gave nothing for `stall_after` while it was reading; all ranks raise, and name it.
    """
    assert options.agree is not None
    pause, start = BACK_OFF[0], time.monotonic()
    while True:
        mine = answer()
        # Clocks differ: one that left on its own would keep the others waiting for its next answer. So it tells them.
        late = mine.status == READING and time.monotonic() - start > options.stall_after
        answers = [Answer(int(r), str(w)) for r, w in options.agree(mine.ready, STALLED if late else mine.status)]
        found = grant(answers, max(1, options.prefetch), options.until)
        if found.over or found.steps:
            return found
        if any(a.status == STALLED for a in answers):
            waiting = [r for r, a in enumerate(answers) if a.ready == 0 and a.status in (READING, STALLED)]
            where = options.topology.dp_rank
            raise StalledError(
                f"rank {waiting[0]} gave no row for {options.stall_after:g} s while it was reading"
                + (f"\n{stacks()}" if where in waiting else ""),
                where=f"rank {where}",
                fix="look at its filters and its source; stall_after= says how long to wait",
            )
        time.sleep(pause)
        pause = min(2 * pause, BACK_OFF[1])


def answer_of(run: InlineMap | OrderedMap | None) -> Answer:
    """Say what is ready, at once. Inline there is no queue: the next step is made now."""
    if isinstance(run, OrderedMap):
        ready, outcome, error = run.poll()
        last = outcome[0][0] if isinstance(outcome, list) and outcome else None
        if last is not None and not last.micros:
            return Answer(ready - 1, ENDED)
        if error is not None:
            return Answer(ready, EMPTY if isinstance(error, EmptyPassError) else FAILED)
        return Answer(ready, READING)
    assert run is not None
    step = run.peek()
    if step is None or step.error is not None:
        return Answer(0, FAILED)
    return Answer(1, READING) if step.outputs[0][1] else Answer(0, ENDED)


def asking(gather: Callable[[str], list[str]], place: Topology) -> Callable[[int, str], list[tuple[int, str]]]:
    """Make the question to all data-parallel ranks out of a function that gathers a text from each process."""

    def ask(ready: int, status: str) -> list[tuple[int, str]]:
        answers = [text.split(" ") for text in gather(f"{place.dp_rank} {ready} {status}")]
        found = of_ranks([(int(rank), Answer(int(n), word)) for rank, n, word in answers], place.dp_size)
        return [(answer.ready, answer.status) for answer in found]

    return ask
