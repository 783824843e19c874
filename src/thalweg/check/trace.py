"""Every call of a profiled loop as a file for chrome://tracing and Perfetto.

Decides names, processes and threads of the events. Times are microseconds of one monotonic clock, which processes of a
machine share.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

LOOP = 0  # the thread of the training loop


def events_of(
    calls: Sequence[tuple[str, int, int, float, float]],
    seen: Sequence[tuple[float, float, float]],
    labels: Mapping[str, str],
) -> list[dict[str, Any]]:
    """Give the events of a loop.

    Args:
        calls: (clock, process, thread, start, seconds).
        seen: of each batch: asked for, came, done; seconds.
        labels: clock -> function as typed.
    """
    me = os.getpid()
    threads = {key: n for n, key in enumerate(dict.fromkeys((c[1], c[2]) for c in calls), 1)}
    out: list[dict[str, Any]] = [_named("process_name", me, LOOP, "thalweg"), _named("thread_name", me, LOOP, "loop")]
    for (process, _), n in threads.items():
        if process != me:
            out.append(_named("process_name", process, n, "worker process"))
        out.append(_named("thread_name", process, n, f"worker {n}"))
    for clock, process, thread, start, took in calls:
        out.append(_whole(labels.get(clock, clock), process, threads[process, thread], start, took))
    for number, (asked, came, done) in enumerate(seen):
        out.append(_whole("waiting for data", me, LOOP, asked, came - asked, batch=number))
        out.append(_whole("training", me, LOOP, came, done - came, batch=number))
    return out


def _named(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


def _whole(name: str, process: int, thread: int, start: float, took: float, **more: Any) -> dict[str, Any]:
    times = {"ts": round(start * 1e6, 3), "dur": round(took * 1e6, 3)}
    return {"ph": "X", "name": name, "cat": "thalweg", "pid": process, "tid": thread, **times, "args": more}


def write_trace(
    path: Path,
    calls: Sequence[tuple[str, int, int, float, float]],
    seen: Sequence[tuple[float, float, float]],
    labels: Mapping[str, str],
) -> None:
    """Write the events of a loop as one JSON file."""
    data = {"displayTimeUnit": "ms", "traceEvents": events_of(calls, seen, labels)}
    path.write_text(json.dumps(data), encoding="utf-8")
