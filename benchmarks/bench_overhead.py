"""What is always on costs in CPU time, and what a start costs: meters, states and ledger; the first batch of a process.

The path is the planned feed of token records, batch 64, one flat row of numpy arrays. The ways are taken in turn in one
process, epoch by epoch, and their CPU seconds compared within each turn: a busy machine moves both alike.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench_loader import BATCH, prepare
from harness import Case, Side, Work, main

TURNS = 9


def silenced(loader: Any) -> None:
    """Take all meters out of a loader."""
    from thalweg.feed.meters import Meters
    from thalweg.feed.pace import Pace

    class NoMeters(Meters):
        @contextmanager
        def time(self, name: str) -> Generator[None]:
            del name
            yield

        def waiting(self, name: str, items: Iterable[Any]) -> Iterator[Any]:
            del name
            return iter(items)

        def made(self, batches: Sequence[Mapping[str, Any]]) -> None:
            pass

        def add(self, name: str, n: int) -> None:
            pass

    class NoPace(Pace):
        def asked(self) -> None:
            pass

        def gave(self, batch: Any) -> None:
            pass

    loader.node.meters, loader.pace = NoMeters(), NoPace()


def ways(folder: Path) -> dict[str, Callable[[], float]]:
    """Give each way to read an epoch: CPU seconds of one."""
    import thalweg as tw

    def epoch(*, meters: bool = True, state: int = 0, ledger: bool = False) -> float:
        feed = tw.from_records(str(folder / "records")).shuffle().batch(BATCH, pad="none")
        with tempfile.TemporaryDirectory() as kept:
            loader = tw.Loader(feed, tail="pad", return_tensors="np", workers=0, ledger=kept if ledger else None)
            if not meters:
                silenced(loader)
            iterator = iter(loader)
            next(iterator)
            start = time.process_time()
            for i, _ in enumerate(iterator):
                if state and i % state == 0:
                    loader.state_dict()
            spent = time.process_time() - start
            loader.close()
        return spent

    return {
        "bare": lambda: epoch(meters=False),
        "meters": epoch,
        "meters and a state every 10 batches": lambda: epoch(state=10),
        "meters, states and ledger": lambda: epoch(state=10, ledger=True),
    }


def own_calls(folder: Path, calls: int) -> float:
    """Do what the meters do for a batch, and nothing else: CPU seconds a batch. Moves less than a difference does."""
    import thalweg as tw
    from thalweg.feed.meters import Meters
    from thalweg.feed.pace import Pace

    loader = tw.Loader(tw.from_records(str(folder / "records")).batch(BATCH, pad="none"), return_tensors="np")
    batch, meters, pace = next(iter(loader)), Meters(), Pace()
    loader.close()
    together, levels = 64, meters.levels  # read and laid out in one call
    start = time.process_time()
    for i in range(calls):
        if i % together == 0:
            with meters.time("plan"), meters.time("read"), meters.time("collate"):
                pass
            for name in ("rows", "tokens", "read_bytes"):
                meters.add(name, 1)
            meters.made([batch] * together)
        pace.asked()
        levels["ready"] -= 1
        pace.gave(batch)
    return (time.process_time() - start) / calls


def always_on(folder: Path, size: Mapping[str, Any]) -> Work:
    def run() -> Mapping[str, float]:
        every = ways(folder)
        seen: dict[str, list[float]] = {name: [] for name in every}
        names = list(every)
        for turn in range(size["turns"]):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                seen[name].append(every[name]())
        bare = seen.pop("bare")
        figures = {"units": float(size["samples"] * size["turns"]), "bare, us a batch": _each(bare, size)}
        own = min(own_calls(folder, 200 * size["turns"]) for _ in range(5)) * 1e6
        figures["the meters' own calls, us a batch"] = own
        figures["the meters' own calls, percent of a batch"] = (
            100 * own / (min(bare) / max(size["samples"] / BATCH - 1, 1) * 1e6)
        )
        for name, spent in seen.items():
            shares = [a / b - 1 for a, b in zip(spent, bare, strict=True)]
            figures[f"{name}: percent more CPU"] = 100 * statistics.median(shares)
        return figures

    return Work(run)


def _each(spent: list[float], size: Mapping[str, Any]) -> float:
    return statistics.median(spent) / max(size["samples"] / BATCH - 1, 1) * 1e6


FIRST = """
import sys, time
import thalweg as tw
feed = tw.from_records(sys.argv[1]).shuffle().batch(64, pad="none")
loader = tw.Loader(feed, return_tensors="np")
next(iter(loader))
print(time.time() - float(sys.argv[2]), time.process_time())
"""


def first_batch(folder: Path, size: Mapping[str, Any]) -> Work:
    """Start interpreters, one after the other, each up to its first batch; everything is in the page cache.

    Byte code is kept, as it is of an installed package; the first run makes it.
    """
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")

    def run() -> Mapping[str, float]:
        wall, cpu = [], []
        for _ in range(size["starts"]):
            command = [sys.executable, "-c", FIRST, str(folder / "records"), repr(time.time())]
            done = subprocess.run(command, check=True, capture_output=True, text=True, env=env)
            a, b = map(float, done.stdout.split())
            wall.append(a)
            cpu.append(b)
        return {
            "units": float(size["starts"]),
            "median ms": statistics.median(wall) * 1e3,
            "best ms": min(wall) * 1e3,
            "median CPU ms": statistics.median(cpu) * 1e3,
        }

    return Work(run)


SIZES = {"full": {"samples": 40_000, "turns": TURNS}, "smoke": {"samples": 300, "turns": 1}}
STARTS = {"full": {"samples": 40_000, "starts": 11}, "smoke": {"samples": 300, "starts": 1}}
CASES = [
    Case(
        name="what is always on",
        unit="samples",
        prepare=prepare,
        sides={"thalweg": Side(always_on)},
        sizes=SIZES,
        warmup=0,
        rounds=3,
    ),
    Case(
        name="first batch in a fresh process",
        unit="starts",
        prepare=prepare,
        sides={"thalweg": Side(first_batch)},
        sizes=STARTS,
        warmup=1,
        rounds=1,
    ),
]

if __name__ == "__main__":
    main(__file__, CASES)
