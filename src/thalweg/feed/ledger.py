"""The ledger: which rows this rank handed over, with a digest of the ids that were read with the data.

Decides the form on disk: one file a rank and leg (a start, or a continuation from a state), nine bytes a row as long
as nothing unusual happens. Knows no plan; `feed.verify` compares ranks and legs.

A file is one line of JSON (the leg), then entries: a byte that says its kind, then
  0  the micro-batch that follows from the one before: row digests (uint64 each) only;
  1  step, micro-batch, runs of rows (epoch, index, count), then row digests;
  2  an event: length, JSON.
"""

import json
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from thalweg.core.topology import Topology
from thalweg.plan.steps import REPEATED, Place, Span

FULL = struct.Struct("<IHHH")  # step, micro, runs, rows
RUN = struct.Struct("<IQHB")  # epoch, first index, rows, repeated
EVENT = struct.Struct("<H")
BUFFER = 1 << 20  # bytes held until written, where no state is taken


@dataclass(frozen=True)
class Run:
    """Consecutive rows of an epoch."""

    epoch: int
    index: int
    count: int
    repeated: bool = False


@dataclass(frozen=True, eq=False)
class Entry:
    """A micro-batch as it was handed over: its rows (filler left out) and their digests, uint64."""

    step: int
    micro: int
    runs: tuple[Run, ...]
    digests: NDArray[np.uint64]


def runs_of(spans: tuple[Span, ...]) -> tuple[Run, ...]:
    """Write spans as runs; those that follow each other become one."""
    out: list[Run] = []
    for s in spans:
        n, again = s.stop - s.start, s.mark == REPEATED
        last = out[-1] if out else None
        if last is not None and (last.epoch, last.repeated, last.index + last.count) == (s.epoch, again, s.first):
            out[-1] = Run(last.epoch, last.index, last.count + n, again)
        else:
            out.append(Run(s.epoch, s.first, n, again))
    return tuple(out)


class Ledger:
    """Writes one rank's part.

    Args:
        folder: of the whole ledger, shared by ranks and legs.
        topology: the place of this process.
    """

    def __init__(self, folder: str, topology: Topology) -> None:
        self.folder, self.topology = Path(folder), topology
        self._buffer, self._lock = bytearray(), threading.Lock()
        self._file: IO[bytes] | None = None
        self._leg: dict[str, Any] = {}
        self._last: Entry | None = None
        self.leg: int | None = None

    def begin(self, leg: dict[str, Any]) -> None:
        """Say what leg this is: micro, accumulation, fingerprint, and the event that opened it."""
        self._leg.update(leg)

    def propose(self) -> int:
        """Give the number of the next leg, as far as this rank can see."""
        names = [p.name for p in self.folder.glob("*.ledger")] if self.folder.exists() else []
        mine = [int(n[:6]) for n in names if n[7:12] == f"{self.topology.dp_rank:05d}"]
        return max(mine, default=-1) + 1

    def event(self, name: str, place: Place, step: int) -> None:
        """Write what happened: resumed or restarted, where, and at which step."""
        text = json.dumps({"event": name, "epoch": place.epoch, "index": place.passed, "step": step}).encode()
        with self._lock:
            self._buffer += b"\x02" + EVENT.pack(len(text)) + text
            self._last = None

    def add(self, step: int, micro: int, spans: tuple[Span, ...], digests: NDArray[np.uint64]) -> None:
        """Write a micro-batch that was handed over."""
        runs = runs_of(spans)
        with self._lock:
            if self._follows(step, micro, runs):
                self._buffer += b"\x00"
            else:
                self._buffer += b"\x01" + FULL.pack(step, micro, len(runs), len(digests))
                for run in runs:
                    self._buffer += RUN.pack(run.epoch, run.index, run.count, run.repeated)
            self._buffer += digests.tobytes()
            self._last = Entry(step, micro, runs, digests[:0])
            full = len(self._buffer) > BUFFER
        if full:
            self.flush()

    def _follows(self, step: int, micro: int, runs: tuple[Run, ...]) -> bool:
        return self._last is not None and following(self._last, self._leg) == (step, micro, runs)

    def flush(self) -> None:
        """Put everything handed over so far into the file."""
        with self._lock:
            if not self._buffer:
                return
            if self._file is None:
                self._file = self._open()
            self._file.write(self._buffer)
            self._file.flush()
            self._buffer.clear()

    def _open(self) -> IO[bytes]:
        self.folder.mkdir(parents=True, exist_ok=True)
        t = self.topology
        if self.leg is None:
            self.leg = self.propose()
        head = {"leg": self.leg, "rank": t.dp_rank, "world": t.dp_size, "time": time(), **self._leg}
        file = (self.folder / f"{self.leg:06d}-{t.dp_rank:05d}of{t.dp_size:05d}.ledger").open("xb")
        file.write(json.dumps(head).encode() + b"\n")
        return file

    def close(self) -> None:
        """Write what is left."""
        self.flush()
        if self._file is not None:
            self._file.close()


def following(last: Entry, leg: dict[str, Any]) -> tuple[int, int, tuple[Run, ...]] | None:
    """Give (step, micro-batch, runs) that follow an entry when nothing unusual happens; None after an unusual one."""
    if len(last.runs) != 1 or last.runs[0].repeated:
        return None
    run, accumulation = last.runs[0], int(leg.get("accumulation", 1))
    stride = int(leg.get("stride", 0))
    micro = last.micro + 1
    step = last.step + micro // accumulation
    return step, micro % accumulation, (Run(run.epoch, run.index + stride, run.count),)


def read_leg(path: Path) -> tuple[dict[str, Any], list[Entry | dict[str, Any]]]:
    """Read one file: the leg, and its entries and events in order. An entry cut off at the end is left out."""
    data = path.read_bytes()
    end = data.index(b"\n")
    leg: dict[str, Any] = json.loads(data[:end])
    return leg, list(_entries(memoryview(data)[end + 1 :], leg))


def _entries(data: memoryview, leg: dict[str, Any]) -> Iterator[Entry | dict[str, Any]]:
    at, last = 0, None
    while at < len(data):
        kind, at = data[at], at + 1
        if kind == 2:
            if at + EVENT.size > len(data):
                return
            (size,) = EVENT.unpack_from(data, at)
            at += EVENT.size + size
            if at > len(data):
                return
            last = None
            yield json.loads(bytes(data[at - size : at]))
            continue
        if kind == 0:
            assert last is not None
            following_it = following(last, leg)
            assert following_it is not None
            step, micro, runs = following_it
            rows = runs[0].count
        else:
            if at + FULL.size > len(data):
                return
            step, micro, count, rows = FULL.unpack_from(data, at)
            at += FULL.size
            if at + count * RUN.size > len(data):
                return
            runs = tuple(
                Run(e, i, n, bool(again))
                for e, i, n, again in (RUN.unpack_from(data, at + k * RUN.size) for k in range(count))
            )
            at += count * RUN.size
        if at + 8 * rows > len(data):
            return
        last = Entry(step, micro, runs, np.frombuffer(data[at : at + 8 * rows], np.uint64))
        at += 8 * rows
        yield last
