"""What a loop waits for: how true a profile's shares are, whether its advice helps, and what tuning finds.

Loops are synthetic: reads, functions and training that sleep or compute for known times.
"""

import itertools
import struct
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness import Case, Side, Work, main


class Told:
    """Where a sleeper writes how long it really slept: on a crowded machine that is longer than it asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def sleep(self, seconds: float) -> None:
        start = time.perf_counter()
        time.sleep(seconds)
        with self.path.open("ab", buffering=0) as file:
            file.write(struct.pack("<d", time.perf_counter() - start))

    def mean(self) -> float:
        data = self.path.read_bytes()
        values = [v for (v,) in struct.iter_unpack("<d", data[: len(data) // 8 * 8])]
        return sum(values) / len(values)


class TellingSource:
    """A source whose reads sleep and tell."""

    lengths = None

    def __init__(self, told: Told, seconds: float) -> None:
        self.told, self.seconds = told, seconds

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.told.sleep(self.seconds)
        return {"input_ids": [1, 2, 3, 4]}


class Telling:
    """A function that sleeps and tells."""

    def __init__(self, told: Told, seconds: float) -> None:
        self.told, self.seconds = told, seconds

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        self.told.sleep(self.seconds)
        return sample


class Slow:
    """A source whose every read takes its time."""

    lengths = None

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> dict[str, Any]:
        if self.seconds:
            time.sleep(self.seconds)
        return {"input_ids": [1, 2, 3, 4]}


class Sleeps:
    """A function that waits."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        time.sleep(self.seconds)
        return sample


