"""Settings of a loader found by trying: mode, workers, batch of the functions and batches ahead, from low upward.

Decides in which order settings are swept and what is measured: batches a second of the real loop. When a sweep ends is
the business of `climb`.
"""

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

from thalweg.bind.loader import Loader
from thalweg.check.climb import Climb, Seen, climb
from thalweg.check.finding import Finding
from thalweg.check.memory import Peak, available
from thalweg.check.profile import drained, runnable
from thalweg.check.report import Report
from thalweg.core.errors import ConfigError, ThalwegError
from thalweg.core.sizes import to_bytes
from thalweg.feed import stages as st
from thalweg.feed.feed import Feed
from thalweg.work.cpus import usable_cpus

Train = Callable[[Any], Any]
AHEAD = (2, 4, 8, 16)
TOGETHER = (16, 64, 256)
PATIENCE = 1.5  # times its seconds that a trial may take to reach its steps
LEAST = 0.4  # seconds that a trial runs at least
SHARE = 0.8  # of the memory that is available that may be taken


@dataclass(frozen=True, slots=True)
class Setting:
    """What is tried: how functions run, and how far ahead batches are made."""

    mode: str = "inline"
    workers: int = 0
    prefetch: int = 2
    batched: int | None = None

    def __str__(self) -> str:
        """Say it in a few words."""
        how = self.mode if self.mode == "inline" else f"{self.workers} {self.mode}"
        together = f", {self.batched} samples a call" if self.batched else ""
        return f"{how}, {self.prefetch} batches ahead{together}"


@dataclass(slots=True)
class Tuned:
    """What was tried and chosen.

    Args:
        title: what ran.
        best: the setting to use.
        tried: (setting, batches a second, bytes), in order.
        notes: why sweeps ended.
        seconds: the search took.
    """

    title: str
    best: Setting
    tried: list[Seen[Setting]] = field(default_factory=list[Seen[Setting]])
    notes: list[str] = field(default_factory=list[str])
    seconds: float = 0.0

    def settings(self) -> dict[str, Any]:
        """Give what to write: {"map": {...}, "loader": {...}}."""
        b = self.best
        told: dict[str, Any] = {"mode": b.mode, "workers": b.workers}
        if b.batched is not None:
            told["batched"] = b.batched
        return {"map": told, "loader": {"prefetch": b.prefetch}}

    def report(self) -> Report:
        """Give it as a report."""
        most = max(s.rate for s in self.tried)
        facts: dict[str, Any] = {
            str(s.value): f"{s.rate:.2f} batches a second ({s.rate / most:.0%} of the best), {s.memory / 1e6:,.0f} MB"
            for s in self.tried
        }
        told = self.settings()
        words = ", ".join(f"{k}={v!r}" for k, v in told["map"].items())
        fix = f"map(fn, {words}); Loader(feed, prefetch={self.best.prefetch})"
        findings = [Finding("note", f"best: {self.best}", fix=fix)]
        findings += [Finding("note", note) for note in self.notes]
        return Report(f"{self.title}, tried in {self.seconds:.0f} s", facts, findings)

    def to_dict(self) -> dict[str, Any]:
        """Write as JSON-like data."""
        tried = [{"setting": str(s.value), "rate": s.rate, "memory": s.memory} for s in self.tried]
        return {"title": self.title, "settings": self.settings(), "tried": tried, "notes": self.notes,
                "seconds": self.seconds}  # fmt: skip

    def __str__(self) -> str:
        """Give plain text."""
        return str(self.report())


def tune(
    x: Any,
    *,
    seconds: float = 60.0,
    steps: int = 100,
    train: float | Train = 0.0,
    max_memory: int | str | None = None,
    words: Sequence[str] = (),
) -> Tuned:
    """Find how the functions of a feed run fastest on this machine.

    Args:
        x: a feed, a loader, "file.py:name", or a file of settings.
        seconds: that the search may take, about.
        steps: batches of a trial at least, where they come in time.
        train: what a step does besides: seconds, or a function of the batch.
        max_memory: bytes, or "8GB", that this process and its workers may take; None: 0.8 of what is available.
        words: settings over those of a file of settings, such as "train.batch.size=2".

    Raises:
        ConfigError: nothing in it can be tuned.
        ThalwegError: it does not run, whatever the setting.
    """
    feed, told, title = runnable(x, words)
    maps = [s for s in feed.stages if isinstance(s, st.Map)]
    if not maps:
        raise ConfigError("no function in this feed: nothing to tune", where=title, fix="thalweg profile says more")
    begun, most = perf_counter(), available()
    limit = to_bytes(max_memory) if max_memory is not None else None if most is None else int(SHARE * most)
    step: Train = (lambda _: sleep(train) if train else None) if isinstance(train, int | float) else train
    out = Tuned(title, Setting())
    each = max(LEAST, seconds / 24)

    def measure(setting: Setting) -> Seen[Setting]:
        seen = _measured(feed, told, setting, step, steps=steps, seconds=each)
        out.tried.append(seen)
        return seen

    def left() -> bool:
        return perf_counter() - begun < seconds - 2 * each

    for name, settings in _sweeps(out, maps):
        found: Climb[Setting] = climb(settings, measure, memory=limit, left=left)
        _settle(out, name, found)
    out.best = _cheapest(out.tried, limit)
    out.seconds = perf_counter() - begun
    return out


