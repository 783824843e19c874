"""Plans kept on the node: blocks of packed rows, and the number of rows of every block, made once for all ranks.

Decides what is worth keeping, under which key, and how the blocks of an epoch are counted together: in worker
processes, with progress where it takes long. What a block holds is `plan.epoch`; the order does not depend on any of
this.
"""

import io
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np

from thalweg.core.errors import RecordsError
from thalweg.core.state import digest
from thalweg.feed import planfile
from thalweg.feed.feed import Feed
from thalweg.feed.passes import cache_folder
from thalweg.plan.epoch import Block, Order
from thalweg.store.cache import NodeCache
from thalweg.work.cpus import usable_cpus
from thalweg.work.processes import supervise

BLOCK_DRAWS = 1 << 16  # blocks from this size on are kept: reading one back takes a tenth of planning it
TOGETHER = 8  # blocks of an epoch from which on they are counted together and the counts are kept
MAX_BYTES = 1 << 30  # of plans on a node; those used longest ago go first
SENDABLE = 1 << 24  # bytes of a feed that may be sent to workers: data held in memory is counted here instead
QUIET = 2.0  # seconds of counting before it is said how far it is
_FIELDS = ("source", "index", "offsets", "start", "stop", "lengths")


class NodePlans:
    """Keeps the plans of one feed under one seed. Disk trouble costs time, never the order.

    Args:
        feed: the feed.
        seed: the loader's.
        order: its order, whose `size` is that of blocks.
        identity: digest of all that the order of rows depends on.
    """

    def __init__(self, feed: Feed, seed: int, order: Order, identity: str) -> None:
        self.feed, self.seed, self.order, self.identity = feed, seed, order, identity
        self._cache: NodeCache | None = None

    def _key(self, what: str, *place: int) -> str:
        parts = "-".join(str(p) for p in place)
        return (
            f"{what}-{digest([self.identity, self.order.size, self.order.repack, planfile.VERSION], size=12)}-{parts}"
        )

    def _kept(self, key: str, make: Callable[[Path], None]) -> Path | None:
        """Give the file of a key, made once on the node; None where the disk does not take it."""
        try:
            if self._cache is None:
                self._cache = NodeCache(cache_folder() / "plans", MAX_BYTES)
            return self._cache.get(key, make)
        except (OSError, RecordsError):
            return None

    # ---- blocks

    def block(self, epoch: int, number: int, plan: Callable[[], Block]) -> Block:
        """Give a block that this node has planned, or plan it for all its ranks."""
        first, stop, entry = self.order.bounds(epoch if self.order.repack else 0, number)
        if stop - first < BLOCK_DRAWS or not self.order.repack:
            return plan()
        made: list[Block] = []

        def write(path: Path) -> None:
            made.append(plan())
            arrays = {k: v for k in _FIELDS if (v := getattr(made[0], k)) is not None}
            planfile.write(path, arrays, made[0].loss)

        path = self._kept(self._key("block", epoch, number), write)
        if made:
            return made[0]
        if path is not None:
            with suppress(OSError, ValueError):
                found, loss = planfile.read(path)
                arrays: Any = {k: v.astype(np.int32 if k == "source" else np.int64) for k, v in found.items()}
                return Block(epoch, number, entry, **arrays, loss={k: (d, t) for k, (d, t) in loss.items()})
            path.unlink(missing_ok=True)  # torn, by a machine that went down: the next one makes it anew
        return plan()

    # ---- counts

    def counts(self, epoch: int) -> dict[int, int]:
        """Give the rows of every block of an epoch; empty where there are few blocks, or samples without an end."""
        blocks = self.order.num_blocks(epoch)
        if blocks < TOGETHER or not self.order.repack:
            return {}
        made: list[list[int]] = []

        def write(path: Path) -> None:
            made.append(list(self._counted(epoch, blocks)))
            path.write_text(json.dumps(made[0]))

        path = self._kept(self._key("counts", epoch), write)
        if not made and path is not None:
            with suppress(OSError, ValueError):
                made.append(json.loads(path.read_text()))
            if not made:
                path.unlink(missing_ok=True)
        return dict(enumerate(made[0])) if made and len(made[0]) == blocks else {}

    def _counted(self, epoch: int, blocks: int) -> Iterator[int]:
        """Count all blocks: in processes where the feed can be sent there, else here."""
        job = _sendable(self.feed, self.seed, self.order.size)
        workers = min(usable_cpus(ranks=1), blocks)
        numbers, progress = range(blocks), _Progress(epoch, blocks)
        if job is None or workers < 2:
            for number in numbers:
                yield progress(self.order.count(epoch, number))
            return
        found: dict[int, int] = {}
        jobs = [(epoch, numbers[k : k + TOGETHER]) for k in range(0, blocks, TOGETHER)]
        for outcome in supervise(CountBlocks(job), jobs, workers=workers, retries=1):
            if outcome.failure is None:
                for number, rows in zip(outcome.job[1], outcome.result, strict=True):
                    found[number] = progress(rows)
        for number in numbers:  # what a worker could not count is counted here, where an error is the user's own
            yield found[number] if number in found else progress(self.order.count(epoch, number))


class CountBlocks:
    """Counts the rows of blocks in a worker process, which plans the feed once.

    Args:
        job: a pickled (feed, seed, draws of a block).
    """

    def __init__(self, job: bytes) -> None:
        self.job = job
        self._order: Order | None = None

    def __call__(self, job: tuple[int, Sequence[int]], send: Callable[[Any], None]) -> list[int]:
        """Count some blocks of an epoch."""
        from thalweg.feed.compile import compile_feed  # noqa: PLC0415  (it imports what imports this)

        del send
        if self._order is None:
            feed, seed, size = cloudpickle.loads(self.job)
            self._order = compile_feed(feed, seed).order
            self._order.lay_blocks(size)
        epoch, numbers = job
        return [self._order.count(epoch, number) for number in numbers]


class _TooLargeError(Exception):
    pass


class _Bounded(io.BytesIO):
    def write(self, data: Any, /) -> int:
        if self.tell() + memoryview(data).nbytes > SENDABLE:
            raise _TooLargeError
        return super().write(data)


def _sendable(feed: Feed, seed: int, size: int) -> bytes | None:
    """Pickle a feed for workers; None where it does not pickle or holds its data in memory."""
    out = _Bounded()
    try:
        cloudpickle.dump((feed, seed, size), out, protocol=5)
    except Exception:  # noqa: BLE001  user objects may raise anything: then the counting is done here
        return None
    return out.getvalue()


class _Progress:
    """Says on stderr how far a long count is, every few seconds."""

    def __init__(self, epoch: int, blocks: int) -> None:
        self.epoch, self.blocks, self.done = epoch, blocks, 0
        self.start = self.said = time.monotonic()

    def __call__(self, rows: int) -> int:
        self.done += 1
        now = time.monotonic()
        if now - self.said > QUIET:
            self.said = now
            left = (now - self.start) / self.done * (self.blocks - self.done)
            text = f"counting rows of epoch {self.epoch}: {self.done:,} of {self.blocks:,} blocks, {left:,.0f} s left"
            sys.stderr.write(text + "\n")
        return rows
