"""The packed and mixed feed at 10^9 samples: the first batch, a resume anywhere, and what packing and mixing cost.

Lengths are real (lognormal, mean 299, at most 4,096) and lie in a mapped file; tokens are made when they are read, so
that the plan is what is measured. "cached" has the block's plan kept on the node, "cold" has only the table's sums.
Throughput is taken on records too, whose tokens have to be read: of one rank of 8 that is alone on its node and plans
the rows of all, of one that finds the plans of another, and of the 8 ranks of one node, the first of which plans.
"""

import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from harness import Case, Side, Work, main

CAPACITY, SOURCES, WORLD = 4_096, 20, 8
LATER = 10  # an epoch that a walk from the start does not come to


def prepare(folder: Path, size: Mapping[str, Any]) -> None:
    """Write the lengths of all samples, 2 bytes each."""
    part = min(size["samples"], 1_000_000)
    base = np.clip(np.random.default_rng(0).lognormal(5.2, 1.0, part), 1, CAPACITY).astype(np.uint16)
    with (folder / "lengths.bin").open("wb") as file:
        for i in range(size["samples"] // part):
            file.write(np.roll(base, i * 997).tobytes())


class Mapped:
    """Samples whose lengths lie in a file and whose tokens are ones."""

    columns = ("input_ids",)
    lineage: Mapping[str, Any] = {}

    def __init__(self, path: Path, number: int = 0, of: int = 1) -> None:
        lengths = np.memmap(path, np.uint16, "r")
        n = len(lengths) // of
        self.lengths = lengths[number * n : (number + 1) * n]
        self.fingerprint, self.facts = f"mapped {len(lengths)} {number} {of}", {"length": self.lengths}

    def __len__(self) -> int:
        return len(self.lengths)

    def read(self, indices: Any, _columns: Any = None) -> Any:
        from thalweg.core.sample import Ragged

        offsets = np.zeros(len(indices) + 1, np.int64)
        np.cumsum(self.lengths[indices], out=offsets[1:])
        return {"input_ids": Ragged(np.ones(offsets[-1], np.int32), offsets)}

    def ids(self, indices: Any) -> list[str]:
        return [str(i) for i in indices.tolist()]

    def id_hashes(self, indices: Any) -> Any:
        return indices.astype(np.uint64)


def prepare_records(folder: Path, size: Mapping[str, Any]) -> None:
    """Write a set of records for each source, 2 bytes a token, and one of all rows."""
    import numpy as np

    import thalweg as tw

    rng, rows = np.random.default_rng(0), size["rows"] // SOURCES
    with tw.create_records(folder / "all") as whole:
        for i in range(SOURCES):
            lengths = np.clip(rng.lognormal(5.2, 1.0, rows), 1, CAPACITY).astype(np.int64)
            offsets = np.append(0, np.cumsum(lengths))
            part = {"input_ids": tw.Ragged(rng.integers(0, 50_000, offsets[-1], np.int32), offsets)}
            whole.write_batch(part)
            with tw.create_records(folder / f"source {i}") as own:
                own.write_batch(part)


def on_records(folder: Path) -> dict[str, Any]:
    """Give the feeds on records."""
    import thalweg as tw

    parts = {f"source {i}": tw.from_records(folder / f"source {i}") for i in range(SOURCES)}
    return composed(tw.from_records(folder / "all"), parts)


def feeds(folder: Path) -> dict[str, Any]:
    """Give the feeds on 10^9 samples whose tokens are made."""
    from thalweg.feed.feed import Feed
    from thalweg.feed.stages import From

    path = folder / "lengths.bin"
    parts = {f"source {i}": Feed((From(Mapped(path, i, SOURCES), f"source {i}"),)) for i in range(SOURCES)}
    return composed(Feed((From(Mapped(path), "all"),)), parts)


def composed(whole: Any, parts: Mapping[str, Any]) -> dict[str, Any]:
    """Give the feeds: plain, packed, and a mix of 20 sources by tokens with a schedule, shuffled and packed."""
    from thalweg.feed.join import mix

    early = {name: 1.0 + i for i, name in enumerate(parts)}
    late = {name: float(SOURCES - i) for i, name in enumerate(parts)}
    mixed = mix(parts, weights=[(0, early), (20e9, late)], by="tokens", at="tokens", on_exhausted="stop_all")
    return {
        "plain": whole.shuffle().batch(64, pad="none"),
        "packed": whole.shuffle().pack(CAPACITY).batch(4),
        "mixed": mixed.shuffle().pack(CAPACITY).batch(4),
    }


def loader_of(feed: Any, rank: int = 3) -> Any:
    from thalweg.core.topology import Topology
    from thalweg.feed.loader import FeedLoader

    return FeedLoader(feed, topology=Topology(rank=rank, world=WORLD), epochs=None)


def place(loader: Any, state: dict[str, str], fraction: float) -> dict[str, str]:
    """Give the state of a place in the first epoch."""
    block = int(loader.node.compiled.order.num_blocks(0) * fraction)
    return {**state, "block": str(block), "row": "320", "row_in_epoch": str(block * 18_000 + 320), "rows_before": "0"}


def resumes(kind: str, *, cached: bool) -> Callable[[Path, Mapping[str, Any]], Work]:
    """Make a loader, load a state, take one batch; the table's sums are kept from an earlier start."""

    def start(folder: Path, _size: Mapping[str, Any]) -> Work:
        import os

        cache = os.environ["THALWEG_CACHE"] = tempfile.mkdtemp(dir=folder)
        feed = feeds(folder)[kind]
        first = loader_of(feed)
        state = first.state_dict()
        seen: list[float] = []

        def once(fraction: float) -> None:
            began = time.perf_counter()
            loader = loader_of(feed)
            loader.load_state_dict(place(loader, state, fraction))
            next(iter(loader))
            seen.append(time.perf_counter() - began)
            loader.close()

        def run() -> Mapping[str, float]:
            shutil.rmtree(Path(cache) / "plans", ignore_errors=True)
            places = np.linspace(0.01, 0.99, 10).tolist()
            if cached:
                for fraction in places:
                    once(fraction)
            del seen[:]
            for fraction in places:
                once(fraction)
            return {"units": len(places), "median ms": float(np.median(seen)) * 1e3, "worst ms": max(seen) * 1e3}

        return Work(run)

    return start


def first_batch(kind: str, *, cached: bool) -> Callable[[Path, Mapping[str, Any]], Work]:
    """Make feed and loader and take a batch, in a process that has done nothing else; an earlier one kept the sums."""

    def start(folder: Path, _size: Mapping[str, Any]) -> Work:
        import os

        for name in ("feed.loader", "feed.join", "feed.planned", "core.topology"):  # what a job has imported by then
            import_module(f"thalweg.{name}")
        cache = os.environ["THALWEG_CACHE"] = tempfile.mkdtemp(dir=folder)

        def run() -> Mapping[str, float]:
            began = time.perf_counter()
            loader = loader_of(feeds(folder)[kind])
            next(iter(loader))
            seconds = time.perf_counter() - began
            loader.close()
            return {"units": 1.0, "ms": seconds * 1e3}

        child = os.fork()
        if not child:
            run()
            os._exit(0)
        os.waitpid(child, 0)
        if not cached:
            shutil.rmtree(Path(cache) / "plans", ignore_errors=True)
        return Work(run)

    return start


def throughput(
    kind: str, made: Callable[[Path], Mapping[str, Any]], *, kept: bool = False, ranks: tuple[int, ...] = (3,)
) -> Callable[[Path, Mapping[str, Any]], Work]:
    """Walk some thousand batches of an epoch of which nothing is planned yet.

    Args:
        kind: of feed.
        made: gives the feeds.
        kept: another rank of the node has planned them before.
        ranks: those of the node, which take a batch in turn.
    """

    def start(folder: Path, size: Mapping[str, Any]) -> Work:
        import os

        os.environ["THALWEG_CACHE"] = tempfile.mkdtemp(dir=folder)

        def loaders() -> list[Any]:
            return [loader_of(made(folder)[kind], rank=rank) for rank in ranks]

        def walk(walked: list[Any], epoch: int) -> int:
            for loader in walked:
                loader.set_epoch(epoch)
            tokens, batches = 0, [iter(loader) for loader in walked]
            while tokens < size["tokens"]:
                for each in batches:
                    tokens += next(each).info.num_tokens
            return tokens

        ours = loaders()
        walk(ours, 0)  # data and processor are warm, and nothing of the later epoch is planned
        if kept:
            walk(loaders(), LATER)
        return Work(lambda: walk(ours, LATER))

    return start


HUGE = {"full": {"samples": 10**9, "tokens": 50_000_000}, "smoke": {"samples": 10**6, "tokens": 500_000}}
RECORDS = {"full": {"rows": 400_000, "tokens": 50_000_000}, "smoke": {"rows": 4_000, "tokens": 200_000}}
NODE = {"full": {"rows": 400_000, "tokens": 200_000_000}, "smoke": {"rows": 4_000, "tokens": 400_000}}
CASES = [
    *(
        Case(
            name=f"resume anywhere in 10^9 samples, {kind}",
            unit="resumes",
            prepare=prepare,
            sides={
                "block cached": Side(resumes(kind, cached=True)),
                "cold": Side(resumes(kind, cached=False)),
            },
            sizes=HUGE,
            rounds=3,
        )
        for kind in ("packed", "mixed")
    ),
    Case(
        name="first batch of a fresh process at 10^9 samples, mixed",
        unit="starts",
        prepare=prepare,
        sides={
            "block cached": Side(first_batch("mixed", cached=True)),
            "cold": Side(first_batch("mixed", cached=False)),
        },
        sizes=HUGE,
        rounds=3,
        warmup=0,
    ),
    *(
        Case(
            name=name,
            unit="tokens",
            prepare=prepare_data,
            sides={
                "packed, 20 sources by tokens with a schedule": Side(throughput("mixed", made)),
                "the same, plans kept on the node": Side(throughput("mixed", made, kept=True)),
                "packed": Side(throughput("packed", made)),
                "plain": Side(throughput("plain", made)),
            },
            sizes=sizes,
            rounds=3,
            warmup=0,
        )
        for name, prepare_data, made, sizes in (
            ("tokens of a feed on records", prepare_records, on_records, RECORDS),
            ("tokens of a feed at 10^9 samples", prepare, feeds, HUGE),
        )
    ),
    Case(
        name="tokens of the 8 ranks of a node on records",
        unit="tokens",
        prepare=prepare_records,
        sides={
            side: Side(throughput(kind, on_records, ranks=tuple(range(WORLD))))
            for side, kind in (
                ("packed, 20 sources by tokens with a schedule", "mixed"),
                ("packed", "packed"),
                ("plain", "plain"),
            )
        },
        sizes=NODE,
        rounds=3,
        warmup=0,
    ),
]

if __name__ == "__main__":
    main(__file__, CASES)
