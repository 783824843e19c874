"""Numbers of a run that can be added in any order: Welford within one rank, Chan when ranks are merged.

Decides the one schema in which every executor writes its statistics. Knows no step by name and no file.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from thalweg.core.tally import Tally

STATS_VERSION = 1


@dataclass(slots=True)
class Metric:
    """A running count, total, mean and variance of one number.

    Args:
        n: updates, zero-valued ones included.
        total: sum of all values.
        mean: arithmetic mean, 0.0 where n is 0.
        m2: sum of squared differences from the mean.
        min: smallest value, inf where n is 0.
        max: largest value, -inf where n is 0.
        unit: what one update stands for ("doc", "batch", "input_file", ...).

    Source: Welford 1962 for one value, Chan, Golub and LeVeque 1979 for two sets.
    """

    n: int = 0
    total: float = 0
    mean: float = 0.0
    m2: float = 0.0
    min: float = math.inf
    max: float = -math.inf
    unit: str = "doc"

    def update(self, x: float, unit: str | None = None) -> None:
        """Take one value."""
        if unit:
            self.unit = unit
        self.n += 1
        self.total += x
        delta = x - self.mean
        self.mean += delta / self.n
        self.m2 += delta * (x - self.mean)
        self.min = min(self.min, x)
        self.max = max(self.max, x)

    def update_many(self, values: Sequence[int]) -> None:
        """Take whole numbers at once: their sums are exact, so this equals one `update` for each."""
        if not values:
            return
        array = np.array(values, np.int64)
        n, low, high = len(array), int(array.min()), int(array.max())
        total = int(array.sum())
        array -= low  # small numbers have exact squares
        near = int(array.sum())
        squares = int(array @ array) if high - low < 2**24 else sum(v * v for v in array.tolist())
        m2 = (squares * n - near * near) / n
        self.absorb(Metric(n, total, total / n, m2, low, high, self.unit))

    def absorb(self, other: "Metric") -> None:
        """Add another metric to this one."""
        n = self.n + other.n
        if n:
            delta = other.mean - self.mean
            self.m2 += other.m2 + delta * delta * self.n * other.n / n
            self.mean += delta * other.n / n
        self.n = n
        self.total += other.total
        self.min = min(self.min, other.min)
        self.max = max(self.max, other.max)
        self.unit = other.unit if self.unit == "doc" else self.unit

    def __add__(self, other: "Metric") -> "Metric":
        """Add two metrics; the order does not matter."""
        result = Metric(self.n, self.total, self.mean, self.m2, self.min, self.max, self.unit)
        result.absorb(other)
        return result

    @property
    def variance(self) -> float:
        """Sample variance (n - 1), 0.0 below two updates."""
        return self.m2 / (self.n - 1) if self.n > 1 else 0.0

    @property
    def standard_deviation(self) -> float:
        """Square root of the sample variance."""
        return math.sqrt(max(self.variance, 0.0))

    def to_dict(self) -> dict[str, Any]:
        """Write every field always, so that one schema holds for a rank, a merge and an executor."""
        data: dict[str, Any] = {"total": self.total, "n": self.n, "mean": self.mean, "m2": self.m2}
        data |= {"variance": self.variance, "std_dev": self.standard_deviation}
        data |= {"min": self.min, "max": self.max} if self.n else {"min": None, "max": None}
        return data | {"unit": self.unit}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Metric":
        """Read what `to_dict` wrote."""
        low, high = data["min"], data["max"]
        low, high = (math.inf, -math.inf) if low is None else (low, high)
        return cls(data["n"], data["total"], data["mean"], data["m2"], low, high, data["unit"])


class Metrics(dict[str, Metric]):
    """Metrics by label; an unknown label is a new, empty metric."""

    def __missing__(self, label: str) -> Metric:
        """Begin a metric."""
        metric = self[label] = Metric()
        return metric


@dataclass(slots=True)
class StepStats:
    """Books and metrics of one step.

    Args:
        name: how the step calls itself; two steps may share it.
        id: place in the pipeline and class, such as "2:LambdaFilter"; unique.
        tally: items in, made, out, dropped by reason, quarantined.
        stats: metrics by label.
        time_stats: seconds spent, one update a call of `track_time`.
    """

    name: str
    id: str = ""
    tally: Tally = field(default_factory=Tally)
    stats: Metrics = field(default_factory=Metrics)
    time_stats: Metric = field(default_factory=Metric)

    def __getitem__(self, label: str) -> Metric:
        """Give the metric of a label, new where there is none."""
        return self.stats[label]

    def __add__(self, other: "StepStats") -> "StepStats":
        """Add the same step of another rank."""
        merged = Metrics(self.stats)
        for label, metric in other.stats.items():
            merged[label] = merged[label] + metric if label in merged else metric
        times = self.time_stats + other.time_stats
        return StepStats(self.name, self.id, self.tally + other.tally, merged, times)

    def to_dict(self) -> dict[str, Any]:
        """Write as JSON-like data."""
        return {
            "id": self.id,
            "name": self.name,
            "tally": self.tally.to_dict(),
            "stats": {label: m.to_dict() for label, m in sorted(self.stats.items())},
            "time_stats": self.time_stats.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "StepStats":
        """Read what `to_dict` wrote."""
        stats = Metrics({label: Metric.from_dict(m) for label, m in data["stats"].items()})
        times = Metric.from_dict(data["time_stats"])
        return cls(data["name"], data["id"], Tally.from_dict(data["tally"]), stats, times)


@dataclass(slots=True)
class PipelineStats:
    """Statistics of a whole pipeline over any number of ranks.

    Args:
        stats: one entry a step, in pipeline order.
        ranks: ranks that are counted.
        seconds: wall seconds of each rank's run.
    """

    stats: list[StepStats] = field(default_factory=list[StepStats])
    ranks: int = 0
    seconds: Metric = field(default_factory=Metric)

    def __add__(self, other: "PipelineStats") -> "PipelineStats":
        """Add other ranks, step by step by id; a step that one side lacks is kept."""
        mine = {s.id: s for s in self.stats}
        for step in other.stats:
            mine[step.id] = mine[step.id] + step if step.id in mine else step
        return PipelineStats(list(mine.values()), self.ranks + other.ranks, self.seconds + other.seconds)

    def __getitem__(self, place: int) -> StepStats:
        """Give the statistics of a step by its place."""
        return self.stats[place]

    def __len__(self) -> int:
        """Count the steps."""
        return len(self.stats)

    def __iter__(self) -> Iterator[StepStats]:
        """Walk the steps in pipeline order."""
        return iter(self.stats)

    def __str__(self) -> str:
        """Write the books of every step, one line each, reasons below."""
        head = ("step", "in", "made", "out", "dropped", "quarantined", "")
        rows = [_row(step) for step in self.stats]
        widths = [max(len(r[k]) for r in [head, *rows]) for k in range(len(head))]
        lines: list[str] = []
        for step, row in zip([None, *self.stats], [head, *rows], strict=True):
            counts = (cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:-1], strict=True))
            lines.append("  ".join([row[0].ljust(widths[0]), *counts, row[-1]]).rstrip())
            if step is not None:
                lines += [f"    {reason}: {n:,}" for reason, n in step.tally.dropped.most_common()]
        return "\n".join(lines)

    @property
    def unbalanced(self) -> list[StepStats]:
        """Steps whose books do not add up."""
        return [s for s in self.stats if s.tally.balance]

    def to_dict(self) -> dict[str, Any]:
        """Write as JSON-like data with a version."""
        steps = [s.to_dict() for s in self.stats]
        return {"version": STATS_VERSION, "ranks": self.ranks, "seconds": self.seconds.to_dict(), "steps": steps}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "PipelineStats":
        """Read what `to_dict` wrote."""
        steps = [StepStats.from_dict(s) for s in cast("Iterable[Mapping[str, Any]]", data["steps"])]
        return cls(steps, data["ranks"], Metric.from_dict(data["seconds"]))


def merge(parts: Iterable[PipelineStats]) -> PipelineStats:
    """Fold the statistics of ranks; no ranks give empty statistics."""
    return sum(parts, start=PipelineStats())


def _row(step: StepStats) -> tuple[str, ...]:
    t = step.tally
    counts = (t.taken, t.made, t.out, t.dropped.total(), t.quarantined)
    note = f"does not balance: {t.balance:+,}" if t.balance else ""
    return (step.id, *(f"{n:,}" if n else "-" for n in counts), note)
