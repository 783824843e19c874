"""How fast calls are, and what follows: how many items go into one job.

Decides by the measured pace alone. Knows nothing of what a call does.
"""

from thalweg.work.port import Port
from thalweg.work.reader import Reader


class ChunkTuner:
    """Joins items into one job where calls are fast; a call that waits is never joined with others."""

    LOOK_EVERY = 16
    FAST = 50e-6  # seconds a call: below, the hand-over costs more than the call
    TARGET = 0.5e-3  # seconds a job

    def __init__(self, port: Port, reader: Reader, ahead: int, workers: int) -> None:
        self._port, self._reader = port, reader
        self._most = max(1, min(128, ahead // (2 * workers)))
        self._count = 0

    def look(self) -> None:
        """Look at the pace now and then; takes the median, which a pause of the interpreter does not move."""
        self._count += 1
        if self._count % self.LOOK_EVERY:
            return
        jobs = sorted(wall / items for wall, _, items in list(self._port.pace))
        if not jobs:
            return
        each = jobs[len(jobs) // 2]
        self._reader.chunk = 1 if each > self.FAST else max(1, min(self._most, int(self.TARGET / max(each, 1e-9))))
