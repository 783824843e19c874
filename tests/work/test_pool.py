"""Promises of the pool."""

import threading
import time

import pytest

from thalweg.core.errors import WorkerError
from thalweg.work.inline import InlineMap
from thalweg.work.ordered import OrderedMap
from thalweg.work.pool import CallPool, Inlet
from thalweg.work.remote import RemoteCalls


def call(i):
    if i == 13:
        raise ValueError(i)
    return [i, -i] if i % 2 else (k for k in range(i % 5))


def pool(kind):
    inlet = Inlet()
    if kind == "inline":
        return CallPool(inlet, InlineMap(inlet, call))
    make = RemoteCalls(call, str, False) if kind == "processes" else None
    run = OrderedMap(inlet, call, workers=3, chunk=None, stop_on_error=False, make_runner=make, ahead=8)
    return CallPool(inlet, run)


@pytest.mark.parametrize("kind", ["inline", "threads", "processes"])
def test_lists_go_through_in_order_with_errors_in_place(kind):
    made = pool(kind)
    for size in (0, 1, 5, 40):
        turns = made.map(range(size))
        assert [t.item for t in turns] == list(range(size))
        for t in turns:
            assert t.outputs == ([] if t.item == 13 else list(call(t.item)))
            assert (type(t.error) is ValueError) == (t.item == 13)
    made.close()
    made.close()
    assert [t for t in threading.enumerate() if t.name.startswith("thalweg-")] == []


def test_several_callers_get_their_own_outputs():
    made, got = pool("threads"), {}

    def ask(base):
        for k in range(20):
            got[base, k] = [t.item for t in made.map(range(base, base + 3))]

    threads = [threading.Thread(target=ask, args=(100 * b,)) for b in range(1, 5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(20)
    assert all(items == list(range(base, base + 3)) for (base, _), items in got.items())
    assert len(got) == 80
    made.close()


def test_a_closed_pool_says_so():
    made = pool("threads")
    made.map([1])
    made.close()
    with pytest.raises((WorkerError, StopIteration)):
        made.map([1])


def test_calls_of_one_list_run_at_the_same_time():
    # A3
    barrier = threading.Barrier(3)
    inlet = Inlet()

    def meet(i):
        barrier.wait(20)
        return [i]

    made = CallPool(inlet, OrderedMap(inlet, meet, workers=3, stop_on_error=False))
    start = time.monotonic()
    assert [t.item for t in made.map(range(3))] == [0, 1, 2]
    assert time.monotonic() - start < 20
    made.close()
