"""Remote files kept on a node: shared by its ranks and jobs, bounded in bytes, whole or not there.

A file is fetched by one process and waited for by the others, appears by rename, and is evicted when nobody said that
it is needed and it was used longest ago; after those, what is needed latest. Waiting ends when the process that
fetches dies or stands still: then another fetches too, under a name of its own. A process that dies leaves nothing in
the way. Decides this. Knows no format and no protocol.
"""

import contextlib
import os
import re
import secrets
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

from thalweg.core.errors import RecordsError
from thalweg.store import fs

STALL = 30.0  # seconds without a byte after which a file that another process fetches is fetched here too
_WAIT = 0.02  # seconds between looks at a file that another process fetches
_SCRATCH = re.compile(r"\.(.+)\.(life|needs|[0-9a-f]{12}\.part)")


class NodeCache:
    """A directory of fetched files.

    Args:
        folder: the directory; made if it is not there.
        max_bytes: how much its files may take. The file fetched last is kept in any case.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder, self.max_bytes = folder, max_bytes
        folder.mkdir(parents=True, exist_ok=True)

    def has(self, key: str) -> bool:
        """Whether a file is there now."""
        return os.path.exists(self.folder / key)  # noqa: PTH110

    def get(self, key: str, fetch: Callable[[Path], None]) -> Path:
        """Give a file, fetching it if nobody has.

        Args:
            key: its name here; equal keys are equal bytes, for ever.
            fetch: writes the file to a path; called in one process of the node at a time, unless that stands still.
        """
        path = self.folder / key
        since, seen = time.monotonic(), -1
        while True:
            with contextlib.suppress(FileNotFoundError):
                os.utime(path)  # used now
                return path
            try:
                life = fs.Life(self.folder / f".{key}.life").begin()
            except RecordsError:
                now, grown = time.monotonic(), self._arrived(key)
                if grown != seen:
                    since, seen = now, grown
                elif now - since > STALL:
                    return self._make(path, fetch)
                time.sleep(_WAIT)
                continue
            with self._ending(life):
                if not path.exists():
                    for left in self.folder.glob(f".{key}.*.part"):  # of a process that died: the key is ours now
                        left.unlink(missing_ok=True)
                    self._make(path, fetch)
                return path

    def _arrived(self, key: str) -> int:
        """Bytes of a file that others have so far."""
        total = 0
        for part in self.folder.glob(f".{key}.*.part"):
            with contextlib.suppress(FileNotFoundError):
                total += part.stat().st_size
        return total

    @staticmethod
    @contextlib.contextmanager
    def _ending(life: fs.Life) -> Generator[None]:
        try:
            yield
        finally:
            life.end()

    def _cleared(self, stem: str, left: Path) -> bool:
        """Remove what a dead process left; False where its process lives.

        Under its lock: what was dead when one looked may have been begun anew before one removes.
        """
        try:
            life = fs.Life(self.folder / f".{stem}.life").begin()
        except RecordsError:
            return False
        with self._ending(life):
            if left.suffix != ".life":  # that one goes with the lock
                left.unlink(missing_ok=True)
        return True

    def _make(self, path: Path, fetch: Callable[[Path], None]) -> Path:
        temporary = self.folder / f".{path.name}.{secrets.token_hex(6)}.part"
        try:
            fetch(temporary)
            self.shrink(temporary.stat().st_size)
            temporary.rename(path)
        finally:
            temporary.unlink(missing_ok=True)
        return path

    def shrink(self, coming: int = 0) -> None:
        """Remove what is needed least, until `coming` bytes more fit; and what dead processes left."""
        found: list[tuple[float, int, str]] = []
        needs: dict[str, int] = {}
        with os.scandir(self.folder) as entries:
            for entry in entries:
                scratch = _SCRATCH.fullmatch(entry.name) if entry.name.startswith(".") else None
                with contextlib.suppress(FileNotFoundError):
                    if scratch is None:
                        info = entry.stat()
                        found.append((info.st_mtime, info.st_size, entry.name))
                    elif not self._cleared(scratch[1], Path(entry.path)) and scratch[2] == "needs":
                        _merge(needs, Path(entry.path).read_text(encoding="utf-8").split("\n"))
        total = sum(size for _, size, _ in found) + coming
        if total <= self.max_bytes:
            return
        # First what nobody needs, the one used longest ago before all; then what is needed, the latest first.
        order = [(key in needs, -needs[key] if key in needs else used, size, key) for used, size, key in found]
        for _, _, size, key in sorted(order):
            if total <= self.max_bytes:
                return
            (self.folder / key).unlink(missing_ok=True)
            total -= size


class Needs:
    """What this process will read, for all who evict: file names in order of their next use.

    Args:
        cache: the cache.
    """

    def __init__(self, cache: NodeCache) -> None:
        stem = f"needs-{secrets.token_hex(6)}"
        self._path = cache.folder / f".{stem}.needs"
        self._life = fs.Life(cache.folder / f".{stem}.life", new=True).begin()

    def say(self, keys: Sequence[str]) -> None:
        """Replace what was said before."""
        temporary = self._path.with_name(f"{self._path.name[:-6]}.{secrets.token_hex(6)}.part")
        temporary.write_text("\n".join(keys), encoding="utf-8")
        temporary.rename(self._path)

    def count(self) -> int:
        """Count the readers of this node that say what they need, this one too."""
        return max(sum(name.endswith(".needs") for name in os.listdir(self._path.parent)), 1)  # noqa: PTH208

    def end(self) -> None:
        """Need nothing any more. Twice is fine."""
        self._path.unlink(missing_ok=True)
        self._life.end()


def _merge(needs: dict[str, int], keys: Sequence[str]) -> None:
    for at, key in enumerate(keys):
        needs[key] = min(at, needs.get(key, at))
