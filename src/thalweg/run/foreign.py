"""Statistics of steps of the datatrove package, as books and metrics of ours.

Decides how their two forms, objects in a running step and files of a finished rank, are read. Knows no executor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from thalweg.core.stats import Metric, PipelineStats, StepStats
from thalweg.core.tally import Tally


def read_live(theirs: Any, books: StepStats) -> None:
    """Take over the statistics of a step that has just run."""
    books.name = str(theirs.name)
    for label, m in theirs.stats.items():
        books.stats[label] = _live(m)
    books.time_stats = _live(theirs.time_stats)


def _live(m: Any) -> Metric:
    m2 = getattr(m, "_running_variance", 0.0)
    return Metric(int(m.n), m.total, float(m.mean), float(m2), m.min, m.max, str(m.unit or "doc"))


def read_file(steps: Sequence[Any], ids: Sequence[str]) -> PipelineStats:
    """Read the statistics file of a rank that their executor has run.

    Args:
        steps: the file's list: name, time_stats and stats of each step that keeps any.
        ids: our names of the pipeline's steps; those of their steps follow in this order.
    """
    found: list[StepStats] = []
    taken = 0
    for number, step in enumerate(steps):
        books = StepStats(str(step["name"]), ids[number] if len(ids) == len(steps) else f"{number}:{step['name']}")
        books.stats.update({label: _stored(value) for label, value in step["stats"].items()})
        books.time_stats = _stored(step.get("time_stats", 0))
        out = int(books.stats["forwarded" if "forwarded" in books.stats else _count_of(books)].total)
        books.tally = Tally(taken, 0, out)
        books.tally.dropped.update(reasons_of(books))
        complete(books.tally)
        taken = out
        found.append(books)
    return PipelineStats(found, ranks=1)


def _count_of(books: StepStats) -> str:
    return next((label for label in ("documents", "total") if label in books.stats), "total")


def _stored(value: Any) -> Metric:
    if not isinstance(value, Mapping):
        return Metric(int(value), value, 1.0 if value else 0.0, 0.0, 1, 1)
    m: Mapping[str, Any] = value
    total, mean = m.get("total", 0), m.get("mean", 1)
    n = int(m.get("n", total if mean == 1 else 1))
    m2 = m.get("variance", 0.0) * max(n - 1, 0)
    return Metric(n, total, float(mean), float(m2), m.get("min", mean), m.get("max", mean), str(m.get("unit", "doc")))


def reasons_of(books: StepStats) -> dict[str, int]:
    """Read why a step dropped documents from the labels that it counts them under."""
    reasons = {k.removeprefix("dropped_"): int(m.total) for k, m in books.stats.items() if k.startswith("dropped_")}
    if "dropped" in books.stats and (bare := int(books.stats["dropped"].total) - sum(reasons.values())) > 0:
        reasons["filtered"] = bare  # it dropped them on purpose, without a reason
    return reasons


def complete(tally: Tally) -> None:
    """Account for what a step written outside did not explain: not yielding drops, yielding more makes."""
    if tally.balance > 0:
        tally.drop("not_yielded", tally.balance)
    elif tally.balance < 0:
        tally.made -= tally.balance
