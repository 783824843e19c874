"""Files that appear whole or not at all, on a local disk.

Decides how a file is finished (temporary name, fsync, link or rename) and how a writer shows that it lives. Knows no
format.
"""

import ctypes
import errno
import fcntl
import glob
import os
import secrets
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

from thalweg.core.errors import RecordsError


@contextmanager
def writing(folder: Path) -> Generator[None]:
    """Turn what the system says while files are written into an error with a remedy.

    Raises:
        RecordsError: no space, no permission, a limit; the system's own error is its cause.
    """
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        fix = "free some space; what was there before is as it was" if full else "check the disk and permissions"
        raise RecordsError(f"cannot write: {error.strerror or error}", where=str(folder), fix=fix) from error


def sync_folder(folder: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_file(path: Path) -> None:
    """Make the bytes of a file durable."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def allocate(fd: int, start: int, size: int) -> bool:
    """Take room for bytes that will be written to a file, without changing its size; False where that cannot be."""
    keep_size = 1
    return not _fallocate()(fd, keep_size, ctypes.c_int64(start), ctypes.c_int64(size))


@cache
def _fallocate() -> Callable[..., int]:
    return getattr(ctypes.CDLL(None), "fallocate", None) or (lambda *_: -1)


def write_whole(path: Path, data: bytes, *, exclusive: bool = False, sync: bool = True) -> bool:
    """Let a file appear under its name with all of its bytes.

    Args:
        path: final name; its directory exists.
        data: all bytes.
        exclusive: leave a file that is there already as it is.
        sync: survive a power loss, not only a kill.

    Returns:
        False where `exclusive` found a file, else True.
    """
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
        try:
            with temporary.open("xb") as file:
                with suppress(OSError):  # a lock shows that this process lives; not all file systems have them
                    fcntl.flock(file, fcntl.LOCK_EX)
                file.write(data)
                file.flush()
                if sync:
                    os.fsync(file.fileno())
                try:
                    if exclusive:
                        os.link(temporary, path)
                    else:
                        temporary.rename(path)
                except FileExistsError:
                    return False
                except FileNotFoundError:  # taken for a dead one's just before the lock
                    if not path.parent.is_dir():
                        raise
                    continue
            if sync:
                try:
                    sync_folder(path.parent)
                except OSError:
                    if exclusive:  # the caller takes it for not there, and removes what it names
                        path.unlink(missing_ok=True)
                    raise
            return True
        finally:
            temporary.unlink(missing_ok=True)


NEW = ".new"  # ends the name of a lock file that is not locked yet


class Life:
    """Shows that this process still writes files of some name: a lock that the system drops when it dies.

    Args:
        path: the lock file; removed when the work ends.
        new: nobody else takes a file of this name. It appears with its lock, so that whoever looks never sees a file
            of a living process without.
    """

    def __init__(self, path: Path, *, new: bool = False) -> None:
        self.path, self._new = path, new
        self._fd = -1

    def begin(self) -> Self:
        """Take the lock.

        Raises:
            RecordsError: another living process has it.
        """
        at = self.path.with_name(self.path.name + NEW) if self._new else self.path
        while True:
            fd = os.open(at, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | (0 if self._new else fcntl.LOCK_NB))
            except OSError as error:
                os.close(fd)
                raise RecordsError("another process writes here", where=str(self.path)) from error
            try:
                if self._new:
                    at.rename(self.path)
                if os.fstat(fd).st_ino == self.path.stat().st_ino:
                    self._fd = fd
                    return self
            except FileNotFoundError:
                pass
            os.close(fd)  # somebody removed the file between open and lock: take the new one

    def end(self) -> None:
        """Remove the lock file and let go."""
        if self._fd >= 0:
            self.path.unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        """Take the lock."""
        return self.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go."""
        self.end()


def is_alive(lock: Path) -> bool:
    """Whether a living process holds this lock file; a missing file is held by nobody."""
    try:
        fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def remove_left(folder: Path, start: str) -> None:
    """Remove what dead processes left in a folder: names that begin so, whose lock file (`.life`) nobody holds."""
    for lock in folder.glob(f"{glob.escape(start)}*.life*"):
        if is_alive(lock):
            continue
        if lock.suffix == ".life":
            for left in folder.glob(f"{glob.escape(lock.stem)}*"):
                if left.is_dir():
                    shutil.rmtree(left, ignore_errors=True)
                elif left != lock:
                    left.unlink(missing_ok=True)
        lock.unlink(missing_ok=True)


_REMOTE = ("nfs", "cifs", "smb", "fuse", "9p", "ceph", "gluster", "lustre", "beegfs", "afs")


def is_remote_mount(path: Path) -> bool:
    """Whether a path lies on a network or FUSE file system, where a mapped file may vanish under its reader."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False  # not Linux: local is the better guess
    target = str(path.resolve())
    best, kind = -1, ""
    for line in lines:
        left, _, right = line.partition(" - ")
        point = left.split()[4].encode().decode("unicode_escape")
        inside = target == point or target.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best:
            best, kind = len(point), right.split()[0]
    return kind.startswith(_REMOTE)
