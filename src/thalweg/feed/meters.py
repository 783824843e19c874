"""Counters that are always on: seconds by stage, rows, tokens, bytes.

Decides the names. Costs two clock readings a stage and call.

seconds: `plan` (which rows come next), `read` (samples from their source), `map` (in functions, over all workers),
`wait` (the consumer's, for what is read or mapped ahead), `collate` (rows laid out). What a batch costs behind that
(tensors, device) and between batches is kept by `feed.pace`.
counts: `rows`, `tokens`, `read_bytes` (tokens as they are stored), `batches`, `bytes` (arrays made).
levels: `ready` (batches made and not handed over), `in_flight` (groups that are read or mapped).
"""

from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")


class Meters:
    """Seconds and counts by name."""

    __slots__ = ("counts", "levels", "seconds", "started")

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.counts: defaultdict[str, int] = defaultdict(int)
        self.levels: dict[str, int] = {"ready": 0, "in_flight": 0}
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

    def made(self, batches: Sequence[Mapping[str, Any]]) -> None:
        """Count batches and the bytes of their arrays."""
        array = np.ndarray  # looked up once, not for each value
        self.counts["bytes"] += sum([v.nbytes for values in batches for v in values.values() if type(v) is array])
        self.counts["batches"] += len(batches)

    def add(self, name: str, n: int) -> None:
        """Add to a count."""
        self.counts[name] += n

    def read(self) -> dict[str, Any]:
        """Give {"seconds": {stage: s}, "counts": {name: n}, "levels": {name: n}, "wall": s}."""
        return {
            "seconds": {k: round(v, 6) for k, v in self.seconds.items()},
            "counts": dict(self.counts),
            "levels": dict(self.levels),
            "wall": round(perf_counter() - self.started, 6),
        }
