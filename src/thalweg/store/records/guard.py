"""Notices that a mapped file was cut before it is read, where reading on would kill the process.

The system ends a process that touches mapped memory behind the end of its file; there is no catching that. So sizes are
compared before a read: at every call, until calls come so fast that this would show; then as often as costs them a
fiftieth, for one or two shards every tenth of a millisecond, and a `read` of so few looks each time. A loop that others
displace from the processor goes on being a busy one: only a thread that waited has paused. What is cut in between, or
under an array that was handed out, is beyond this; `io="pread"` maps nothing.
Decides how often it looks. Knows no rows.
"""

import os
import resource
from pathlib import Path
from time import monotonic

from thalweg.store.records.region import wrong_size

EAGER = 0.005  # seconds of looks at every call, after which the calls are taken for a busy loop
QUIET = 0.001  # seconds without a call that was due, after which they no longer are; at least a busy loop's pause
_SHARE = 50  # a busy loop is looked after this many times what a look takes
_MOST = 20e-6  # seconds that a look at one file is taken to cost at most
_FEW = 2  # shards that are looked at each time
_WHOSE = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)  # macOS counts for the process alone


class Guard:
    """Compares the sizes of mapped files. An attribute `due` says when all of them are to be looked at again."""

    def __init__(self) -> None:
        self._files: list[tuple[Path, int, int]] = []  # path, inode, size
        self._shards: list[tuple[Path, int, int]] = []
        self._spent, self._waited = 0.0, -1
        self._each = _MOST  # seconds that a file took at best: a look that was interrupted is not a slow one
        self.due = 0.0

    def add(self, path: Path, inode: int, size: int, *, shard: bool) -> None:
        """Look at a file from now on."""
        self._files.append((path, inode, size))
        if shard:
            self._shards.append((path, inode, size))

    def look(self, together: int = 1) -> None:
        """Look at the shards where they are few, and at all files when it is time.

        Args:
            together: sets that are read in one call, each with a guard: all of them may cost a fiftieth.

        Raises:
            IntegrityError: one was cut.
        """
        now = monotonic()
        if now < self.due:
            if len(self._shards) * together <= _FEW:
                _compare(self._shards)
            return
        took = self._each * len(self._files) * together
        if now - self.due > max(QUIET * together, _SHARE * took):
            before, self._waited = self._waited, _waits()
            if self._waited != before:
                self._spent = 0.0
        _compare(self._files)
        end = monotonic()
        self._each = min(self._each, (end - now) / max(len(self._files), 1))
        took = self._each * len(self._files) * together
        self._spent += took
        self.due = end + (_SHARE * took if self._spent > EAGER else 0.0)


def _waits() -> int:
    """Count how often this thread has given the processor up of itself: not when it was displaced."""
    return resource.getrusage(_WHOSE).ru_nvcsw


def _compare(files: list[tuple[Path, int, int]]) -> None:
    for path, inode, size in files:
        try:
            info = os.stat(path)  # noqa: PTH116  (half the time of a Path's)
        except FileNotFoundError:
            continue  # removed or replaced: what is mapped stays
        if info.st_ino == inode and info.st_size < size:
            raise wrong_size(path, info.st_size, size)
