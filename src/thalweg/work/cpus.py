"""How many CPUs this process may use: affinity, container quota, and its share among the ranks of one machine.

Decides the number that "auto" workers start from. Knows nothing of what the workers do.
"""

import math
import os
import time
from collections.abc import Mapping
from pathlib import Path

_LOCAL_RANKS = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE")


def affinity() -> int:
    """Count the CPUs that the scheduler lets this process run on."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


class ThreadClock:
    """What the calling thread does with its time: seconds that count, and those of them in which it computed.

    Standing in line for a CPU does not count: on a crowded machine it says nothing about the thread. Where the system
    does not tell how long that was (only Linux does), it counts as waiting.
    """

    def __init__(self) -> None:
        try:
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        except OSError:
            self._file = -1

    def __call__(self) -> tuple[float, float]:
        """Read (seconds that count, seconds of CPU), in the thread that made the clock."""
        line = 0
        if self._file >= 0:
            line = int(os.pread(self._file, 64, 0).split()[1])
        return time.perf_counter() - line * 1e-9, time.thread_time()

    def close(self) -> None:
        """Give the descriptor back. Twice is fine."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Read the CPU quota of this container in CPUs; None where there is none.

    Source: cgroup v2 `cpu.max`, cgroup v1 `cpu.cfs_quota_us` over `cpu.cfs_period_us`.
    """
    try:
        limit, period = (root / "cpu.max").read_text().split()[:2]
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        pass
    try:
        limit_us = int((root / "cpu/cpu.cfs_quota_us").read_text())
        period_us = int((root / "cpu/cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return limit_us / period_us if limit_us > 0 and period_us > 0 else None


def local_ranks(environ: Mapping[str, str] | None = None) -> int:
    """Count the ranks of this job on this machine, as launchers tell it; 1 where none says."""
    environ = os.environ if environ is None else environ
    for name in _LOCAL_RANKS:
        text = environ.get(name, "").partition("(")[0]  # Slurm writes "8(x2)"
        if text.isdigit() and int(text) > 0:
            return int(text)
    return 1


def usable_cpus(ranks: int | None = None) -> int:
    """Count the CPUs for this rank: the least of affinity and quota, shared among local ranks; at least 1.

    Args:
        ranks: ranks on this machine; None asks the launcher's environment.
    """
    cpus: float = affinity()
    limit = quota()
    if limit is not None:
        cpus = min(cpus, limit)
    return max(1, math.floor(cpus / (local_ranks() if ranks is None else ranks) + 1e-9))
