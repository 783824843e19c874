"""Counters that are always on: seconds by stage, rows, tokens, bytes.

Decides nothing. Costs two clock readings a stage and call.
"""

from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any, TypeVar

T = TypeVar("T")


class Meters:
    """Seconds and counts by name."""

    __slots__ = ("counts", "seconds", "started")

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.counts: defaultdict[str, int] = defaultdict(int)
        self.started = perf_counter()

    @contextmanager
    def time(self, name: str) -> Generator[None]:
        """Add the seconds of a block."""
        start = perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += perf_counter() - start

    def waiting(self, name: str, items: Iterable[T]) -> Iterator[T]:
        """Give items, adding the seconds that each was waited for."""
        iterator = iter(items)
        try:
            while True:
                start = perf_counter()
                try:
                    item = next(iterator)
                except StopIteration:
                    return
                finally:
                    self.seconds[name] += perf_counter() - start
                yield item
        finally:
            if isinstance(iterator, Generator):
                iterator.close()

    def add(self, name: str, n: int) -> None:
        """Add to a count."""
        self.counts[name] += n

    def read(self) -> dict[str, Any]:
        """Give {"seconds": {stage: s}, "counts": {name: n}, "wall": s}."""
        return {
            "seconds": {k: round(v, 6) for k, v in self.seconds.items()},
            "counts": dict(self.counts),
            "wall": round(perf_counter() - self.started, 6),
        }
