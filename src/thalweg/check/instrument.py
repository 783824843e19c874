"""A feed whose reads and functions note their seconds, in whichever thread or process they run.

Decides how seconds come home: each thread of each process has a small file of its own, mapped where it is written, so
nothing is locked and nothing has to be sent. Order, results, caches and fingerprints stay those of the feed.
"""

import os
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import wraps
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.feed import stages as st
from thalweg.feed.code import code_of
from thalweg.feed.feed import Feed
from thalweg.work.percopy import for_worker

EVENT = struct.Struct("<dd")  # when a call began and how long it took, seconds of the monotonic clock
READ = "read"
SUMS = 4  # numbers kept a thread


class Notes:
    """Seconds and calls by name, summed over threads and processes.

    Args:
        folder: an empty folder of its own.
        traced: also keep when each call began.
    """

    def __init__(self, folder: Path, *, traced: bool = False) -> None:
        self.folder, self.traced = folder, traced
        self._mine: dict[tuple[str, int], tuple[Any, Any]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Leave what belongs to this process."""
        return {"folder": self.folder, "traced": self.traced, "_mine": {}}

    def add(self, name: str, start: float, took: float, cpu: float = 0.0) -> None:
        """Note one call: when it began, its seconds, and its seconds of CPU."""
        key = (name, threading.get_ident())
        found = self._mine.get(key)
        if found is None:
            found = self._mine[key] = self._open(*key)
        sums, events = found
        sums[0] += took
        sums[1] += 1
        sums[2] += took * took
        sums[3] += cpu
        if events is not None:
            os.write(events, EVENT.pack(start, took))

    def _open(self, name: str, thread: int) -> tuple[Any, Any]:
        stem = f"{name}~{os.getpid()}~{thread}"
        path = self.folder / f"{stem}.sums"
        path.write_bytes(bytes(SUMS * 8))
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        events = os.open(self.folder / f"{stem}.events", flags, 0o600) if self.traced else None
        return np.memmap(path, np.float64, "r+", shape=(SUMS,)), events

    def close(self) -> None:
        """Close what this process opened; a worker's files end with it."""
        for _, events in self._mine.values():
            if events is not None:
                os.close(events)
        self._mine.clear()

    def read(self) -> dict[str, NDArray[np.float64]]:
        """Give name -> (seconds, calls, sum of squares, seconds of CPU), float64 (4,)."""
        out: dict[str, NDArray[np.float64]] = {}
        for path in self.folder.glob("*.sums"):
            data = path.read_bytes()
            if len(data) == SUMS * 8:
                name = path.name.partition("~")[0]
                out[name] = out.get(name, np.zeros(SUMS)) + np.frombuffer(data, np.float64)
        return out

    def events(self) -> Iterator[tuple[str, int, int, float, float]]:
        """Give (name, process, thread, start, seconds) of every call that was traced."""
        for path in sorted(self.folder.glob("*.events")):
            name, process, thread = path.stem.split("~")
            for start, took in EVENT.iter_unpack(path.read_bytes()):
                yield name, int(process), int(thread), start, took


class Timed:
    """A user's function that notes its seconds. Counts as the function itself wherever identity matters."""

    def __init__(self, fn: Callable[..., Any], name: str, notes: Notes) -> None:
        self.fn, self.name, self.notes = fn, name, notes
        self.fingerprint = code_of(fn)

    def __call__(self, *args: Any, **more: Any) -> Any:
        """Call the function."""
        start, cpu = perf_counter(), thread_time()
        try:
            return self.fn(*args, **more)
        finally:
            self.notes.add(self.name, start, perf_counter() - start, thread_time() - cpu)

    def for_worker(self) -> "Timed":
        """Give one for a worker thread: tokenizers are its own."""
        return Timed(for_worker(self.fn), self.name, self.notes)

    def __getattr__(self, name: str) -> Any:
        """Look like the function: an encoder's tokenizer and settings are asked for."""
        if name.startswith("__") or name == "fn":
            raise AttributeError(name)
        return getattr(self.fn, name)


class TimedSource:
    """A source that notes the seconds of its reads."""

    def __init__(self, base: Any, notes: Notes) -> None:
        self.base, self.notes = base, notes

    def __len__(self) -> int:
        return len(self.base)

    def read(self, indices: Any, columns: Any = None) -> Any:
        """Read from the base."""
        start = perf_counter()
        try:
            return self.base.read(indices, columns)
        finally:
            self.notes.add(READ, start, perf_counter() - start)

    def __getattr__(self, name: str) -> Any:
        """Everything else is the base's."""
        if name.startswith("__") or name == "base":
            raise AttributeError(name)
        return getattr(self.base, name)


class _Items:
    """An iterable whose items note how long they took."""

    def __init__(self, base: Any, notes: Notes) -> None:
        self.base, self.notes = base, notes

    def __iter__(self) -> Iterator[Any]:
        items = iter(self.base)
        while True:
            start = perf_counter()
            try:
                item = next(items)
            except StopIteration:
                return
            self.notes.add(READ, start, perf_counter() - start)
            yield item

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "base":
            raise AttributeError(name)
        return getattr(self.base, name)


def _made_of(make: Any, notes: Notes) -> Any:
    if not callable(make) or hasattr(make, "__iter__"):
        return _Items(make, notes)

    @wraps(make)
    def made(*args: Any, **more: Any) -> Any:
        return _Items(make(*args, **more), notes)

    return made


def instrumented(
    feed: Feed, notes: Notes, change: "Callable[[st.Map, str], Any] | None" = None, begin: str = ""
) -> tuple[Feed, dict[str, str]]:
    """Give the same feed with clocks in it, and name of each clock -> function as typed.

    Args:
        feed: is not changed.
        notes: where seconds go.
        change: stage and clock -> the function that is run in its place; None runs its own.
        begin: of the names of clocks.
    """
    labels: dict[str, str] = {}
    out: list[st.Stage] = []
    for number, stage in enumerate(feed.stages):
        made: Any = stage
        if isinstance(stage, st.From):
            made = replace(stage, source=TimedSource(stage.source, notes))
        elif isinstance(stage, st.FromStream):
            made = replace(stage, make=_made_of(stage.make, notes))
        elif isinstance(stage, st.Concat | st.Mix):
            inner: list[tuple[str, Feed]] = []
            for part, (name, one) in enumerate(stage.feeds):
                timed, more = instrumented(one, notes, change, f"{begin}{number}.{part}.")
                inner.append((name, timed))
                labels |= more
            made = replace(stage, feeds=tuple(inner))
        elif isinstance(stage, st.Map):
            clock = f"{begin}{number} map"
            labels[clock] = str(stage)[:80]
            fn = stage.fn if change is None else change(stage, clock)
            made = replace(stage, fn=Timed(fn, clock, notes))
        out.append(made)
    return Feed(tuple(out)), labels
