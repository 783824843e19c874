"""Exclusive and durable appearances of files on a POSIX file system.

Decides how a whole file appears under a name at most once (`link`), what is made durable and when. Knows nothing of
what the files mean. Time is never a proof of anything here.
"""

from __future__ import annotations

import fcntl
import gc
import os
import shutil
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

from thalweg.core.errors import RunError


def fsync_dir(path: str | Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def fsync_file(path: str | Path) -> None:
    """Make a file's bytes durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_durable(path: Path, data: bytes) -> None:
    """Write a new file and make its bytes durable; its name is durable after `fsync_dir`."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
    finally:
        os.close(fd)


def link_once(source: str | Path, target: str | Path) -> bool:
    """Make a whole file appear under a second name; False where that name exists already.

    Raises:
        FileNotFoundError: the source or the target's directory is gone.
    """
    try:
        os.link(source, target)
    except FileExistsError:
        return False
    return True


def create_once(path: Path, data: bytes) -> bool:
    """Make a file appear with its whole content, exclusively and durably; False where the name exists already."""
    temporary = path.with_name(f".{path.name}.{token_hex(8)}")
    write_durable(temporary, data)
    try:
        made = link_once(temporary, path)
    finally:
        temporary.unlink()
    fsync_dir(path.parent)
    return made


def seal(path: str) -> None:
    """Make sure that nobody can still write to a finished file through an open descriptor.

    The kernel grants a read lease only on a file that no process has open for writing. Where it is refused, or where
    leases do not work (network file systems), the bytes are copied into a fresh file that nobody else knows.
    """
    if _nobody_writes(path):
        return
    gc.collect()  # a writer that was dropped without being closed
    if _nobody_writes(path):
        return
    fresh = f"{path}.{token_hex(8)}"
    shutil.copyfile(path, fresh)
    Path(fresh).replace(path)


def _nobody_writes(path: str) -> bool:
    fd = os.open(path, os.O_RDONLY)
    try:
        if not hasattr(fcntl, "F_SETLEASE"):
            return False
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def make_generation_dir(path: Path, generation: int) -> None:
    """Make a directory that knows its generation; one that another process made first is as good.

    Raises:
        RunError: the directory there belongs to another generation.
    """
    temporary = path.with_name(f".{path.name}.{token_hex(8)}")
    temporary.mkdir(parents=True)
    write_durable(temporary / ".generation", str(generation).encode())
    fsync_dir(temporary)
    try:
        temporary.rename(path)
    except OSError:  # there already: not empty, since it holds `.generation`
        shutil.rmtree(temporary, ignore_errors=True)
        found = generation_of(path)
        if found != generation:
            raise RunError(
                f"the directory belongs to generation {found}, not {generation}",
                where=str(path),
                fix="start the run again: another launch has begun a new generation",
            ) from None
    fsync_dir(path.parent)


def generation_of(path: Path) -> int | None:
    """Read which generation a directory belongs to; None where there is none."""
    with suppress(FileNotFoundError, ValueError):
        return int((path / ".generation").read_text())
    return None
