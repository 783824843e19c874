"""Remote files kept on a node: shared by its ranks and jobs, bounded in bytes, whole or not there.

A file is fetched by one process and waited for by the others, appears by rename, and is evicted when it was used
longest ago; who has it mapped keeps it. A process that dies leaves nothing in the way. Decides this. Knows no format
and no protocol.
"""

import contextlib
import os
import re
import secrets
import time
from collections.abc import Callable, Generator
from pathlib import Path

from thalweg.core.errors import RecordsError
from thalweg.store import fs

_WAIT = 0.02  # seconds between looks at a file that another process fetches
_SCRATCH = re.compile(r"\.(.+)\.(life|[0-9a-f]{12}\.part)")


class NodeCache:
    """A directory of fetched files.

    Args:
        folder: the directory; made if it is not there.
        max_bytes: how much its files may take. The file fetched last is kept in any case.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder, self.max_bytes = folder, max_bytes
        folder.mkdir(parents=True, exist_ok=True)

    def get(self, key: str, fetch: Callable[[Path], None]) -> Path:
        """Give a file, fetching it if nobody has.

        Args:
            key: its name here; equal keys are equal bytes, for ever.
            fetch: writes the file to a path; called in at most one living process of the node at a time.
        """
        path = self.folder / key
        while True:
            with contextlib.suppress(FileNotFoundError):
                os.utime(path)  # used now
                return path
            try:
                life = fs.Life(self.folder / f".{key}.life").begin()
            except RecordsError:
                time.sleep(_WAIT)
                continue
            with self._ending(life):
                if not path.exists():
                    self._make(path, fetch)
                return path

    @staticmethod
    @contextlib.contextmanager
    def _ending(life: fs.Life) -> Generator[None]:
        try:
            yield
        finally:
            life.end()

    def _make(self, path: Path, fetch: Callable[[Path], None]) -> None:
        for left in self.folder.glob(f".{path.name}.*.part"):  # of a process that died: the key is ours alone now
            left.unlink(missing_ok=True)
        temporary = self.folder / f".{path.name}.{secrets.token_hex(6)}.part"
        try:
            fetch(temporary)
            self.shrink(temporary.stat().st_size)
            temporary.rename(path)
        finally:
            temporary.unlink(missing_ok=True)

    def shrink(self, coming: int = 0) -> None:
        """Remove the files used longest ago, until `coming` bytes more fit; and what dead processes left."""
        found: list[tuple[float, int, Path]] = []
        for path in self.folder.iterdir():
            scratch = _SCRATCH.fullmatch(path.name)
            with contextlib.suppress(FileNotFoundError):
                if scratch is None:
                    info = path.stat()
                    found.append((info.st_mtime, info.st_size, path))
                elif not fs.is_alive(self.folder / f".{scratch[1]}.life"):
                    path.unlink()
        total = sum(size for _, size, _ in found) + coming
        for _, size, path in sorted(found):
            if total <= self.max_bytes:
                return
            path.unlink(missing_ok=True)
            total -= size
