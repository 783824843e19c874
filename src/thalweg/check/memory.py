"""Memory of this process and the processes that it started, and how much there is.

Decides what counts: resident bytes, from /proc; where there is no /proc nothing is known and nothing is limited.
"""

import threading
from pathlib import Path
from types import TracebackType
from typing import Self

PROC = Path("/proc")
EVERY = 0.05  # seconds between two looks


def resident(process: int) -> int:
    """Give the resident bytes of a process and all below it; 0 where that cannot be known."""
    total = 0
    for one in (process, *_children(process)):
        try:
            fields = (PROC / str(one) / "statm").read_text().split()
        except OSError:
            continue
        total += int(fields[1]) * 4096
    return total


def _children(process: int) -> list[int]:
    found: list[int] = []
    try:
        tasks = list((PROC / str(process) / "task").iterdir())
    except OSError:
        return found
    for task in tasks:
        try:
            below = [int(word) for word in (task / "children").read_text().split()]
        except OSError:
            continue
        for one in below:
            found += [one, *_children(one)]
    return found


def available() -> int | None:
    """Give the bytes that can still be taken without swapping; None where that cannot be known."""
    try:
        lines = (PROC / "meminfo").read_text().splitlines()
    except OSError:
        return None
    words = next((line.split() for line in lines if line.startswith("MemAvailable:")), None)
    return int(words[1]) * 1024 if words else None


class Peak:
    """Watches the resident bytes of a process while a block runs.

    Attributes:
        most: bytes seen at most.
    """

    def __init__(self, process: int) -> None:
        self.process, self.most = process, 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="thalweg-memory", daemon=True)

    def _watch(self) -> None:
        while True:
            self.most = max(self.most, resident(self.process))
            if self._done.wait(EVERY):
                return

    def __enter__(self) -> Self:
        """Begin to watch."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Look a last time, and end."""
        self._done.set()
        self._thread.join()
        self.most = max(self.most, resident(self.process))
