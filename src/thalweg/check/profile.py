"""Where the time of a step goes: a loop over a feed with clocks in it, with and without its functions.

Decides what is measured and in which order: first the loop as it is, then without functions (their outputs are given
again), then training alone. What the figures mean is the business of `advice`, how they are kept that of `profiles`.
"""

import os
import tempfile
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np

from thalweg.bind.loader import Loader
from thalweg.check.advice import Costs, advise, case_of, values_of
from thalweg.check.instrument import READ, Notes, instrumented
from thalweg.check.opening import is_foreign, open_target
from thalweg.check.profiles import Profile
from thalweg.check.trainers import measurable
from thalweg.core.errors import ConfigError, InputError
from thalweg.feed import stages as st
from thalweg.feed.code import code_of
from thalweg.feed.feed import Feed
from thalweg.feed.fuse import fused
from thalweg.feed.loader import FeedLoader
from thalweg.work.cpus import usable_cpus

Train = Callable[[Any], Any]
WARM = 3  # batches before the clock begins: workers start, caches fill
LEVELS = {"ready": "batches ready", "in_flight": "groups read or mapped"}  # of a planned feed
SPAN = 8  # gaps between batches that are looked at while draining
MOST, PATIENCE, INSTANT = 256, 3.0, 2e-4  # batches and seconds of draining; a batch that was there took less
UNTRAINED = (
    "no step of training was told, so the loop waits whatever it does: say what yours takes, train= (--train-ms)"
)
LOOKS = 16  # at the queues while it runs
KEPT = 16  # outputs of a function that are given again where it is left out


def profile(
    x: Any,
    steps: int = 50,
    *,
    train: float | Train = 0.0,
    workers: int | str | None = None,
    prefetch: int | None = None,
    ablate: bool = True,
    trace: str | Path | None = None,
    words: Sequence[str] = (),
) -> Profile:
    """Measure a loop: which stage takes how long, what the loop waits for, and what to change.

    Args:
        x: a feed, a loader (its settings are taken, it is not touched), "file.py:name", or a file of settings.
        steps: batches that are measured, after 3 that are not.
        train: what a step does besides: seconds, or a function of the batch.
        workers: of the loader; None takes the loader's own, else "auto".
        prefetch: batches ahead; None takes the loader's own.
        ablate: also run the loop without its functions, and training alone.
        trace: path of a file for chrome://tracing or Perfetto: every call of every function.
        words: settings over those of a file of settings, such as "train.batch.size=2".

    Raises:
        InputError: the data ends before the clock begins.
        ConfigError: it cannot be run.
    """
    if steps < 1:
        raise ConfigError(f"steps={steps} must be at least 1", where="profile", fix="measure ten or more")
    feed, told, title = runnable(x, words)
    if workers is not None:
        told["workers"] = workers
    if prefetch is not None:
        told["prefetch"] = prefetch
    step: Train = (lambda _: sleep(train) if train else None) if isinstance(train, int | float) else train
    with _notes(traced=trace is not None) as notes:
        measured = _measure(feed, told, steps, step, notes)
        if trace is not None:
            _trace(notes, measured, Path(trace))
    out = _profile(title, feed, measured, told)
    if not callable(train) and not train:
        out.advice.insert(0, UNTRAINED)
    if ablate:
        out.rates = {"as it is": out.batches / out.wall if out.wall else 0.0}
        if measured["labels"]:
            with _notes() as notes:
                less = _measure(feed, told, steps, step, notes, change=canned)
                out.rates["without functions"] = less["batches"] / less["wall"]
        with _notes() as notes:
            less = _measure(feed, told, steps, lambda _: None, notes)
            out.rates["without training"] = less["batches"] / less["wall"]
        parted = apart(feed)
        if parted is not None:
            with _notes() as notes:
                less = _measure(parted, told, steps, step, notes)
                out.rates["functions apart"] = less["batches"] / less["wall"]
    return out


def apart(feed: Feed) -> Feed | None:
    """Give a stream whose functions in a row are not put together into one call; None where nothing is."""
    if feed.kind != "stream" or len(fused(list(enumerate(feed.stages)))) == len(feed.stages):
        return None
    # the words of a map decide whether it is put together with the one before: they differ here by nothing that counts
    return Feed(
        tuple(
            replace(s, max_bad=s.max_bad + 1e-9 * n) if isinstance(s, st.Map) and isinstance(s.max_bad, float) else s
            for n, s in enumerate(feed.stages)
        )
    )


