"""What a writer behind a URL leaves there when it dies while it copies, and how the next one clears it away.

Before a writer copies its files it leaves the note `writing.PREFIX`; before its rows appear it settles `fate.PREFIX`,
which only one can create. Whoever finds the note of a writer that died settles the same name first and then removes the
files and uploads of that prefix: a writer that was taken for dead and lives gets an error, never missing files.
Decides whose files may go. Knows no row.
"""

import contextlib
import json
import os
import shutil
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

from thalweg.core.errors import RecordsError
from thalweg.store import fs
from thalweg.store.remote import Remote

NOTE, FATE = "writing.", "fate."
STALE = 3600.0  # seconds after which a writer on another machine that says nothing is taken for dead
RENEW = 300.0  # and how often it says something
STAGE = "thalweg-records-"  # where files lie on this machine until they are copied


def _machine() -> str:
    """Name the machine, its start and the processes that this one can see."""
    boot, seen = "", ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        seen = str(Path("/proc/self/ns/pid").stat().st_ino)
    return f"{socket.gethostname()} {boot} {seen}"


def _birth(pid: int) -> str | None:
    """Give when a process began, in ticks of the machine; None where it is not there, "" where it cannot be told."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:
        return ""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19]
    return ""


class Writing:
    """A writer that copies files behind a URL.

    Args:
        remote: where.
        prefix: of the names of its files, which nobody else has.
    """

    def __init__(self, remote: Remote, prefix: str) -> None:
        self.remote, self.prefix, self._said = remote, prefix, 0.0

    def say(self) -> None:
        """Leave the note, or renew it when it is old. Call it before the first file and after each."""
        now = time.time()
        if now - self._said > RENEW:
            about = {"machine": _machine(), "pid": os.getpid(), "birth": _birth(os.getpid()), "time": now}
            self.remote.write_bytes(NOTE + self.prefix, json.dumps(about).encode())
            self._said = now

    def settle(self) -> None:
        """Make sure that nobody has taken this writer for dead: from here on nobody removes its files.

        Raises:
            RecordsError: somebody has.
        """
        if not self.remote.create(FATE + self.prefix, b"kept"):
            raise RecordsError(
                "this writer was taken for dead, and its files were removed", where=self.remote.url, fix="write again"
            )

    def end(self) -> None:
        """Take the notes away, once the rows have appeared."""
        self.remote.remove(NOTE + self.prefix)
        self.remote.remove(FATE + self.prefix)

    def give_up(self) -> None:
        """Remove what was copied, as far as the server lets us; the next writer does the rest."""
        with contextlib.suppress(Exception):
            if self.remote.create(FATE + self.prefix, b"void"):
                _clear(self.remote, self.prefix)
                self.end()


def sweep(remote: Remote) -> list[str]:
    """Remove what writers that died left behind a URL: files that no manifest names, and uploads without an end.

    Returns:
        The prefixes that were cleared away.
    """
    out: list[str] = []
    for note in remote.named(NOTE):
        prefix = note.removeprefix(NOTE)
        try:
            about = json.loads(remote.read(note))
        except FileNotFoundError:
            continue
        died = _died(about)
        if not died and (died is False or time.time() - float(about["time"]) < STALE):
            continue
        void = remote.create(FATE + prefix, b"void")
        if not void and not died:
            continue  # about to appear, as far as anybody can tell
        if not _is_named(remote, prefix):
            _clear(remote, prefix)
            out.append(prefix)
        remote.remove(note)
        if died:  # else its word stays: the writer may come back
            remote.remove(FATE + prefix)
    return out


def _died(about: dict[str, Any]) -> bool | None:
    """Say whether a writer died; None where it ran on another machine."""
    if about["machine"] != _machine():
        return None
    return bool(_birth(int(about["pid"])) != about["birth"])


def _is_named(remote: Remote, prefix: str) -> bool:
    """Say whether a manifest, or that of a part, names files of a prefix."""
    names = [*remote.named("manifest."), *remote.named("part.")]
    return any(prefix.encode() in remote.read(name) for name in names)


def _clear(remote: Remote, prefix: str) -> None:
    remote.end_uploads(prefix + ".")
    for name in remote.named(prefix + "."):
        remote.remove(name)


def sweep_stages() -> None:
    """Remove the local files of writers that died on this machine before or while they copied."""
    for stage in Path(tempfile.gettempdir()).glob(STAGE + "*"):
        with contextlib.suppress(OSError):
            lives = list(stage.glob(".*.life"))
            if lives and not any(map(fs.is_alive, lives)):
                shutil.rmtree(stage, ignore_errors=True)
