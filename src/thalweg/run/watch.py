"""How far a run is, seen from outside: ranks, documents, bytes, who is at work, who failed.

Decides what the state of a logging directory is. Only reads; one listing of each directory, whatever the number of
ranks.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from thalweg.core.errors import InputError
from thalweg.run.logging_dir import logging_dir_at


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

    path: str
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
            "path": self.path,
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


def runs_below(place: str) -> list[str]:
    """List the logging directories below a directory that is none itself, sorted; none is looked for inside one."""
    if "://" in place or (Path(place) / "runs").is_dir() or not Path(place).is_dir():
        return []
    found: list[str] = []
    for folder, inner, _ in os.walk(place):
        if "runs" in inner and any(Path(folder, "runs").glob("*.json")):
            found.append(folder)
            inner.clear()
    return sorted(found)


def look(logging_dir: Any) -> RunState:
    """Look at a logging directory.

    Raises:
        InputError: no run has begun there.
    """
    home = logging_dir_at(logging_dir)
    newest = home.newest()
    if newest is None:
        raise InputError("no run has begun here", where=str(home), fix="give the logging_dir of an executor")
    run = home.look_at(*newest)
    tasks = int(run.record["tasks"])
    marked = run.marked()
    heard = home.heard(set(range(tasks)) - marked)
    running = {r: b for r, b in heard.items() if b[2] <= home.fresh}
    files = [f for i in run.record["manifest"]["inputs"].values() for f in i["files"]]
    documents, size = home.progress()
    return RunState(
        path=str(home),
        generation=run.generation,
        tasks=tasks,
        complete=len(marked),
        unpublished=sorted(run.unpublished(marked)),
        running=running,
        silent=sorted(run.begun() - marked - running.keys()),
        missing=[r for r in range(tasks) if r not in marked],
        documents=documents + sum(b[0] for b in running.values()),
        bytes=size + sum(b[1] for b in running.values()),
        size=sum(f[1] for f in files),
        failed=home.failed(marked),
    )