def runnable(x: Any, words: Sequence[str] = ()) -> tuple[Feed, dict[str, Any], str]:
    """Give the feed of a target, the settings of its loader, and its name; `words` go over those of a file of settings.

    Raises:
        ConfigError: there is no feed in it.
    """
    target = open_target(x, words)
    if target.kind == "loader":
        return target.thing.feed, _settings(target.thing), target.title
    if target.kind == "feed":
        return target.thing, {}, target.title
    if target.kind == "settings":
        name = "train" if "train" in target.thing else next(iter(target.thing))
        if isinstance(x, str | os.PathLike) and not is_foreign(os.fspath(x)):
            return runnable(f"{os.fspath(x)}:{name}", words)  # as the file's loader runs it
        return measurable(target.thing[name]), {}, f"{target.title}:{name}"
    kinds = {"raw": "a raw file", "records": "a record set", "data set": "a data set"}
    what = kinds.get(target.kind, "a loader of another library")
    raise ConfigError(f"{what} does not run", where=target.title, fix="give a feed or a loader of ours")


def _settings(loader: FeedLoader) -> dict[str, Any]:
    o = loader.options
    return {
        "topology": o.topology, "gradient_accumulation_steps": o.accumulation, "seed": o.seed, "workers": o.workers,
        "max_bytes": o.max_bytes, "prefetch": o.prefetch,
    }  # fmt: skip


@contextmanager
def _notes(*, traced: bool = False) -> Generator[Notes]:
    with tempfile.TemporaryDirectory(prefix="thalweg-profile-") as folder:
        notes = Notes(Path(folder), traced=traced)
        try:
            yield notes
        finally:
            notes.close()


