"""Which leg of a ledger a process belongs to, where no process group tells.

Decides from the files that are there: ranks that were started together (one launcher, one layout, one place) form a
leg; a rank that comes again, or comes after the others died, begins the next. A file is locked while its process
lives, and closed with a mark when the run ended in order. Knows no rows.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from thalweg.feed.ledgerfile import CLOSED

try:
    import fcntl
except ImportError:  # pragma: no cover  (Windows: no locks, so a leg counts as alive)
    fcntl = None  # type: ignore[assignment]

ALIKE = ("world", "job", "micro", "accumulation", "fingerprint", "step", "epoch", "index")
_LAUNCHERS = (  # what launchers set alike for all processes of a start, and anew for the next
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT",
    "LSB_JOBID", "PBS_JOBID", "MASTER_ADDR", "MASTER_PORT", "THALWEG_RUN",
)  # fmt: skip


def job() -> str:
    """Digest what the launcher says of this start; "" where it says nothing. THALWEG_RUN may say it too."""
    said = [f"{name}={os.environ[name]}" for name in _LAUNCHERS if name in os.environ]
    return hashlib.sha256("\n".join(said).encode()).hexdigest()[:12] if said else ""


def file_of(folder: Path, leg: int, rank: int, world: int) -> Path:
    """Name the file of a rank in a leg."""
    return folder / f"{leg:06d}-{rank:05d}of{world:05d}.ledger"


def proposed(folder: Path, rank: int, head: Mapping[str, Any]) -> int:
    """Give the number of the leg that a rank belongs to, as far as the files tell.

    Args:
        folder: of the ledger.
        rank: of this process.
        head: its layout, launcher and place.
    """
    files = sorted(folder.glob("*.ledger")) if folder.exists() else []
    if not files:
        return 0
    newest = int(files[-1].name[:6])
    there = [p for p in files if int(p.name[:6]) == newest]
    if any(int(p.name[7:12]) == rank for p in there):
        return newest + 1
    heads = [_head(p) for p in there]
    alike = all(h is not None and all(h.get(k) == head.get(k) for k in ALIKE) for h in heads)
    named = "THALWEG_RUN" in os.environ  # the start has a name of its own, so the dead are of this one too
    goes_on = named or any(map(alive, there)) or all(map(ended, there))
    return newest if alike and goes_on else newest + 1


def _head(path: Path) -> dict[str, Any] | None:
    with path.open("rb") as file:
        line = file.readline()
    return json.loads(line) if line.endswith(b"\n") else None


def begin(path: Path, head: Mapping[str, Any]) -> IO[bytes]:
    """Let a rank's file appear with its lock and its first line: another rank that looks meanwhile sees all or nothing.

    Raises:
        FileExistsError: the rank has a file in this leg.
    """
    early = path.with_name(f".{path.name}.{os.getpid()}")
    file = early.open("wb")
    try:
        hold(file)
        file.write(json.dumps(head).encode() + b"\n")
        file.flush()
        try:
            os.link(early, path)
        except FileExistsError:
            raise
        except OSError:  # no hard links there
            early.rename(path)
    except BaseException:
        file.close()
        raise
    finally:
        early.unlink(missing_ok=True)
    return file


def hold(file: IO[bytes]) -> None:
    """Lock a file for as long as this process has it open; where locks are not to be had, nothing."""
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return


def locked(file: IO[bytes]) -> bool:
    """Say whether a process holds a file (see `hold`) that was opened here once more; False where there are no locks.

    Raises:
        OSError: it cannot be told.
    """
    if fcntl is None:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def alive(path: Path) -> bool:
    """Say whether the process that writes a file lives; True where that cannot be told."""
    if fcntl is None:
        return True
    with path.open("rb") as file:
        try:
            return locked(file)
        except OSError:
            return True


def ended(path: Path) -> bool:
    """Say whether a file was closed in order."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - len(CLOSED)))
        return file.read() == CLOSED