def _sweeps(out: Tuned, maps: Sequence[st.Map]) -> Iterator[tuple[str, list[Setting]]]:
    """Give the sweeps one after another, each from the best setting so far."""
    cpus = usable_cpus()
    workers = sorted({1, 2, 4, 8, 16, cpus, 2 * cpus})
    yield "inline", [Setting()]
    yield "threads", [Setting("threads", n) for n in workers]
    yield "processes", [Setting("processes", n) for n in workers if n <= max(2, 2 * cpus)]
    yield "ahead", [replace(out.best, prefetch=n) for n in AHEAD[1:]]
    if any(m.batched for m in maps):
        yield "samples a call", [replace(out.best, batched=n) for n in TOGETHER]


def _settle(out: Tuned, name: str, found: "Climb[Setting]") -> None:
    out.notes.append(f"{name}: {found.ended}")
    if found.falls and len(found.tried) > 1:
        fall = found.tried[-1].rate / max(s.rate for s in found.tried)
        out.notes.append(f"{name}: {found.tried[-1].value} gives {fall:.0%} of the best: more than there is work for")
    out.best = max(out.tried, key=lambda s: s.rate).value


def _cheapest(tried: "list[Seen[Setting]]", limit: int | None) -> Setting:
    """Take the setting with the fewest workers and the least ahead among those near the best that fit into memory."""
    fits = [s for s in tried if limit is None or s.memory <= limit] or tried[:1]
    most = max(s.rate for s in fits)
    near = [s for s in fits if s.rate >= 0.97 * most]
    order = {"inline": 0, "threads": 1, "processes": 2}
    return min(near, key=lambda s: (s.value.workers, order[s.value.mode], s.value.prefetch)).value


def applied(feed: Feed, setting: Setting) -> Feed:
    """Give a feed whose functions run as a setting says."""
    out: list[st.Stage] = []
    for stage in feed.stages:
        if isinstance(stage, st.Map):
            together = setting.batched if stage.batched and setting.batched else stage.batched
            out.append(replace(stage, mode=setting.mode, workers=setting.workers, batched=together))
        else:
            out.append(stage)
    return Feed(tuple(out))


def _measured(
    feed: Feed, told: dict[str, Any], setting: Setting, train: Train, *, steps: int, seconds: float
) -> Seen[Setting]:
    """Run a setting and give its rate; 0 where it fails, as a function that cannot be sent to a process does.

    What fails inline fails everywhere, and is the error of the search. Ctrl-C inside a function ends the search too.
    """
    words: dict[str, Any] = {**told, "prefetch": setting.prefetch, "workers": setting.workers}
    stamps: list[float] = []
    with Peak(os.getpid()) as peak:
        loader = Loader(applied(feed, setting), epochs=None, **words)
        try:
            batches = iter(loader)
            drained(batches)
            stamps.append(perf_counter())
            for batch in batches:
                train(batch)
                stamps.append(perf_counter())
                took = stamps[-1] - stamps[0]
                if (took > seconds and len(stamps) > steps) or took > PATIENCE * seconds:
                    break
        except ThalwegError as error:
            if isinstance(error.__cause__, KeyboardInterrupt):
                raise error.__cause__ from None
            if setting == Setting():
                raise
            warnings.warn(f"{setting}: {error}", UserWarning, stacklevel=2)
            return Seen(setting, 0.0, peak.most)
        finally:
            loader.close()
    count = len(stamps) - 1
    return Seen(setting, count / (stamps[-1] - stamps[0]) if count else 0.0, peak.most)


def write_settings(found: Tuned, target: str, path: Path, words: Sequence[str] = ()) -> None:
    """Write what was found: into a copy of a file of settings, else on its own.

    Args:
        found: the search.
        target: as it was named; of a file of settings in our words all else is kept.
        path: of the file to write.
        words: settings over those of the file, as they were searched with.
    """
    import yaml  # noqa: PLC0415 (only where asked for)

    from thalweg.check.opening import is_foreign  # noqa: PLC0415
    from thalweg.check.target import split_settings  # noqa: PLC0415

    told = found.settings()
    parted = split_settings(target)
    if parted is not None and not is_foreign(str(parted[0])):
        from thalweg.bind.config import load_config  # noqa: PLC0415

        config = load_config(parted[0], words)
        name = parted[1] or config.default()
        data: dict[str, Any] = config.to_dict()
        for stage in data[name]:
            if isinstance(stage, dict) and "map" in stage:
                stage["map"] = {**(stage["map"] or {}), **told["map"]}
        loaders = data.setdefault("loader", {})
        loaders[name] = {**(loaders.get(name) or {}), **told["loader"]}
        told = data
    path.write_text(yaml.safe_dump(told, sort_keys=False, allow_unicode=True), encoding="utf-8")
