"""Live progress of a run in documents and bytes, with the time left: a bar on a terminal, plain lines elsewhere.

Decides how often and what is shown. Knows no executor: it is told what ranks have read and how they ended.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import Any, Self, TextIO

from thalweg.run.show import counted, show_bytes, show_seconds

EVERY = 10.0  # seconds between plain lines


@dataclass
class Progress:
    """What is known of a run while it goes on.

    Args:
        ranks: ranks to run in this launch.
        size: bytes that they will read; 0 where unknown.
        stream: where to show it.
        quiet: show nothing.
    """

    ranks: int
    size: int
    stream: TextIO = field(default_factory=lambda: sys.stderr)
    quiet: bool = False
    done: int = 0
    failed: int = 0
    _read: dict[int, tuple[int, int]] = field(default_factory=dict[int, "tuple[int, int]"])
    _began: float = field(default_factory=time.monotonic)
    _shown: float = 0.0
    _bar: Any = None
    _row: Any = None

    def __enter__(self) -> Self:
        """Begin to show."""
        self._shown = self._began
        if self.stream.isatty() and not self.quiet:
            from rich.console import Console  # noqa: PLC0415  (only on a terminal)
            from rich.progress import BarColumn, TextColumn  # noqa: PLC0415
            from rich.progress import Progress as Bar  # noqa: PLC0415

            self._bar = Bar(BarColumn(), TextColumn("{task.description}"), console=Console(file=self.stream))
            self._bar.start()
            self._row = self._bar.add_task(self.line(), total=self.size or self.ranks)
        return self

    def __exit__(self, *failure: object) -> None:
        """Show the last state."""
        if self._bar is not None:
            self._show()
            self._bar.stop()
        elif time.monotonic() - self._began > EVERY:
            self._show()

    def read(self, rank: int, documents: int, size: int) -> None:
        """Take what a rank has read so far."""
        self._read[rank] = (documents, size)
        self._maybe_show()

    def ended(self, rank: int, ok: bool) -> None:
        """Take the end of a rank."""
        del rank
        self.done, self.failed = self.done + ok, self.failed + (not ok)
        self._maybe_show()

    def totals(self) -> tuple[int, int]:
        """Count documents and bytes over all ranks."""
        return sum(d for d, _ in self._read.values()), sum(b for _, b in self._read.values())

    def left(self) -> float | None:
        """Estimate the seconds left; None while nothing can be said."""
        documents, size = self.totals()
        del documents
        seconds = time.monotonic() - self._began
        if self.size and size:
            return max(0.0, seconds * (self.size / size - 1))
        if self.done:
            return seconds * ((self.ranks - self.failed) / self.done - 1)
        return None

    def line(self) -> str:
        """Write the state in one line."""
        documents, size = self.totals()
        left = self.left()
        text = f"{self.done}/{counted(self.ranks, 'rank')}, {counted(documents, 'document')}, {show_bytes(size)}"
        text += f" of {show_bytes(self.size)}" if self.size else ""
        text += f", {self.failed} failed" if self.failed else ""
        return text + (f", {show_seconds(left)} left" if left is not None and self.done < self.ranks else "")

    def _maybe_show(self) -> None:
        if self._bar is not None or time.monotonic() - self._shown >= EVERY:
            self._show()

    def _show(self) -> None:
        self._shown = time.monotonic()
        if self.quiet:
            return
        if self._bar is None:
            print(self.line(), file=self.stream, flush=True)
        else:
            at = self.totals()[1] if self.size else self.done + self.failed
            self._bar.update(self._row, completed=at, description=self.line())
