"""One pass over all samples of a source: in parallel, in pieces that are kept, so that a killed pass goes on.

Decides the pieces, who makes which of them (the processes of a node share them), and that a pass says how far it is.
What a pass keeps of a sample is `feed.passes`; how calls run is `feed.mapread`.
"""

import os
import shutil
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.core.errors import RecordsError
from thalweg.feed import stages as st
from thalweg.feed.mapread import MapRows, Request, Result, read_ahead
from thalweg.store import fs
from thalweg.store.cache import NodeCache
from thalweg.work.cpus import local_ranks

Ints = NDArray[np.int64]
PIECE = 16_384  # samples of a piece: what a killed process has to do again at most
CALL = 512  # samples of one call
QUIET = 2.0  # seconds until a pass says how far it is
_here: ContextVar[bool] = ContextVar("_here", default=False)
_said: ContextVar["_Progress | None"] = ContextVar("_said", default=None)


@contextmanager
def in_this_thread(here: bool) -> Generator[None]:
    """Run the passes of a block in this thread, where `workers=0` asks for it: breakpoints work then."""
    token = _here.set(here)
    try:
        yield
    finally:
        _here.reset(token)


def results(call: MapRows, words: st.Map, a: int, b: int) -> Iterator[Result]:
    """Give the results of samples a to b in order, some hundred at a time; several workers where they pay.

    Args:
        call: what is done with them; of one source.
        words: mode, workers and timeout.
        a: first sample.
        b: end.
    """
    starts = range(a, b, CALL)
    items = ((i, _request(i, min(i + CALL, b))) for i in starts)
    if len(starts) < 2 or _here.get():
        for _, request in items:
            yield call(request)[0]
        return
    yield from (result for _, result in read_ahead(items, call, words, workers="auto", ahead=2, stall_after=300.0))


def _request(a: int, b: int) -> Request:
    index = np.arange(a, b)
    return Request(np.zeros(b - a, np.int32), index, np.zeros(b - a, np.int64))


def pieces(n: int) -> list[tuple[int, int]]:
    """Cut n samples into pieces; at least one."""
    return [(a, min(a + PIECE, n)) for a in range(0, max(n, 1), PIECE)]


def shared(folder: Path, n: int, make: Callable[[int, Path], None], done: Callable[[], bool], words: str) -> None:
    """Make all pieces of n samples, each in one process of the node, those that others work on last.

    Args:
        folder: where they are kept until the whole is there.
        n: samples in all.
        make: writes piece k, and at last the file that is given.
        done: the whole is there already.
        words: what the pass is, for progress.
    """
    cache = NodeCache(folder, 1 << 62)
    token = _said.set(_Progress(words, n, folder))
    try:
        _made(cache, len(pieces(n)), make, done)
    finally:
        _said.reset(token)


def _made(cache: NodeCache, count: int, make: Callable[[int, Path], None], done: Callable[[], bool]) -> None:
    first = count * int(os.environ.get("LOCAL_RANK", "0")) // max(local_ranks(), 1) % count
    order = [(first + k) % count for k in range(count)]
    for wait in (False, True):
        for k in order:
            key = f"{k:06d}"
            if done():
                return
            if not wait and (cache.has(key) or fs.is_alive(cache.folder / f".{key}.life")):
                continue
            cache.get(key, lambda path, k=k: make(k, path))  # type: ignore[misc]


class _Progress:
    """Says on stderr how far a pass is, every few seconds: pieces that are there, whoever made them, and the rest.

    Args:
        words: what the pass is.
        n: samples in all.
        folder: where they are kept.
    """

    def __init__(self, words: str, n: int, folder: Path) -> None:
        self.words, self.n, self.folder = words, n, folder
        self.start = self.said = time.monotonic()
        self.kept, self.samples = self._there(), 0

    def _there(self) -> int:
        return sum(name.isdecimal() for name in os.listdir(self.folder))  # noqa: PTH208 (a Path for each is slow)

    def some(self, samples: int) -> None:
        """Note samples that this process has made."""
        self.samples += samples
        now = time.monotonic()
        if now - self.said <= QUIET:
            return
        self.said, there = now, self._there()
        begun = self.samples % PIECE
        made = max((there - self.kept) * PIECE + begun, self.samples)  # by all processes, since this one began
        left = (now - self.start) / made * max(self.n - there * PIECE - begun, 0)
        kept = f" ({self.kept:,} from before)" if self.kept else ""
        told = f"{there:,} of {len(pieces(self.n)):,} pieces{kept}, {begun / min(PIECE, self.n):.0%} of the next"
        sys.stderr.write(f"{self.words}: {told}, {left:,.0f} s left\n")


def whole_array(
    path: Path, n: int, make: Callable[[int, int], NDArray[Any]], words: str, keep: Callable[..., NDArray[Any]]
) -> NDArray[Any]:
    """Give an array of n values that is made once on the node.

    Args:
        path: where it is kept, .npy.
        n: values.
        make: gives values a to b.
        words: what the pass is, for progress.
        keep: `passes.stored`.
    """
    parts = pieces(n)
    if path.exists() or len(parts) == 1:
        return keep(path, lambda: make(0, n))
    folder = path.with_suffix(".pieces")

    def write(k: int, target: Path) -> None:
        with target.open("wb") as file:
            np.save(file, make(*parts[k]))

    try:
        shared(folder, n, write, path.exists, words)
        found: NDArray[Any] = keep(
            path, lambda: np.concatenate([np.load(folder / f"{k:06d}") for k in range(len(parts))])
        )
    except (FileNotFoundError, RecordsError):
        if not path.exists():  # else another process has put the whole together and taken the pieces away
            raise
        found = np.load(path)
    shutil.rmtree(folder, ignore_errors=True)
    return found


def each(found: Iterator[Result], call: MapRows) -> Iterator[Sequence[Any]]:
    """Enter results into the books, in this thread, and give what they hold."""
    said = _said.get()
    for result in found:
        values = call.take(result)
        if said is not None:
            said.some(len(values))
        yield values
