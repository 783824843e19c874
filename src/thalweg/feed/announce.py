"""Tells sources what is read next: the order is known, so what lies behind a URL is fetched before it is needed.

Decides how far ahead is told. What a source does with it is its own affair; a local one says that it needs no telling,
and then nothing here costs anything.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from thalweg.feed.gather import Documents

CALLS = 32  # reads told ahead; each is up to 16 micro-batches
T = TypeVar("T")
Say = Callable[[NDArray[np.int64], int], bool]
NOTHING = np.empty(0, np.int64)


def say_of(source: Any) -> Say | None:
    """Give what tells a source the rows of a coming read, None where it wants to hear nothing."""
    say: Say | None = getattr(source, "ahead", None)
    return say if say is not None and say(NOTHING, 1) else None


def announced(reads: "Iterator[tuple[T, Documents]]", sources: Sequence[Any]) -> "Iterator[tuple[T, Documents]]":
    """Give planned reads unchanged, each after the sources were told of it and of those behind it.

    Args:
        reads: with the documents that each will read.
        sources: by the number that documents carry.
    """
    says = {k: say for k, source in enumerate(sources) if (say := say_of(source)) is not None}
    if not says:
        yield from reads
        return
    waiting: deque[tuple[T, Documents]] = deque()
    try:
        for pair in reads:
            for k, say in says.items():
                rows = pair[1].index if len(sources) == 1 else pair[1].index[pair[1].source == k]
                if len(rows):
                    say(rows, CALLS + 1)
            waiting.append(pair)
            if len(waiting) > CALLS:
                yield waiting.popleft()
        yield from waiting
    finally:
        for say in says.values():
            say(NOTHING, 1)
