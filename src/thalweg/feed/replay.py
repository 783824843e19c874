"""What a rank was given in a step, as the ledger of the run says, whatever layouts the run had.

Decides which leg answers for a step: the last one that handed it over and was not rolled back. The rows are named from
the plan of the feed. Proves nothing; `feed.proof` does.
"""

from pathlib import Path
from typing import Any

from thalweg.core.errors import InputError
from thalweg.feed.ledgerfile import Run
from thalweg.feed.proof import Stretch, counting, stretches
from thalweg.feed.rowsof import Ask, MicroRows, Origin, place_of, span_rows
from thalweg.plan.balanced import Planned
from thalweg.plan.steps import Place, Span


def why_logged(folder: str | Path, feed: Any, step: int, rank: int, seed: int | None = None) -> list[MicroRows]:
    """Name the samples that a rank was given in a step of a run.

    Args:
        folder: of the ledger.
        feed: that was read.
        step: of the run, from 0.
        rank: data-parallel rank in the leg that handed the step over.
        seed: the loader's; None: as the ledger says.

    Raises:
        InputError: the ledger has no such step, or the leg no such rank.
    """
    part = _leg_of(stretches(Path(folder)), step)
    entries = part.steps[step]
    mine = sorted((micro, entry) for (r, micro), entry in entries.items() if r == rank)
    if not mine:
        ranks = sorted({r for r, _ in entries})
        raise InputError(f"rank {rank} has no entry for step {step}", where=str(folder), fix=f"ranks: {ranks}")
    ask = Ask.of(part.head, seed, rank)
    compiled = ask.compiled(feed)
    order = ask.micros(compiled).order
    return [
        MicroRows(
            entry.runs[0].epoch if entry.runs else 0,
            step,
            micro,
            rank,
            [row for run in entry.runs for row in _rows(compiled, order, run)],
        )
        for micro, entry in mine
    ]


def _leg_of(parts: list[Stretch], step: int) -> Stretch:
    for part, steps in counting(parts):
        if step in steps:
            return part
    there = [s for _, steps in counting(parts) for s in steps]
    raise InputError(
        f"no step {step} in the ledger", fix=f"it has {min(there)} to {max(there)}" if there else "it has none"
    )


def _rows(compiled: Any, order: Planned, run: Run) -> list[list[Origin]]:
    out: list[list[Origin]] = []
    at, left = place_of(order, Place(run.epoch), run.index), run.count
    while left:
        n = min(left, order.num_rows(at.epoch, at.block) - at.row)
        out += span_rows(compiled, order, Span(at.epoch, at.block, at.row, at.row + n, at.passed, at.passed - at.row))
        at, left = Place(at.epoch, at.block + 1, 0, at.passed + n), left - n
    return out
