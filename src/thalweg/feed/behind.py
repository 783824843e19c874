"""One thread that makes the next items while the last one is used, in order.

Decides that two items at most are made ahead, that an error comes at its place, and that the thread ends with its
owner. Knows nothing of what the items are; whoever plans them does so in the consumer's thread.
"""

import os
from _thread import LockType, allocate_lock
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

A = TypeVar("A")
B = TypeVar("B")


def made_behind(given: Iterator[A], make: Callable[[A], B], *, name: str) -> Iterator[tuple[A, B]]:
    """Give (item, what `make` makes of it) in order; while one is used, a thread makes the next.

    The first item is made here and now: nothing waits for a thread to start, nor for the item behind it. From then on
    the thread always has an item to go on with, so that it does not stand still while the one behind is planned, and
    it is waited for until it has begun: a consumer that never lets go of the interpreter's lock would keep it from
    its first line until the item is asked for. A `make` that soon does without the lock then runs beside it.

    Args:
        given: is asked in the consumer's thread, two items ahead.
        make: is called in the thread, one call at a time.
        name: of the thread.

    Raises:
        BaseException: what `given` or `make` raised, after all earlier items.
    """
    first = next(given, None)
    if first is None:
        return
    yield first, make(first)
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  (6 ms that the first item need not wait for)

    pool, process = ThreadPoolExecutor(1, thread_name_prefix=name), os.getpid()
    late: BaseException | None = None
    coming: deque[tuple[A, Future[B], LockType]] = deque()
    ended = False

    def work(item: A, began: LockType) -> B:
        began.release()
        return make(item)

    def ask() -> None:
        """Have the next item made, if there is one."""
        nonlocal late, ended
        if ended:
            return
        try:
            item = next(given, None)
        except Exception as error:  # noqa: BLE001  (raised at its place, behind the items that are being made)
            late, item = error, None
        if item is None:
            ended = True
            return
        began = allocate_lock()
        began.acquire()
        coming.append((item, pool.submit(work, item, began), began))

    try:
        ask()
        ask()
        while coming:
            item, future, _ = coming.popleft()
            if os.getpid() != process:  # a fork has no thread: from here on nothing is made behind
                yield item, make(item)
                yield from ((item, make(item)) for item, _, _ in coming)
                coming.clear()
                yield from ((item, make(item)) for item in given)
                return
            made = future.result()
            if coming:
                coming[0][2].acquire()
            ask()
            yield item, made
        if late is not None:
            raise late
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
