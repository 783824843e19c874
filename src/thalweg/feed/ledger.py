"""The ledger: which rows a rank handed over, with a digest of the ids that were read with the data, and the proof.

Decides when entries are written and what they prove: every row of an epoch once over all ranks, restarts and
topologies, rolled-back steps left out. The form on disk is `feed.ledgerfile`, who belongs to which leg `feed.legs`;
what a row should hold is known to a feed, which may be given for the proof.
"""

import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic, time
from typing import IO, Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from thalweg.core.topology import Topology
from thalweg.feed import legs
from thalweg.feed.ledgerfile import CLOSED, EVENT, FULL, RUN, At, Following, at_of, runs_of
from thalweg.feed.ledgerstream import Key, RowCoder, runs_of_rows
from thalweg.plan.steps import Place, Span

BUFFER = 1 << 20  # bytes held until written at most
HELD_S = 0.02  # entries wait for company no longer: only one rank may be asked for its state, and any may be killed


class Ledger:
    """Writes one rank's part. Of several processes with the same rows one writes.

    Args:
        folder: of the whole ledger, shared by ranks and legs.
        topology: the place of this process.
    """

    def __init__(self, folder: str, topology: Topology) -> None:
        self.folder, self.topology = Path(folder), topology
        self._buffer, self._lock = bytearray(), threading.Lock()
        self._file: IO[bytes] | None = None
        self._written = 0.0  # when entries were last put into the file
        self._head: dict[str, Any] = {}
        self._following = Following({})
        self._next: At | None = None  # what needs no words, where it comes next
        self._rows: RowCoder | None = None
        self.writes = topology.cp_rank == 0
        self.leg: int | None = None

    def describe(self, head: dict[str, Any]) -> None:
        """Say how this leg runs and where it begins: micro, accumulation, fingerprint, step, ..."""
        t = self.topology
        said = {"rank": t.dp_rank, "world": t.dp_size, "job": legs.job(), **head}
        self._head = json.loads(json.dumps(said))  # as it is read back, so that it equals that of the other ranks
        self._following = Following(self._head)

    def agree(self, gather: Callable[[str], list[str]]) -> None:
        """Settle with all processes which leg this is, and which of those with the same rows writes."""
        if self.leg is not None:
            return
        mine = uuid4().hex
        texts = gather(f"{self._proposed()} {self.topology.dp_rank} {mine} {int(self.writes)}")
        told = [text.split(" ") for text in texts]
        self.leg = max(int(number) for number, *_ in told)
        first = next((name for _, rank, name, w in told if int(rank) == self.topology.dp_rank and w == "1"), None)
        self.writes = first == mine

    def _proposed(self) -> int:
        return legs.proposed(self.folder, self.topology.dp_rank, self._head)

    def start(self) -> None:
        """Open the file before the first row, so that every rank that took part is known."""
        if self._file is not None or not self.writes:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        t = self.topology
        if self.leg is None:
            self.leg = self._proposed()
        head = {"leg": self.leg, "time": time(), **self._head}
        self._file = legs.begin(legs.file_of(self.folder, self.leg, t.dp_rank, t.dp_size), head)

    def event(self, name: str, place: Place, step: int) -> None:
        """Write what happened: resumed or restarted, where, and at which step."""
        text = json.dumps({"event": name, "epoch": place.epoch, "index": place.passed, "step": step}).encode()
        with self._lock:
            self._buffer += b"\x02" + EVENT.pack(len(text)) + text
            self._next, self._rows = None, None

    def add(self, step: int, micro: int, spans: tuple[Span, ...], digests: bytes) -> None:
        """Write a micro-batch that was handed over.

        Args:
            step, micro: its place.
            spans: its rows.
            digests: uint64 of each row, end to end.
        """
        if not self.writes:
            return
        at: At | None = None
        if len(spans) == 1:
            epoch, _, start, stop, first, _, mark = spans[0]
            at = (step, micro, epoch, first, stop - start) if mark is None else None
        with self._lock:
            if at is not None and at == self._next:
                self._buffer += b"\x00"
            else:
                runs = runs_of(spans)
                at = at_of(step, micro, runs)
                self._buffer += b"\x01" + FULL.pack(step, micro, len(runs), len(digests) // 8)
                for run in runs:
                    self._buffer += RUN.pack(run.epoch, run.index, run.count, run.repeated)
            self._buffer += digests
            self._next = None if at is None else self._following(at)
        self._flush_when_due()

    def add_rows(self, step: int, micro: int, keys: Sequence[Key], digests: NDArray[np.uint64]) -> None:
        """Write a micro-batch of a stream that was handed over.

        Args:
            step, micro: its place.
            keys: (sub-stream, epoch, number of the row) of each row.
            digests: uint64 (r,), one for each.
        """
        if not self.writes:
            return
        runs, order = runs_of_rows(keys)
        with self._lock:
            if self._rows is None:
                self._rows = RowCoder(int(self._head.get("accumulation", 1)))
            self._buffer += b"\x03" + self._rows.encode(step, micro, runs) + digests[order].tobytes()
        self._flush_when_due()

    def _flush_when_due(self) -> None:
        """Put entries into the file where they are many or have waited: at every step, unless steps are very short."""
        if len(self._buffer) > BUFFER or monotonic() - self._written > HELD_S:
            self.flush()

    def flush(self) -> None:
        """Put everything handed over so far into the file."""
        with self._lock:
            if not self._buffer or self._file is None:
                return
            self._file.write(self._buffer)
            self._file.flush()
            self._buffer.clear()
            self._written = monotonic()

    def close(self) -> None:
        """Write what is left, and that the run ended in order."""
        self.flush()
        if self._file is not None and not self._file.closed:
            self._file.write(CLOSED)
            self._file.close()


def verify_ledger(folder: str | Path, feed: Any = None, seed: int | None = None) -> Any:
    """Prove from a ledger that each row counts once; see `feed.proof.verify_ledger`."""
    from thalweg.feed.proof import verify_ledger as prove  # noqa: PLC0415  (the proof reads what this file writes)

    return prove(folder, feed, seed)
