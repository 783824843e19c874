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

import msgspec

from thalweg.run.chain import Chain
from thalweg.run.commit import abandon, commit, publish, record
from thalweg.run.ledger import Attempt, Ledger
from thalweg.run.outputs import checksums, name_patterns, redirect
from thalweg.store.claim import fsync_dir

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
        ledger: the generation's directories.
        world_size: ranks of the run.
        environment: variables set while a rank runs.
        delay: ranks start after a random part of this many seconds.
    """

    pipeline: Copies
    ledger: Ledger
    world_size: int
    environment: tuple[tuple[str, str], ...] = ()
    delay: float = 0

    def __call__(self, rank: int, send: Callable[[Any], None]) -> dict[str, Any]:
        """Run one rank and return its statistics as data; `send((documents, bytes))` reports progress."""
        with rank_log(self.ledger.root, rank):
            if self.delay:
                time.sleep(random.uniform(0, self.delay))  # noqa: S311  (spreads the load of a start; nothing depends on it)
            os.environ.update(dict(self.environment))
            began = time.perf_counter()
            log.info("rank %d of %d begins", rank, self.world_size)
            try:
                stats = self._attempt(rank, send, began)
            except BaseException:
                log.exception("rank %d failed", rank)
                raise
            log.info("rank %d is complete after %.1f s", rank, time.perf_counter() - began)
            return stats

    def _attempt(self, rank: int, send: Callable[[Any], None], began: float) -> dict[str, Any]:
        attempt = self.ledger.begin(rank)
        try:
            pipeline = self.pipeline.one()
            outside: list[Path] = []
            stages = redirect(pipeline, lambda k, final: self._stage(attempt, k, final, outside))
            attempt = Attempt(attempt.rank, attempt.id, attempt.path, tuple(outside))
            chain = Chain(pipeline, rank, self.world_size)
            with beating(chain, send, self.ledger.root / "live" / f"{rank:05d}"):
                chain.drain()
            stats = chain.stats()
            stats.seconds.update(time.perf_counter() - began, "rank")
            data = stats.to_dict() | {"rank": rank, "attempt": attempt.id, "read": list(chain.progress())}
            record(attempt, stages, checksums(pipeline), data, name_patterns(pipeline, rank))
        except BaseException:
            abandon(attempt)
            raise
        if not commit(self.ledger, attempt):
            log.warning("another attempt of rank %d was faster; this one's work is dropped", rank)
            abandon(attempt)
        publish(self.ledger, rank)
        (self.ledger.root / "live" / f"{rank:05d}").unlink(missing_ok=True)
        return data

    def _stage(self, attempt: Attempt, number: int, final: str, outside: list[Path]) -> str:
        if final in self.ledger.record.get("outside", ()):
            home = self.ledger.stage_root(final) / attempt.path.name
            home.mkdir()
            outside.append(home)
            return str(home)
        stage = attempt.path / f"o{number}"
        stage.mkdir()
        fsync_dir(attempt.path)
        return str(stage)


@contextmanager
def beating(chain: Chain, send: Callable[[Any], None], live: Path) -> Generator[None]:
    """Report progress while the block runs: to the parent, and into a small file that `status` reads."""
    stop = threading.Event()

    def beat() -> None:
        turns = 0
        while not stop.wait(BEAT):
            documents, size = chain.progress()
            send((documents, size))
            if turns % 4 == 0:
                _note(live, documents, size)
            turns += 1

    thread = threading.Thread(target=beat, name="thalweg-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    send(chain.progress())


def _note(live: Path, documents: int, size: int) -> None:
    try:
        live.parent.mkdir(exist_ok=True)
        fresh = live.with_name(f".{live.name}.{os.getpid()}")
        fresh.write_bytes(msgspec.json.encode({"documents": documents, "bytes": size, "time": time.time()}))
        fresh.replace(live)
    except OSError:
        log.debug("progress could not be noted", exc_info=True)


@contextmanager
def rank_log(root: Path, rank: int) -> Generator[None]:
    """Append everything that is logged in this process to the rank's log file; earlier attempts' lines stay."""
    folder = root / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"task_{rank:05d}.log"
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
