"""One line on stderr for what takes longer than a user likes to look at nothing.

Decides after how long, and that one rank of a node says it. Knows nothing of what is done.
"""

import os
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager

QUIET = 2.0  # seconds


@contextmanager
def told_where_slow(text: str) -> Generator[None]:
    """Say once what a block does, where it takes longer than seconds."""

    def say() -> None:
        if sys.stderr is not None:  # pyright: ignore[reportUnnecessaryComparison]
            sys.stderr.write(text + "\n")
            sys.stderr.flush()

    late = threading.Timer(QUIET, say)
    late.daemon = True
    if os.environ.get("LOCAL_RANK", "0") == "0":
        late.start()
    try:
        yield
    finally:
        late.cancel()