def _measure(
    feed: Feed,
    told: dict[str, Any],
    steps: int,
    train: Train,
    notes: Notes,
    *,
    change: "Callable[[st.Map, str], Any] | None" = None,
) -> dict[str, Any]:
    """Run a loop and give what its clocks saw after the warm-up."""
    timed, labels = instrumented(feed, notes, change)
    loader = Loader(timed, epochs=None, **told)
    seen: list[tuple[float, float, float]] = []  # of each batch: asked, came, done
    begun: dict[str, Any] = {}
    depths: list[dict[str, tuple[float, float]]] = []
    each = max(1, steps // LOOKS)
    try:
        batches = iter(loader)
        drained(batches)
        for number in range(WARM + steps):
            if number == WARM:
                begun = _clocks(loader, notes)
            asked = perf_counter()
            batch = next(batches, None)
            if batch is None:
                break
            came = perf_counter()
            train(batch)
            if number >= WARM:
                seen.append((asked, came, perf_counter()))
                if len(seen) % each == 0:
                    depths.append(_depths(loader.stats()))
        if not seen:
            raise InputError(f"the data ends before {WARM + 1} batches", where="profile", fix="take smaller batches")
        loader.pace.asked()
        ended = _clocks(loader, notes)
        stats = loader.stats()
    finally:
        loader.close()
    return {"labels": labels, "begun": begun, "ended": ended, "seen": seen, "batches": len(seen),
            "wall": seen[-1][2] - seen[0][0], "stats": stats, "depths": depths}  # fmt: skip


def drained(batches: Iterator[Any]) -> int:
    """Take batches as fast as they come until the loop has to wait for them: what was made ahead says nothing.

    Returns:
        How many were taken.
    """
    gaps: deque[float] = deque(maxlen=SPAN)
    begun = perf_counter()
    for number in range(MOST):
        asked = perf_counter()
        if next(batches, None) is None:
            return number
        gaps.append(perf_counter() - asked)
        mean = sum(gaps) / len(gaps)
        if number >= SPAN and (gaps[-1] > 0.5 * mean > INSTANT / 2 or perf_counter() - begun > PATIENCE):
            return number + 1
    return MOST


def _clocks(loader: FeedLoader, notes: Notes) -> dict[str, Any]:
    stats = loader.stats()
    meters = dict(stats.get("seconds", {}))
    for value in stats.values():
        if isinstance(value, dict) and "waiting" in value:  # functions on a stream hand over in order
            meters["wait"] = meters.get("wait", 0.0) + float(value.get("waited_s", 0.0))
    return {"notes": notes.read(), "meters": meters, "loop": stats["loop"]}


def _depths(stats: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Give queue -> (items in it, their bytes)."""
    out = {LEVELS[name]: (float(n), 0.0) for name, n in stats.get("levels", {}).items() if name in LEVELS}
    for name, value in stats.items():
        if isinstance(value, dict) and "waiting" in value:
            out[name] = (float(value["waiting"]), float(value.get("bytes", 0)))
    return out


def _queues(depths: list[dict[str, tuple[float, float]]]) -> dict[str, dict[str, float]]:
    """Give queue -> items on average and at most, and bytes at most, over all looks."""
    out: dict[str, dict[str, float]] = {}
    for name in dict.fromkeys(n for one in depths for n in one):
        items, sizes = zip(*(one[name] for one in depths if name in one), strict=True)
        out[name] = {"mean": sum(items) / len(items), "most": max(items), "bytes": max(sizes)}
    return out


def _profile(title: str, feed: Feed, m: dict[str, Any], told: dict[str, Any]) -> Profile:
    begun, ended, n = m["begun"], m["ended"], m["batches"]
    empty = np.zeros(4)
    spent = {k: v - begun["notes"].get(k, empty) for k, v in ended["notes"].items()}
    meters = {k: v - begun["meters"].get(k, 0.0) for k, v in ended["meters"].items()}
    loop = {k: ended["loop"][k] - begun["loop"][k] for k in ("waited_s", "finished_s", "consumed_s", "tokens")}
    maps = {label: spent[clock] for clock, label in m["labels"].items() if clock in spent}
    slowest = max(maps.values(), key=lambda v: float(v[0]), default=empty)
    work = sum(float(v[0]) for v in maps.values())
    mode, workers = engine(feed, told, m["stats"])
    samples = max((int(v[1]) for v in maps.values()), default=0)
    costs = Costs(
        read=float(spent.get(READ, empty)[0]) / n,
        plan=meters.get("plan", 0.0) / n,
        maps={label: float(v[0]) / n for label, v in maps.items()},
        collate=meters.get("collate", 0.0) / n,
        transfer=loop["finished_s"] / n,
        train=loop["consumed_s"] / n,
        waited=loop["waited_s"] / n,
        ordered=meters.get("wait", 0.0) / n,
        workers=workers,
        mode=mode,
        cpus=usable_cpus(),
        jitter=_jitter(slowest),
        computing=sum(float(v[3]) for v in maps.values()) / work if work else None,
        cores=sum(float(v[3]) for v in maps.values()) / m["wall"] if work and m["wall"] else None,
        cached=any(isinstance(s, st.Cache) for s in feed.stages),
        random=any(getattr(s, "with_info", False) for s in feed.stages),
        packed=any(isinstance(s, st.Pack) for s in feed.stages),
    )
    each = max(samples / n, 1e-9) if samples else 1.0
    case = case_of(work / max(samples, 1), costs.train / each) if samples else None
    return Profile(
        title=title,
        batches=n,
        wall=m["wall"],
        tokens=int(loop["tokens"]),
        samples=samples,
        costs=costs,
        advice=[str(a) for a in advise(costs)],
        preprocess=work / samples if samples else 0.0,
        consume=costs.train / each,
        case=case or "no functions",
        values=values_of(case, work / samples, costs.train / each, usable_cpus()) if case else {},
        waits=[round(came - asked, 6) for asked, came, _ in m["seen"]],
        queues=_queues(m["depths"]),
    )


def _jitter(sums: Any) -> float:
    seconds, calls, squares = float(sums[0]), float(sums[1]), float(sums[2])
    if calls < 2 or not seconds:
        return 0.0
    mean = seconds / calls
    return float(max(squares / calls - mean * mean, 0.0) ** 0.5 / mean)


def engine(feed: Feed, told: dict[str, Any], stats: dict[str, Any]) -> tuple[str, int]:
    """Say how the functions of a feed run: mode and workers."""
    maps = [s for s in feed.stages if isinstance(s, st.Map)]
    asked = told.get("workers", "auto")
    if not maps or asked == 0:
        return "inline", 0
    for value in stats.values():
        words = str(value.get("mode", "")) if isinstance(value, dict) else ""
        if "," in words:  # what mode="auto" chose, as "threads, 2 workers: why"
            mode, _, rest = words.partition(", ")
            return mode, int(rest.split()[0])
    said = next((s for s in maps if s.workers != "auto" or s.mode != "auto"), maps[0])
    count = said.workers if isinstance(said.workers, int) else asked if isinstance(asked, int) else usable_cpus()
    return (said.mode if said.mode != "auto" else "threads"), 0 if said.mode == "inline" else int(count)


class Canned:
    """A function that is left out: its first outputs are given again and again."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn, self.fingerprint = fn, code_of(fn)
        self.kept: deque[Any] = deque(maxlen=KEPT)

    def __call__(self, *args: Any, **more: Any) -> Any:
        """Give an earlier output; call the function while there are too few."""
        if len(self.kept) < KEPT:
            self.kept.append(self.fn(*args, **more))
            return self.kept[-1]
        self.kept.rotate(-1)
        return self.kept[-1]

    def __getattr__(self, name: str) -> Any:
        """Look like the function."""
        if name.startswith("__") or name in {"fn", "kept"}:
            raise AttributeError(name)
        return getattr(self.fn, name)


def canned(stage: st.Map, _clock: str) -> Canned:
    """Give what stands in for the function of a stage."""
    return Canned(stage.fn)


def _trace(notes: Notes, m: dict[str, Any], path: Path) -> None:
    from thalweg.check.trace import write_trace  # noqa: PLC0415 (only where asked for)

    write_trace(path, list(notes.events()), m["seen"], m["labels"])
