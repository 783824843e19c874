"""One rank, from its own copy of the pipeline to its mark. The same code under every executor.

Decides nothing about who runs it or when. Reports progress through a callable, from a thread of its own.
"""

from __future__ import annotations

import logging
import os
import random
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thalweg.run.chain import Chain
from thalweg.run.logging_dir import LoggingDir, Made, Run
from thalweg.run.outputs import checksums, kept, name_patterns, redirect

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from thalweg.run.copies import Copies

log = logging.getLogger("thalweg.run")
BEAT = 0.5  # seconds between reports of progress


@dataclass(frozen=True, slots=True)
class Task:
    """Everything that a process needs to run ranks of a run.

    Args:
        pipeline: the steps, pickled; each rank takes its own copy.
        home: the logging directory.
        run: its generation.
        world_size: ranks of the run.
        environment: variables set while a rank runs.
        delay: ranks start after a random part of this many seconds.
    """

    pipeline: Copies
    home: LoggingDir
    run: Run
    world_size: int
    environment: tuple[tuple[str, str], ...] = ()
    delay: float = 0

    def __call__(self, rank: int, send: Callable[[Any], None]) -> dict[str, Any]:
        """Run one rank and return its statistics as data; `send((documents, bytes))` reports progress."""
        with self.home.log(rank) as path, rank_log(path):
            if self.delay:
                time.sleep(random.uniform(0, self.delay))  # noqa: S311  (spreads the load of a start; nothing depends on it)
            os.environ.update(dict(self.environment))
            began = time.perf_counter()
            log.info("rank %d of %d begins", rank, self.world_size)
            try:
                stats = self._attempt(rank, send, began)
            except BaseException as error:
                log.exception("rank %d failed", rank)
                self.home.ended(rank, f"{type(error).__name__}: {error}")
                raise
            log.info("rank %d is complete after %.1f s", rank, time.perf_counter() - began)
            self.home.ended(rank, None)
            return stats

    def _attempt(self, rank: int, send: Callable[[Any], None], began: float) -> dict[str, Any]:
        run = self.run
        attempt = run.begin(rank)
        try:
            pipeline = self.pipeline.one()
            stages = redirect(pipeline, lambda k, final: run.stage(attempt, k, final), run.generation)
            chain = Chain(pipeline, rank, self.world_size)
            with beating(chain, send, lambda documents, size: self.home.note(rank, documents, size)):
                chain.drain()
            stats = chain.stats()
            stats.seconds.update(time.perf_counter() - began, "rank")
            data = stats.to_dict() | {"rank": rank, "attempt": attempt.id, "read": list(chain.progress())}
            run.seal(attempt, Made(stages, checksums(pipeline), data, name_patterns(pipeline, rank), kept(pipeline)))
        except BaseException:
            run.abandon(attempt)
            raise
        if not run.commit(attempt):
            log.warning("another attempt of rank %d was faster; this one's work is dropped", rank)
            run.abandon(attempt)
        run.publish(rank)
        return data


@contextmanager
def beating(chain: Chain, send: Callable[[Any], None], note: Callable[[int, int], None]) -> Generator[None]:
    """Report progress while the block runs: to the parent, and where `status` finds it."""
    stop = threading.Event()

    def beat() -> None:
        turns = 0
        while not stop.wait(BEAT):
            documents, size = chain.progress()
            send((documents, size))
            if turns % 4 == 0:
                note(documents, size)
            turns += 1

    thread = threading.Thread(target=beat, name="thalweg-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    send(chain.progress())


@contextmanager
def rank_log(path: Path) -> Generator[None]:
    """Append everything that is logged in this process to the rank's log file; earlier attempts' lines stay."""
    handler = logging.FileHandler(path, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.setLevel(logging.INFO)
    top, ours = logging.getLogger(), logging.getLogger("thalweg")
    before = ours.level
    top.addHandler(handler)
    ours.setLevel(logging.INFO)
    sink = _loguru_sink(path)
    try:
        yield
    finally:
        if sink is not None:
            loguru: Any = sys.modules["loguru"]
            loguru.logger.remove(sink)
        top.removeHandler(handler)
        ours.setLevel(before)
        handler.close()


def _loguru_sink(path: Path) -> int | None:
    """Catch the log of steps of the datatrove package, where it is loaded."""
    loguru = sys.modules.get("loguru")
    return None if loguru is None else int(loguru.logger.add(str(path), level="INFO", mode="a"))