class Computes:
    """A function that holds the interpreter."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        total = 0
        for i in range(self.rounds):
            total += i * i
        return sample


class Jumps(Sleeps):
    """A function that now and then takes far longer."""

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        self.calls = getattr(self, "calls", 0) + 1
        time.sleep(self.seconds * (12 if self.calls % 12 == 0 else 0.1))
        return sample


def feed_of(read: float, fn: Any, mode: str, workers: int, maps: int = 1) -> Any:
    import thalweg as tw

    feed = tw.from_dataset(Slow(read), fingerprint="slow")
    for _ in range(maps):
        feed = feed.map(fn, mode=mode, workers=workers)
    return feed.batch(4)


def shares(_folder: Path, size: Mapping[str, Any]) -> Work:
    """Profile loops of known times, and say how far the worst share is from the truth, in points."""
    import thalweg as tw
    from thalweg.check.profile import profile

    def run() -> dict[str, Any]:
        worst, n = 0.0, 0
        modes = [("inline", 0), ("threads", 2), ("processes", 2)]
        for (mode, workers), (read, work), train in itertools.product(modes, [(2, 4), (4, 8)], [5, 40]):
            if n >= size["loops"]:
                break
            with tempfile.TemporaryDirectory() as folder:
                told = {name: Told(Path(folder, name)) for name in ("read", "map", "training")}
                feed = tw.from_dataset(TellingSource(told["read"], read / 1000), fingerprint="slow")
                feed = feed.map(Telling(told["map"], work / 1000), mode=mode, workers=workers).batch(4)

                def step(_: Any, told: Any = told, train: float = train) -> None:
                    told["training"].sleep(train / 1000)

                found = profile(feed, size["steps"], train=step, ablate=False)
                spent = {name: one.mean() * (1 if name == "training" else 4) for name, one in told.items()}
            truth = {name: seconds / sum(spent.values()) for name, seconds in spent.items()}
            seen = {"read": found.shares["read"], "training": found.shares["training"],
                    "map": sum(v for k, v in found.shares.items() if k.startswith("map("))}  # fmt: skip
            worst = max(worst, *(abs(100 * (seen[k] - truth[k])) for k in truth))
            n += 1
        return {"units": n, "worst share off by, points": round(worst, 2)}

    return Work(run)


def followed(feed: Any, told: dict[str, Any], advice: str) -> tuple[Any, dict[str, Any]]:
    """Do what a line of advice says."""
    from thalweg.feed import stages as st
    from thalweg.feed.feed import Feed

    def maps(**words: Any) -> Any:
        return Feed(tuple(replace(s, **words) if isinstance(s, st.Map) else s for s in feed.stages))

    kind = advice.partition(":")[0]
    if kind in {"cache", "write records"}:
        few = Feed((feed.stages[0], st.Take(400), *feed.stages[1:-1], st.Cache(max_bytes="64MB"), feed.stages[-1]))
        return few, told
    if kind == "more workers":
        workers = int(advice.split("workers=")[1].split(",", maxsplit=1)[0])
        mode = advice.split('mode="')[1].split('"', maxsplit=1)[0]
        return maps(workers=workers, mode=mode), told
    if kind == "processes instead of threads":
        return maps(mode="processes"), told
    return feed, {**told, "prefetch": 8}


def advice_helps(_folder: Path, size: Mapping[str, Any]) -> Work:
    """Plant ten bottlenecks, do what the first advice says, and count where the rate rises."""
    from thalweg.check.profile import profile

    planted = [
        (0.004, Sleeps(0.0), "inline", 0, 0.005), (0.006, Sleeps(0.001), "threads", 2, 0.005),
        (0.0, Sleeps(0.004), "inline", 0, 0.005), (0.0, Sleeps(0.008), "threads", 1, 0.005),
        (0.0, Sleeps(0.012), "threads", 2, 0.005), (0.0, Computes(40_000), "inline", 0, 0.002),
        (0.0, Computes(40_000), "threads", 2, 0.002), (0.0005, Sleeps(0.006), "threads", 2, 0.010),
        (0.0, Jumps(0.004), "threads", 1, 0.008), (0.001, Computes(20_000), "inline", 0, 0.005),
    ]  # fmt: skip

    def run() -> dict[str, Any]:
        better, ratios = 0, []
        for read, fn, mode, workers, train in planted[: size["loops"]]:
            feed = feed_of(read, fn, mode, workers)
            before = profile(feed, size["steps"], train=train, ablate=False)
            changed, told = followed(feed, {}, before.advice[0])
            after = profile(changed, size["steps"], train=train, ablate=False, **told)
            ratios.append(after.rate / before.rate)
            better += ratios[-1] > 1.05
        return {"units": len(ratios), "improved": better, "least": round(min(ratios), 2)}

    return Work(run)


def tuned(_folder: Path, size: Mapping[str, Any]) -> Work:
    """Tune a loop, then measure the whole grid, and say which share of its best was reached."""
    from thalweg.check.profile import profile
    from thalweg.check.tune import Setting, applied, tune

    feed = feed_of(0.0002, Sleeps(0.003), "inline", 0)

    def rate(setting: Any) -> float:
        return profile(applied(feed, setting), size["steps"], ablate=False, prefetch=setting.prefetch).rate

    def run() -> dict[str, Any]:
        found = tune(feed, seconds=size["seconds"], steps=size["steps"])
        grid = [Setting()] + [Setting(m, n) for m in ("threads", "processes") for n in size["workers"]]
        best = max(rate(s) for s in grid)
        return {"units": len(found.tried), "seconds": round(found.seconds, 1),
                "share of the best, %": round(100 * rate(found.best) / best, 1)}  # fmt: skip

    return Work(run)


def one_of_64(_folder: Path, size: Mapping[str, Any]) -> Work:
    """Run rank 17 of 64 over packed tokens beside a step of 20 ms, and say how much of it is waiting."""
    import numpy as np

    import thalweg as tw

    rng = np.random.default_rng(0)
    rows = [{"input_ids": np.arange(n, dtype=np.int32)} for n in rng.integers(20, 900, size["rows"]).tolist()]
    feed = tw.from_dataset(rows).shuffle(seed=1).pack(4096, overlong="drop").batch(1)
    loader = tw.Loader(feed, topology=tw.Topology(17, 64), epochs=None, max_steps=size["steps"], return_tensors="np")

    def run() -> dict[str, Any]:
        before = loader.pace.read()
        steps = 0
        for _ in loader:
            time.sleep(0.02)
            steps += 1
        after = loader.pace.read()
        spent = {k: after[k] - before[k] for k in ("waited_s", "finished_s", "consumed_s")}
        return {
            "units": max(steps, 1),
            "waiting, %": round(100 * spent["waited_s"] / max(sum(spent.values()), 1e-9), 2),
        }

    return Work(run)


def clock(_folder: Path, size: Mapping[str, Any]) -> Work:
    """What the clock of a loop costs a batch."""
    from thalweg.core.batch import Batch, BatchInfo
    from thalweg.feed.pace import Pace

    pace, batch = Pace(), Batch(info=BatchInfo(num_tokens=4096))

    def run() -> int:
        for _ in range(size["batches"]):
            pace.asked()
            pace.gave(batch)
        return int(size["batches"])

    return Work(run)


def maps_of(many: bool) -> Any:
    """Four small functions on a stream, as typed or as one."""

    def make(_folder: Path, size: Mapping[str, Any]) -> Work:
        import thalweg as tw
        from thalweg.feed import streamchain
        from thalweg.feed.fuse import fused

        def same(sample: dict[str, Any]) -> dict[str, Any]:
            return {"input_ids": sample["input_ids"]}

        def run() -> int:
            streamchain.fused = fused if not many else list  # type: ignore[assignment]
            feed = tw.from_stream(lambda: iter([{"input_ids": [1, 2, 3, 4]}] * size["samples"]))
            for _ in range(4):
                feed = feed.map(same, mode="threads", workers=2)
            loader = tw.Loader(feed.batch(16), topology=tw.Topology(), return_tensors="np")
            n = sum(len(b["input_ids"]) for b in loader)
            loader.close()
            streamchain.fused = fused  # type: ignore[assignment]
            return n

        return Work(run)

    return make


CASES = [
    Case("shares of loops with known times", "loops", {"thalweg": Side(shares)},
         {"full": {"loops": 12, "steps": 60}, "smoke": {"loops": 1, "steps": 4}}, warmup=0, rounds=1),
    Case("planted bottlenecks, advice followed", "loops", {"thalweg": Side(advice_helps)},
         {"full": {"loops": 10, "steps": 60}, "smoke": {"loops": 1, "steps": 4}}, warmup=0, rounds=1),
    Case("tuning beside the whole grid", "trials", {"thalweg": Side(tuned)},
         {"full": {"seconds": 60, "steps": 100, "workers": (1, 2, 4, 8, 16)},
          "smoke": {"seconds": 1, "steps": 2, "workers": (1,)}}, warmup=0, rounds=1),
    Case("rank 17 of 64, steps of 20 ms", "steps", {"thalweg": Side(one_of_64)},
         {"full": {"rows": 200_000, "steps": 150}, "smoke": {"rows": 2_000, "steps": 2}}, warmup=0, rounds=1),
    Case("the clock of a loop", "batches", {"thalweg": Side(clock)},
         {"full": {"batches": 200_000}, "smoke": {"batches": 100}}),
    Case("four small functions on a stream", "samples",
         {"as one call": Side(maps_of(False)), "as typed": Side(maps_of(True))},
         {"full": {"samples": 20_000}, "smoke": {"samples": 64}}),
]  # fmt: skip


if __name__ == "__main__":
    main(__file__, CASES)
