"""The ledger: which rows a rank handed over, with a digest of the ids that were read with the data, and the proof.

Decides when entries are written and what they prove: every row of an epoch once over all ranks, restarts and
topologies, rolled-back steps left out. The form on disk is `feed.ledgerfile`; what a row should hold is known to a
feed, which may be given for the proof.
"""

import json
import threading
from pathlib import Path
from time import time
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from thalweg.core.topology import Topology
from thalweg.feed.ledgerfile import EVENT, FULL, RUN, Entry, Run, following, runs_of
from thalweg.plan.steps import Place, Span

BUFFER = 1 << 20  # bytes held until written, where no state is taken


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
        """Give the number of this leg, as far as this rank sees: the newest if it lacks this rank, else the next.

        Ranks of a process group take the largest of their proposals.
        """
        names = sorted(p.name for p in self.folder.glob("*.ledger")) if self.folder.exists() else []
        if not names:
            return 0
        newest, t = int(names[-1][:6]), self.topology
        ranks = {n[7:12] for n in names if int(n[:6]) == newest}
        joins = f"{t.dp_rank:05d}" not in ranks and names[-1][14:19] == f"{t.dp_size:05d}"
        return newest if joins else newest + 1

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


def verify_ledger(folder: str | Path, feed: Any = None, seed: int = 0) -> Any:
    """Prove from a ledger that each row counts once; see `feed.proof.verify_ledger`."""
    from thalweg.feed.proof import verify_ledger as prove  # noqa: PLC0415  (the proof reads what this file writes)

    return prove(folder, feed, seed)
