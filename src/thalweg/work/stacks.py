"""Where threads stand right now, as text for an error or a log.

Decides the form of a stack dump. Knows threads by their names only.
"""

import sys
import threading
import traceback


def stack_of(ident: int | None, limit: int = 12) -> str:
    """Format the stack of one thread, newest call last; says so where it has ended."""
    frame = sys._current_frames().get(ident) if ident is not None else None  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    if frame is None:
        return "  (not running)"
    return "".join(traceback.format_stack(frame, limit)).rstrip()


def stacks(prefix: str = "thalweg", limit: int = 12) -> str:
    """Format the stacks of all threads whose name starts with `prefix`."""
    parts = [
        f"thread {t.name}:\n{stack_of(t.ident, limit)}" for t in threading.enumerate() if t.name.startswith(prefix)
    ]
    return "\n".join(parts) or "no thread of ours is alive"
