"""Samples that failed, kept aside with the reason: one JSON object a line, whole lines only.

Decides what is written of a sample: what JSON can hold, and the type and length of what it cannot. Knows nothing of
the budget for bad samples.
"""

import json
import os
import traceback
from pathlib import Path
from typing import Any

from thalweg.feed.events import EPOCH, ID, SUB, VALUE, Event


class Quarantine:
    """Appends failed samples to `<folder>/stream-<pid>.jsonl`; a line is written in one call, so never half.

    A run that resumes from an older state may meet a bad sample again: its line is then written again, with the same
    id and epoch.
    """

    def __init__(self, folder: str, stage: str) -> None:
        self._path = Path(folder) / f"stream-{os.getpid()}.jsonl"
        self._stage = stage
        self._fd = -1

    def keep(self, event: Event, error: BaseException) -> None:
        """Write one failed item, or each sample of a group."""
        value = event[VALUE]
        events = value if type(value) is list else [event]
        for one in events:
            line = {
                "id": str(one[ID]),
                "sub_stream": one[SUB],
                "epoch": one[EPOCH],
                "stage": self._stage,
                "error": f"{type(error).__name__}: {error}",
                "traceback": "".join(traceback.format_exception(error))[-20_000:],
                "sample": one[VALUE],
            }
            self._write(json.dumps(line, default=_short, ensure_ascii=False))

    def _write(self, text: str) -> None:
        if self._fd < 0:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(self._fd, text.encode("utf-8", "surrogatepass") + b"\n")

    def close(self) -> None:
        """Close the file. Twice is fine."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _short(value: Any) -> Any:
    tolist = getattr(value, "tolist", None)
    if tolist is not None and getattr(value, "size", 1 << 30) <= 10_000:
        return tolist()
    size = getattr(value, "nbytes", None) or (len(value) if hasattr(value, "__len__") else None)
    return f"<{type(value).__name__}" + (f" of {size}>" if size is not None else ">")
