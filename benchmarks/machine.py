"""What a figure was measured on: processor, cores, memory, versions, commit.

Decides which facts belong beside every figure. Knows no benchmark. Standard library only, since peers' environments
import it too.
"""

import os
import platform
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def facts() -> dict[str, Any]:
    """Describe this machine: name of the CPU, usable cores, bytes of memory, kernel, load."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "core_quota": _quota(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
        "threads": {k: v for k, v in os.environ.items() if re.match(r"(OMP|OPENBLAS|MKL|NUMEXPR)_", k)},
    }


def line(machine: dict[str, Any]) -> str:
    """Write the facts as the one line that stands above a table."""
    quota = f", quota {machine['core_quota']} cores" if machine["core_quota"] else ""
    return (
        f"{machine['cpu']}, {machine['cores']} cores{quota}, {machine['memory_gib']} GiB, {machine['system']}, "
        f"Python {machine['python']}, load at start {machine['load']}"
    )


def commit() -> str:
    """Name the commit of the checkout, with "+changes" where the tree differs from it."""
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        return head + ("+changes" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def loaded_versions() -> dict[str, str]:
    """Give the version of every distribution that this process has loaded a module of."""
    names = metadata.packages_distributions()
    loaded = {module.partition(".")[0] for module in sys.modules}
    return {dist: metadata.version(dist) for module in sorted(loaded & names.keys()) for dist in names[module]}


def cpu_seconds() -> float:
    """CPU seconds of this process and everything it started, finished or still running.

    Workers that live on between warm-up and measurement are counted too, where /proc tells of them.
    """
    times = os.times()
    total = times.user + times.system + times.children_user + times.children_system
    tick = os.sysconf("SC_CLK_TCK")
    for fields in _descendants(os.getpid()):
        total += sum(int(x) for x in fields[11:15]) / tick
    return total


def _descendants(pid: int) -> list[list[str]]:
    """Fields of /proc/PID/stat after the name (state first, then ppid), of all processes below `pid`."""
    stats: dict[int, list[str]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            stats[int(entry.parent.name)] = entry.read_text().rpartition(")")[2].split()
        except (OSError, ValueError):
            continue  # it ended between the listing and the read
    below, found = {pid}, []
    grew = True
    while grew:
        grew = False
        for child, fields in stats.items():
            if child not in below and int(fields[1]) in below:
                below.add(child)
                found.append(fields)
                grew = True
    return found


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for text in info.read_text().splitlines():
            if text.lower().startswith(("model name", "hardware")):
                return " ".join(text.partition(":")[2].split())
    return platform.processor() or platform.machine()


def _quota() -> float | None:
    limit = Path("/sys/fs/cgroup/cpu.max")
    if not limit.exists():
        return None
    allowed, _, period = limit.read_text().partition(" ")
    return None if allowed == "max" else round(int(allowed) / int(period), 2)


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()
