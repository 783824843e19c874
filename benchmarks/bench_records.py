"""Reading records beside .bin/.idx, Megatron, Arrow IPC, Parquet, array_record, Lance and MindRecord.

200,000 samples, lognormal lengths of mean about 300, int32 ids; all files in the page cache. Random cases read the same
rows in the same order; slow formats read fewer of them. The content that is compared is the sum of the ids of the first
rows read.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from harness import Case, Side, Work, main
from record_formats import READERS, prepare

Read = Callable[[int], Any]


# ---- what is done with a reader
def walk(rows: Callable[[], Iterator[Any]]) -> Work:
    """Read all rows in order; count rows and tokens."""

    def run() -> int:
        n = tokens = 0
        for row in rows():
            n += 1
            tokens += len(row)
        found.append(tokens)
        return n

    found: list[int] = []
    return Work(run, lambda: found[-1])


def single(read: Read, order: Any, most: int) -> Work:
    """Read rows one by one in random order, at most so many."""
    chosen = order[:most].tolist()

    def run() -> int:
        for i in chosen:
            read(i)
        return len(chosen)

    return Work(run, lambda: sum(int(np.sum(read(i))) for i in chosen[:50]))


def gather(read: Callable[[Any], Any], order: Any, rows: int, most: int) -> Work:
    """Read rows in random order, so many a call."""
    chosen = [order[a : a + rows] for a in range(0, min(most, len(order)) - rows + 1, rows)]

    def run() -> int:
        for some in chosen:
            read(some)
        return len(chosen) * rows

    return Work(run, lambda: int(np.sum(read(chosen[0]))))


FEWER = {"Parquet zstd": 1000, "array_record": 10_000, "Lance": 4000, "MindRecord": 4000}


def sides(kind: str, names: str) -> dict[str, Side]:
    """Make the sides of a case: "walk", "single", or the number of rows of a gather."""

    def side(name: str) -> Side:
        reader, needs = READERS[name]

        def start(folder: Path, size: Mapping[str, Any]) -> Work:
            one, some, everything = reader(folder)
            order = np.load(folder / "order.npy")
            if kind == "walk":
                return walk(everything)
            if kind == "single":
                return single(one, order, min(size["reads"], FEWER.get(name, size["reads"])))
            rows = int(kind)
            return gather(some, order, rows, max(rows, min(size["reads"], FEWER.get(name, size["reads"]))))

        return Side(start, needs)

    return {name: side(name) for name in names.split("; ")}


SIZES = {"full": {"samples": 200_000, "reads": 60_000}, "smoke": {"samples": 3000, "reads": 1100}}
ALL = "memmap copy; raw Arrow IPC; Parquet zstd; array_record; Lance; MindRecord"
CASES = [
    Case(
        "sequential",
        "rows",
        sides("walk", "ours; raw Arrow IPC; Parquet zstd; array_record; Lance; MindRecord"),
        SIZES,
        prepare,
    ),
    Case(
        "random, one by one",
        "rows",
        sides(
            "single",
            "ours; ours, 200 shards; Megatron IndexedDataset; " + ALL,
        ),
        SIZES,
        prepare,
    ),
    Case("random, 64 a call", "rows", sides("64", "ours; ours, 200 shards; " + ALL), SIZES, prepare),
    Case("random, 1024 a call", "rows", sides("1024", "ours; ours, 200 shards; " + ALL), SIZES, prepare),
    Case(
        "an epoch, 1024 a call, verified",
        "rows",
        sides("1024", "ours, verified; ours"),
        {"full": {"samples": 200_000, "reads": 200_000}, "smoke": SIZES["smoke"]},
        prepare,
        warmup=0,
    ),
]

if __name__ == "__main__":
    main(__file__, CASES)
