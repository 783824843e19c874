"""Notices that a mapped file was cut before it is read, where reading on would kill the process.

The system ends a process that touches mapped memory behind the end of its file; there is no catching that. So sizes are
compared before a read: of one or two shards at each call, of more, and for single rows, fifty times a second. What is
cut within that time, or under an array that was handed out, is beyond this; `io="pread"` maps nothing.
Decides how often it looks. Knows no rows.
"""

import os
from pathlib import Path
from time import monotonic

from thalweg.store.records.region import wrong_size

EVERY = 0.02  # seconds between looks at all files
_SHARE = 50  # and this many times what a look takes
_FEW = 2  # shards that are looked at each time


class Guard:
    """Compares the sizes of mapped files. An attribute `due` says when all of them are to be looked at again."""

    def __init__(self) -> None:
        self._files: list[tuple[Path, int, int]] = []  # path, inode, size
        self._shards: list[tuple[Path, int, int]] = []
        self.due = 0.0

    def add(self, path: Path, inode: int, size: int, *, shard: bool) -> None:
        """Look at a file from now on."""
        self._files.append((path, inode, size))
        if shard:
            self._shards.append((path, inode, size))

    def look(self) -> None:
        """Look at the shards where they are few, and at all files when it is time.

        Raises:
            IntegrityError: one was cut.
        """
        now = monotonic()
        if now >= self.due:
            _compare(self._files)
            self.due = now + max(EVERY, _SHARE * (monotonic() - now))
        elif len(self._shards) <= _FEW:
            _compare(self._shards)


def _compare(files: list[tuple[Path, int, int]]) -> None:
    for path, inode, size in files:
        try:
            info = os.stat(path)  # noqa: PTH116  (half the time of a Path's)
        except FileNotFoundError:
            continue  # removed or replaced: what is mapped stays
        if info.st_ino == inode and info.st_size < size:
            raise wrong_size(path, info.st_size, size)
