"""Items that are looked at before they are handed over.

Decides that looking ahead moves nothing, and that an error or the end which was met ahead comes at its place in the
order. Knows nothing of what the items are.
"""

from collections import deque
from collections.abc import Generator, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Lookahead(Generic[T]):
    """An iterator whose next items can be seen.

    Args:
        items: are taken one by one, only when asked for.
    """

    def __init__(self, items: Iterator[T]) -> None:
        self._items = items
        self._seen: deque[T] = deque()
        self._error: BaseException | None = None  # met ahead: the end too

    def peek(self) -> T:
        """Give the next item without moving.

        Raises:
            StopIteration: there is none.
            BaseException: what taking it raised, now or when it was looked at.
        """
        if not self._seen:
            self._take()
        if not self._seen:
            assert self._error is not None
            raise self._error
        return self._seen[0]

    def pop(self) -> T:
        """Give the next item and move past it."""
        if not self._seen and self._error is None:
            try:
                return next(self._items)
            except BaseException as error:  # noqa: BLE001  (raised below, and again)
                self._error = error
        if not self._seen:
            assert self._error is not None
            raise self._error
        return self._seen.popleft()

    def coming(self, n: int) -> list[T]:
        """Give the next n items without moving; fewer where the end or an error comes first."""
        while len(self._seen) < n and self._error is None:
            self._take()
        return [self._seen[i] for i in range(min(n, len(self._seen)))]

    def _take(self) -> None:
        if self._error is not None:
            return
        try:
            self._seen.append(next(self._items))
        except BaseException as error:  # noqa: BLE001  (raised at its place)
            self._error = error

    def close(self) -> None:
        """Forget what was seen, and end a generator."""
        self._seen.clear()
        if isinstance(self._items, Generator):
            self._items.close()
