"""A search from low values upward that stops one step past the best: decided from rates, without a clock or a feed.

Decides when a sweep ends, which of nearly equal settings is taken (the lowest), and what memory forbids.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

V = TypeVar("V")
GAIN = 1.03  # times the best rate so far that counts as better
NEAR = 0.97  # share of the best rate at which a lower setting is taken instead


@dataclass(frozen=True, slots=True)
class Seen(Generic[V]):
    """One value, its rate, and the most memory that it took, in bytes."""

    value: V
    rate: float
    memory: int = 0


@dataclass(slots=True)
class Climb(Generic[V]):
    """A sweep: what was tried in order, and why it ended."""

    tried: list[Seen[V]] = field(default_factory=list[Seen[V]])
    ended: str = ""

    @property
    def best(self) -> Seen[V]:
        """Give the first value whose rate is near the best."""
        most = max(s.rate for s in self.tried)
        return next(s for s in self.tried if s.rate >= NEAR * most)

    @property
    def falls(self) -> bool:
        """Say whether the last value is clearly worse than the best: more workers than the machine has work for."""
        return self.tried[-1].rate < 0.9 * max(s.rate for s in self.tried)


def climb(
    values: Sequence[V],
    measure: Callable[[V], Seen[V]],
    *,
    memory: int | None = None,
    left: Callable[[], bool] = lambda: True,
    patience: int = 1,
) -> Climb[V]:
    """Try values from low upward.

    Args:
        values: rising; the first is tried always.
        measure: gives the rate and memory of a value.
        memory: bytes above which nothing higher is tried.
        left: whether there is time for another.
        patience: values without a gain that are tried before the sweep ends: one past the optimum.
    """
    out: Climb[V] = Climb()
    most, idle = 0.0, 0
    for value in values:
        if out.tried and not left():
            out.ended = "time is up"
            return out
        seen = measure(value)
        out.tried.append(seen)
        idle = 0 if seen.rate > GAIN * most else idle + 1
        most = max(most, seen.rate)
        if memory is not None and seen.memory > memory:
            fits = [s for s in out.tried if s.memory <= memory]
            out.tried = fits or out.tried[:1]
            out.ended = f"{value} takes more memory than allowed"
            return out
        if idle > patience - 1 and len(out.tried) > 1:
            out.ended = "past the best"
            return out
    out.ended = "all were tried"
    return out
