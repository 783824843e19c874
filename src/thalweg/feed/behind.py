"""One thread that makes the next item while the last one is used, in order.

Decides that exactly one item is made ahead, that an error comes at its place, and that the thread ends with its owner.
Knows nothing of what the items are; whoever plans them does so in the consumer's thread.
"""

import os
from _thread import allocate_lock
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

A = TypeVar("A")
B = TypeVar("B")


def made_behind(given: Iterator[A], make: Callable[[A], B], *, name: str) -> Iterator[tuple[A, B]]:
    """Give (item, what `make` makes of it) in order; while one is used, a thread makes the next.

    The first item is made here and now: nothing waits for a thread to start, nor for the item behind it. From then on
    the thread is waited for until it has begun: a consumer that never lets go of the interpreter's lock would keep it
    from its first line until the item is asked for. A `make` that soon does without the lock then runs beside it.

    Args:
        given: is asked in the consumer's thread, one item ahead.
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

    pool, process, began = ThreadPoolExecutor(1, thread_name_prefix=name), os.getpid(), allocate_lock()
    began.acquire()
    late: BaseException | None = None
    coming: tuple[A, Future[B]] | None = None

    def work(item: A) -> B:
        began.release()
        return make(item)

    def ask() -> "tuple[A, Future[B]] | None":
        nonlocal late
        if late is not None:
            return None
        try:
            item = next(given, None)
        except Exception as error:  # noqa: BLE001  (raised at its place, behind the item that is being made)
            late = error
            return None
        if item is None:
            return None
        future = pool.submit(work, item)
        began.acquire()
        return item, future

    try:
        coming = ask()
        while coming is not None:
            item, future = coming
            if os.getpid() != process:  # a fork has no thread: from here on nothing is made behind
                yield item, make(item)
                yield from ((item, make(item)) for item in given)
                return
            made = future.result()
            coming = ask()
            yield item, made
        if late is not None:
            raise late
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
