"""Checks of speed and memory: what one process makes, which function takes the time, what will lie in memory.

Decides when a function is slow enough for a word. Times were taken once, in one process; `thalweg profile` measures.
"""

from thalweg.check.checks.check import Check, fine
from thalweg.check.evidence import Evidence
from thalweg.check.finding import Finding

SLOW = 0.005  # seconds a sample above which one process feeds no accelerator
HEAVY = 0.5  # share of the time from which a function is the one to look at
OVERHEAD = 1.2  # what objects cost beside their bytes
LARGE = 16 << 30


def memory_predicted(e: Evidence) -> Finding | None:
    """Work out what the data takes in memory, whole and as a stream."""
    if not e.sample_bytes or e.total is None:
        return None
    whole = e.total * e.sample_bytes * OVERHEAD
    numbers: dict[str, object] = {"map-style": _size(whole), "bytes a sample": int(e.sample_bytes)}
    if e.batch_tokens:
        numbers["streaming, a batch"] = _size(e.batch_tokens * 4)
    if whole > LARGE and not e.own:
        fix = "stream it or write records: they are mapped, not loaded"
        return Finding("warning", "the data does not fit into the memory of most machines", fix=fix, numbers=numbers)
    return fine("predicted memory", **numbers)


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1000
    return ""


def functions_are_quick(e: Evidence) -> Finding | None:
    """Find the function that takes most of the time."""
    total = sum(e.seconds.values())
    if not e.asked or total <= 0:
        return None
    name, seconds = max(e.seconds.items(), key=lambda item: item[1])
    numbers: dict[str, object] = {"samples a second in one process": round(e.asked / total)}
    if seconds / e.asked > SLOW and seconds > HEAVY * total and name != "read" and not e.cached:
        numbers["ms a sample"] = round(1000 * seconds / e.asked, 2)
        fix = '.cache() behind it, so that it runs once; else workers= with mode="processes" for Python code'
        return Finding(
            "warning", f"{name} takes {seconds / total:.0%} of the time", None, None, name, fix, numbers=numbers
        )
    if seconds / e.asked > SLOW and name == "read":
        fix = "write records once: tw.create_records, thalweg convert"
        return Finding("warning", "reading a sample takes most of the time", fix=fix, numbers=numbers)
    return fine("no function is slow", slowest=name, **numbers)


CHECKS = (
    Check("memory predicted", "speed", memory_predicted),
    Check("functions are quick", "speed", functions_are_quick),
)
