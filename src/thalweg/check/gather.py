"""Samples of a feed for a look: evenly over its sources, through its functions, with the time that each took.

Decides which samples are looked at, and what happens to one that fails: it is noted and left out. Runs in this
process, moves nothing, starts no worker and makes no cache.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from time import perf_counter
from typing import Any

import numpy as np

from thalweg.core.errors import ConfigError, ThalwegError
from thalweg.feed import stages as st
from thalweg.feed.columns import names
from thalweg.feed.compile import applied
from thalweg.feed.feed import Feed
from thalweg.feed.mapped import Leaf
from thalweg.feed.merge import BATCHED, SampleInfo, call, call_batched
from thalweg.feed.origin import IterableOrigin, plain
from thalweg.feed.source import Source, samples_of

VIEWS = (st.Take, st.Skip, st.Select, st.Split)
PASSED = (st.Cache, st.Shuffle, st.Repeat)  # change no sample
SAMPLE_STAGES = (*VIEWS, *PASSED, st.Map, st.Filter)


@dataclass(slots=True)
class Taken:
    """One sample on its way: its id, the record it began as, what it is now, and the file and line it is on."""

    name: str
    raw: Mapping[str, Any]
    sample: dict[str, Any]
    line: str = ""

    @property
    def place(self) -> str:
        """Say where it is: the file and line where they are known, else the id."""
        return self.line or self.name


@dataclass(slots=True)
class Gathered:
    """Samples of one source of a feed.

    Args:
        name: of the source in its mix, "" for the only one.
        taken: samples that came through.
        asked: samples that were read.
        total: samples that the source has; None where unknown.
        failed: (place, error) of those that did not come through.
        remedy: what the first of these errors says is to be tried.
        seconds: stage -> seconds.
        source: what was read, None for a stream.
        mapped: whether a function stood in the way.
    """

    name: str
    taken: list[Taken] = field(default_factory=list[Taken])
    asked: int = 0
    total: int | None = None
    failed: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    remedy: str = ""
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    source: Source | None = None
    mapped: bool = False


def parted(feed: Feed) -> tuple[list[tuple[str, tuple[st.Stage, ...]]], tuple[st.Stage, ...]]:
    """Part a feed into its sources, each with the stages that its samples go through, and what rows are made by."""
    head, rest = feed.stages[0], list(feed.stages[1:])
    at = next((i for i, s in enumerate(rest) if not isinstance(s, SAMPLE_STAGES)), len(rest))
    behind, made = tuple(rest[:at]), tuple(rest[at:])
    if isinstance(head, st.Mix | st.Concat):
        return [(name, (*inner.stages, *behind)) for name, inner in head.feeds], made
    return [("", feed.stages[: at + 1])], made


def gather(name: str, stages: tuple[st.Stage, ...], n: int) -> Gathered:
    """Take at most n samples of one source through its stages."""
    out = Gathered(name)
    start = perf_counter()
    head, rest = stages[0], list(stages[1:])
    if isinstance(head, st.From):
        source = _viewed(name, head.source, rest)
        out.source, out.total = source, len(source)
        picks = np.unique(np.linspace(0, max(len(source) - 1, 0), min(n, len(source))).astype(np.int64))
        out.taken = list(_read(source, picks, out))
    elif isinstance(head, st.Concat):
        for inner_name, inner in head.feeds:
            part = gather(inner_name, inner.stages, max(n // len(head.feeds), 1))
            out.taken += part.taken
            out.failed += part.failed
            out.remedy = out.remedy or part.remedy
            out.asked += part.asked
            out.total = None if out.total is None and out.asked > part.asked else (out.total or 0) + (part.total or 0)
    else:
        items = map(plain, islice(_opened(head), n))
        out.taken = [Taken(str(i), item, dict(item)) for i, item in enumerate(items)]
    out.asked = out.asked or len(out.taken) + len(out.failed)
    out.seconds["read"] = perf_counter() - start
    for stage in rest:
        if isinstance(stage, st.Map):
            _warmed(stage, out)
        start = perf_counter()
        if isinstance(stage, st.Map):
            out.taken, out.mapped = list(_mapped(stage, out)), True
        elif isinstance(stage, st.Filter):
            out.taken = [t for t in out.taken if _kept(stage, t, out)]
        else:
            continue
        label = str(stage)[:60]
        out.seconds[label] = out.seconds.get(label, 0.0) + perf_counter() - start
    return out


def _opened(head: st.Stage) -> Iterator[Any]:
    """Open a stream for a look of its own.

    Raises:
        ConfigError: it can be read only once, and training needs that.
    """
    assert isinstance(head, st.FromStream)
    if hasattr(head.make, "__next__"):
        fix = "give a function that makes it: from_stream(lambda: read(...))"
        raise ConfigError("the stream can be read only once, so a look would use it up", where=str(head)[:80], fix=fix)
    return IterableOrigin(head.make).open(0, 0, None)


def _warmed(stage: st.Map, out: Gathered) -> None:
    """Call a function once before it is timed: encoders load what they need with the first call."""
    aside = Gathered(out.name, out.taken[:1])
    for _ in _mapped(stage, aside):
        pass


def _viewed(name: str, source: Source, rest: list[st.Stage]) -> Source:
    """Apply the stages that only choose samples, as long as no function stands before them."""
    leaf = Leaf(name, source)
    while rest and (isinstance(rest[0], (*VIEWS, *PASSED)) or (isinstance(rest[0], st.Filter) and rest[0].columns)):
        stage = rest.pop(0)
        if not isinstance(stage, PASSED):
            leaf = applied(leaf, stage)
    return leaf.source


def _read(source: Source, picks: Any, out: Gathered) -> Iterator[Taken]:
    """Read samples together, or one by one where one of them cannot be read."""
    out.asked = len(picks)
    try:
        ids = source.ids(picks)
        rows = samples_of(source.read(picks, None), len(picks))
    except Exception:  # noqa: BLE001 (whatever a source raises: the sample is looked for)
        for pick in picks:
            one = np.array([pick])
            try:
                (row,) = samples_of(source.read(one, None), 1)
                yield Taken(source.ids(one)[0], row, dict(row), _line(source, pick))
            except Exception as error:  # noqa: BLE001
                _failed(out, _line(source, pick) or f"sample {int(pick)}", error)
        return
    for pick, i, row in zip(picks, ids, rows, strict=True):
        yield Taken(i, row, dict(row), _line(source, pick))


def _line(source: Source, pick: Any) -> str:
    """Give the file and line of a row of a raw file, as the file counts them; "" for any other source."""
    where = getattr(source, "where", None)
    return str(where(int(pick))) if callable(where) else ""


def _mapped(stage: st.Map, out: Gathered) -> Iterator[Taken]:
    if stage.batched:
        size = BATCHED if stage.batched is True else int(stage.batched)
        for at in range(0, len(out.taken), size):
            yield from _batch(stage, out.taken[at : at + size], out)
        return
    for number, t in enumerate(out.taken):
        info = SampleInfo(t.name, out.name, number, 0, (0, "doctor")) if stage.with_info else None
        try:
            made = call(stage, t.sample, info)
        except Exception as error:  # noqa: BLE001 (a user's function may raise anything)
            _failed(out, f"sample {t.place!r} in {str(stage)[:80]}", error)
            continue
        yield from (replace(t, sample=sample) for sample in made)


def _batch(stage: st.Map, group: list[Taken], out: Gathered) -> Iterator[Taken]:
    """Call a batched function on a group; where it fails, on each sample alone."""
    try:
        made = call_batched(stage, [t.sample for t in group])
    except Exception as error:  # noqa: BLE001
        if len(group) == 1:
            _failed(out, f"sample {group[0].place!r} in {str(stage)[:80]}", error)
        else:
            for one in group:
                yield from _batch(stage, [one], out)
        return
    if len(made) == len(group):
        yield from (replace(t, sample=sample) for t, sample in zip(group, made, strict=True))
    else:
        yield from (Taken(f"{group[0].name}#{k}", {}, sample) for k, sample in enumerate(made))


def _kept(stage: st.Filter, t: Taken, out: Gathered) -> bool:
    info = SampleInfo(t.name, out.name, 0, 0, (0, "doctor")) if stage.with_info else None
    try:
        if stage.columns is not None:
            values = [
                np.array([len(t.sample["input_ids"]) if c == "length" else t.sample[c]]) for c in names(stage.columns)
            ]
            return bool(np.asarray(stage.fn(*values)).all())
        return bool(stage.fn(t.sample) if info is None else stage.fn(t.sample, info))
    except Exception as error:  # noqa: BLE001
        _failed(out, f"sample {t.place!r} in {stage}", error)
        return False


def _failed(out: Gathered, place: str, error: BaseException) -> None:
    """Note a failure: what it was and where; what to try is told once, of the first."""
    what, where = str(error), ""
    if isinstance(error, ThalwegError):
        what, out.remedy = error.what, out.remedy or error.fix or ""
        where = f" [{error.where}]" if error.where and error.where != place else ""
    out.failed.append((place, f"{type(error).__name__}: {what}".splitlines()[0] + where))
