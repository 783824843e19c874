"""How fast calls are, and what follows: how many items go into one job.

Decides by the measured pace alone. Knows nothing of what a call does.
"""

from thalweg.work.port import Port
from thalweg.work.reader import Reader


class ChunkTuner:
    """Joins items into one job where calls are fast; a call that waits is never joined with others."""

    LOOK_EVERY = 16
    JOB_BYTES = 4 << 20  # results of a job that are still in the processor's cache when they arrive
    # Seconds a call below which the hand-over costs more than the call, and seconds that a job should take: a worker
    # process waits between two jobs, some 0.1 ms on a free machine.
    THREADS, PROCESSES = (50e-6, 0.5e-3), (0.5e-3, 4e-3)

    def __init__(self, port: Port, reader: Reader, ahead: int, workers: int) -> None:
        self._port, self._reader = port, reader
        self._most = max(1, min(128, ahead // (2 * workers)))
        self._count = 0

    def look(self) -> None:
        """Look at the pace now and then; takes the median, which a pause of the interpreter does not move."""
        self._count += 1
        if self._count % self.LOOK_EVERY:
            return
        jobs = sorted((wall / items, busy / items) for wall, busy, items in list(self._port.pace))
        if not jobs:
            return
        each, busy = jobs[len(jobs) // 2]
        fast, target = self.PROCESSES if self._port.remote else self.THREADS
        waits = 0 < busy < each / 2
        room = int(self.JOB_BYTES / max(self._port.item_bytes, 1.0))
        many = min(self._most, room, int(target / max(each, 1e-9)))
        self._reader.chunk = 1 if waits or each > fast else max(1, many)
