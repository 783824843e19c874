"""The calls that the stream benchmarks map, and the loop that takes what comes. Decides nothing about who maps them."""

import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from harness import Work


def identity(i: int) -> int:
    return i


BLOB = bytes(6000)


def release(i: int) -> int:
    """About 2 microseconds without the interpreter's lock."""
    return zlib.crc32(BLOB, i)


def wait(i: int) -> int:
    time.sleep(0.005)
    return i


def python_bound(i: int) -> int:
    total = i
    for k in range(600):
        total += k ^ i
    return total


def small_dict(i: int) -> dict[str, Any]:
    # Another text each time: one and the same would travel once in a pickle of many.
    return {"id": i, "text": f"{i:09d}" * 100, "label": i % 7}


_MADE: list[Any] = []


def megabyte(i: int) -> Any:
    """One of 64 arrays of 1 MB that are there already: what is measured is the way to the consumer."""
    import numpy as np

    if not _MADE:
        _MADE.extend(np.ones(1 << 17, np.int64) for _ in range(64))
    array = _MADE[i % 64]
    array[0] = i
    return array


class Loop:
    """Runs an iterable to its end and adds up what comes."""

    def __init__(self, make: Callable[[], Iterable[Any]], of: Callable[[Any], int], floor: float = 0.0) -> None:
        self.make, self.of, self.floor, self.sum = make, of, floor, 0

    def __call__(self) -> Mapping[str, float]:
        n, total, of = 0, 0, self.of
        start = time.perf_counter()
        for out in self.make():
            n += 1
            total += of(out)
        wall = time.perf_counter() - start
        self.sum = total
        figures = {"units": float(n), "us an item": wall / n * 1e6}
        if self.floor:
            figures["share of the ideal"] = self.floor * n / wall
        return figures


def work(make: Callable[[], Iterable[Any]], of: Callable[[Any], int] = int, floor: float = 0.0) -> Work:
    loop = Loop(make, of, floor)
    return Work(loop, content=lambda: loop.sum)


def running(outputs: Iterable[Any], of: Callable[[Any], int]) -> Work:
    """Work on outputs of processes that are already there: starting them is set-up, on all sides."""
    iterator = iter(outputs)
    for _ in range(2):
        next(iterator)
    return Work(Loop(lambda: iterator, of))


def length(x: Any) -> int:
    return len(x)


def first(x: Any) -> int:
    return int(x[0])


CALLS: dict[str, Callable[[int], Any]] = {
    f.__name__: f for f in (identity, release, wait, python_bound, small_dict, megabyte)
}
