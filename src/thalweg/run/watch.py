"""How far a run is, seen from outside: ranks, documents, bytes, who is at work, who failed.

Decides what the state of a logging directory is. Only reads; one listing of each directory, whatever the number of
ranks.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from thalweg.core.errors import InputError
from thalweg.run.ledger import Ledger, newest

if TYPE_CHECKING:
    from pathlib import Path

FRESH = 30.0  # seconds after which a rank's last report of progress is old


@dataclass(frozen=True, slots=True)
class RunState:
    """A run at one moment.

    Args:
        path: its logging directory.
        generation: which beginning of the run this is, from 0.
        tasks: ranks.
        complete: ranks that are complete.
        unpublished: ranks whose outcome is decided and not yet in its place; the next launch finishes them.
        running: rank -> (documents, bytes, seconds since its last report).
        silent: ranks that began, and neither ended nor reported for a while.
        missing: ranks that are not complete.
        documents, bytes: read so far, complete ranks and those at work.
        size: bytes of all inputs; 0 where unknown.
    """

    path: Path
    generation: int
    tasks: int
    complete: int
    unpublished: list[int]
    running: dict[int, tuple[int, int, float]]
    silent: list[int]
    missing: list[int]
    documents: int
    bytes: int
    size: int
    failed: list[int] = field(default_factory=list[int])

    def to_dict(self) -> dict[str, Any]:
        """Write as JSON-like data."""
        running = {str(r): {"documents": d, "bytes": b, "age": round(a, 1)} for r, (d, b, a) in self.running.items()}
        return {
            "path": str(self.path),
            "generation": self.generation,
            "tasks": self.tasks,
            "complete": self.complete,
            "missing": self.missing,
            "unpublished": self.unpublished,
            "running": running,
            "silent": self.silent,
            "failed": self.failed,
            "documents": self.documents,
            "bytes": self.bytes,
            "size": self.size,
        }


def look(root: Path) -> RunState:
    """Look at a logging directory.

    Raises:
        InputError: no run has begun there.
    """
    run = newest(root)
    if run is None:
        raise InputError("no run has begun here", where=str(root), fix="give the logging_dir of an executor")
    ledger = Ledger(root, *run)
    tasks = int(ledger.record["tasks"])
    marked = ledger.marked()
    heard = beats(root, set(range(tasks)) - marked)
    running = {r: b for r, b in heard.items() if b[2] <= FRESH}
    begun = set(ledger.all_attempts()) - marked
    files = [f for i in ledger.record["manifest"]["inputs"].values() for f in i["files"]]
    documents, size = _done(root)
    return RunState(
        path=root,
        generation=ledger.generation,
        tasks=tasks,
        complete=len(marked),
        unpublished=sorted(ledger.committed() - marked),
        running=running,
        silent=sorted(begun - running.keys()),
        missing=[r for r in range(tasks) if r not in marked],
        documents=documents + sum(b[0] for b in running.values()),
        bytes=size + sum(b[1] for b in running.values()),
        size=sum(f[1] for f in files),
        failed=failed_ranks(root, marked),
    )


def beats(root: Path, ranks: set[int]) -> dict[int, tuple[int, int, float]]:
    """Read the last reports of ranks: rank -> (documents, bytes, seconds since)."""
    found: dict[int, tuple[int, int, float]] = {}
    live = root / "live"
    now = time.time()
    for path in live.iterdir() if live.is_dir() else ():
        if path.name.isdigit() and int(path.name) in ranks:
            try:
                beat = msgspec.json.decode(path.read_bytes())
            except (OSError, msgspec.DecodeError):
                continue
            found[int(path.name)] = (beat["documents"], beat["bytes"], max(0.0, now - beat["time"]))
    return found


def _done(root: Path) -> tuple[int, int]:
    """Documents and bytes that complete ranks have read."""
    documents = size = 0
    folder = root / "stats"
    for path in folder.glob("*.json") if folder.is_dir() else ():
        data = msgspec.json.decode(path.read_bytes())
        if isinstance(data, dict):
            read = data.get("read", [0, 0])
            documents, size = documents + read[0], size + read[1]
    return documents, size


def log_of(root: Path, rank: int) -> Path:
    """Give the path of a rank's log."""
    return root / "logs" / f"task_{rank:05d}.log"


def failed_ranks(root: Path, marked: set[int]) -> list[int]:
    """List the ranks whose last attempt wrote an error into its log and that are not complete."""
    found: list[int] = []
    for path in (root / "logs").glob("task_*.log"):
        rank = int(path.stem.partition("_")[2])
        if rank not in marked and b" ERROR " in _tail(path):
            found.append(rank)
    return sorted(found)


def _tail(path: Path, size: int = 1 << 16) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - size))
        text = file.read()
    return text[text.rfind(b" begins\n") + 1 :]
