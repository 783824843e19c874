"""Promises of the ordered map over threads."""

import contextlib
import gc
import random
import threading
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg.core.errors import StalledError, WorkerError
from thalweg.work.budget import ByteBudget
from thalweg.work.ordered import OrderedMap
from thalweg.work.runner import Runner


def ours():
    return [t for t in threading.enumerate() if t.name.startswith("thalweg-")]


@given(
    counts=st.lists(st.integers(0, 4), max_size=60),
    workers=st.integers(1, 6),
    ahead=st.integers(1, 12),
    chunk=st.sampled_from([1, 3, None]),
    stream=st.booleans(),
    limit=st.sampled_from([None, 1, 300]),
    seed=st.integers(0, 999),
)
@settings(max_examples=60, deadline=None)
def test_outputs_follow_the_source_at_any_width_chunk_and_budget(counts, workers, ahead, chunk, stream, limit, seed):
    # A2 A8 A9 A10: one-to-many, one-to-none, in place; also with less room than one item needs
    def call(i):
        for _ in range((i * 7919 + seed) % 3):
            threading.Event().wait(0)  # gives the interpreter to another thread
        out = [(i, k) for k in range(counts[i])]
        return iter(out) if stream else out

    m = OrderedMap(range(len(counts)), call, workers=workers, ahead=ahead, chunk=chunk, budget=ByteBudget(limit))
    assert list(m) == [(i, k) for i, n in enumerate(counts) for k in range(n)]
    m.close()
    assert ours() == []
    assert m.stats["bytes"] == 0


def test_one_thread_reads_in_order_and_workers_never_do():
    # A11 A12 A13: items are numbered from 0 in the order in which they are read, anew in each pass
    readers, callers, numbers = set(), set(), []

    def source():
        for i in range(50):
            readers.add(threading.current_thread())
            yield i

    def call(i):
        callers.add(threading.current_thread())
        return [i]

    def numbered(message):
        if message.items:
            numbers.append((message.number, message.items))

    for _ in range(2):
        numbers.clear()
        readers.clear()
        assert list(OrderedMap(source(), call, workers=4, hook=numbered)) == list(range(50))
        assert len(readers) == 1
        assert not readers & callers
        assert threading.current_thread() not in readers | callers
        assert sorted(numbers) == [(i, [i]) for i in range(50)]


def test_workers_run_at_the_same_time():
    # A3: four calls wait for each other; one worker alone would wait for ever
    barrier = threading.Barrier(4)

    def call(i):
        barrier.wait(20)
        return [i]

    m = OrderedMap(range(8), call, workers=4, ahead=8)
    assert list(m) == list(range(8))


@pytest.mark.parametrize("chunk", [1, None])
def test_a_slow_first_item_holds_reading_at_the_bound(chunk):
    # A24 A25: 8 ahead, whatever the source could give
    release, read, seven = threading.Event(), [], threading.Event()

    def source():
        for i in range(10_000):
            read.append(i)
            yield i

    def call(i):
        if i == 0:
            release.wait(20)
        if i == 7:
            seven.set()
        return [i]

    m = OrderedMap(source(), call, workers=3, ahead=8, chunk=chunk)
    got = []
    consumer = threading.Thread(target=lambda: got.extend(x for _, x in zip(range(20), m, strict=False)))
    consumer.start()
    assert seven.wait(20)
    assert len(read) <= 8
    release.set()
    consumer.join(20)
    assert got == list(range(20))
    m.close()


@pytest.mark.parametrize("chunk", [1, None])
def test_no_more_than_the_bound_is_read_at_any_hand_over(chunk):
    # A24: not only while the first is slow
    read, taken = [], 0

    def source():
        for i in range(300):
            read.append(i)
            yield i

    with contextlib.closing(OrderedMap(source(), lambda i: [i], workers=3, ahead=8, chunk=chunk)) as m:
        for _ in m:
            assert len(read) <= taken + 8 + 1  # the one handed over gives its place back when the next is asked for
            taken += 1
    assert taken == 300


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 40), bad=st.integers(0, 39), workers=st.integers(1, 8), slow=st.sampled_from(["none", "in", "out"])
)
def test_an_error_comes_after_all_earlier_items_at_any_relative_speed(n, bad, workers, slow):
    # A17 A18 A19
    def call(i):
        if slow == "in" and i < bad:
            threading.Event().wait(0.0005)
        if i == bad:
            raise LookupError(i)
        return [i]

    got = []
    m = OrderedMap(range(n), call, workers=workers, ahead=8)
    if bad < n:
        with pytest.raises(LookupError) as caught:
            for x in m:
                got.append(x)
                if slow == "out":
                    threading.Event().wait(0.0005)
        assert caught.value.args == (bad,)
        assert caught.value.__notes__ == [f"while mapping item {bad}"]
        assert got == list(range(bad))
    else:
        assert list(m) == list(range(n))
    m.close()
    assert ours() == []


@pytest.mark.slow
def test_a_thousand_of_a_thousand_errors_arrive_in_their_place():
    # A17 A18: workers, room, the place of the error and who is faster vary from run to run
    draw = random.Random(6)
    for k in range(1000):
        n, workers, ahead, bad = draw.randint(1, 30), draw.randint(1, 6), draw.randint(1, 12), draw.randint(0, 29)
        slow, of_source = draw.choice(("none", "in", "out")), draw.random() < 0.3

        def source(n=n, bad=bad, of_source=of_source):
            for i in range(n):
                if of_source and i == bad:
                    raise LookupError(i)
                yield i

        def call(i, bad=bad, of_source=of_source, slow=slow):
            if slow == "in":
                threading.Event().wait(0.0001)
            if i == bad and not of_source:
                raise LookupError(i)
            return [i]

        got, error = [], None
        m = OrderedMap(source(), call, workers=workers, ahead=ahead, chunk=draw.choice((1, 3, None)))
        try:
            for x in m:
                got.append(x)
                if slow == "out":
                    threading.Event().wait(0.0001)
        except LookupError as found:
            error = found
        m.close()
        assert got == list(range(min(n, bad))), k
        assert (error is not None) == (bad < n), k


def test_an_error_of_the_source_has_its_place_too():
    # A17
    def source():
        yield from range(30)
        raise OSError("disk")

    for _ in range(50):
        got = []
        m = OrderedMap(source(), lambda i: [i], workers=4, ahead=8)
        with pytest.raises(OSError, match="disk"):
            [got.append(x) for x in m]
        assert got == list(range(30))
        m.close()


@pytest.mark.parametrize("error", [StopIteration(5), SystemExit(0), KeyboardInterrupt(), GeneratorExit()])
def test_what_would_end_a_program_quietly_arrives_as_an_error(error):
    def call(i):
        if i == 7:
            raise error
        return [i]

    got = []
    with pytest.raises(WorkerError) as caught:
        [got.append(x) for x in OrderedMap(range(20), call, workers=2)]
    assert got == list(range(7))
    assert caught.value.__cause__ is error


def test_after_an_error_nothing_more_is_called_than_is_in_flight():
    # A20
    calls = []

    def call(i):
        calls.append(i)
        if i == 10:
            raise ValueError(i)
        return [i]

    m = OrderedMap(iter(range(10**9)), call, workers=3, ahead=8)
    with pytest.raises(ValueError):
        list(m)
    m.close()
    assert max(calls) <= 10 + 8
    assert ours() == []


def test_outputs_before_an_error_of_the_same_item_come_first():
    def call(i):
        yield (i, 0)
        if i == 3:
            raise ValueError
        yield (i, 1)

    got = []
    with pytest.raises(ValueError):
        [got.append(x) for x in OrderedMap(range(9), call, workers=3)]
    assert got == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0)]


def test_errors_can_be_passed_over_with_their_items():
    def call(i):
        if i % 3 == 0:
            raise ValueError(i)
        return [i]

    m = OrderedMap(range(10), call, workers=3, chunk=4, stop_on_error=False)
    turns = [(t.item, t.outputs, type(t.error)) for t in m.turns()]
    assert turns == [(i, [] if i % 3 == 0 else [i], ValueError if i % 3 == 0 else type(None)) for i in range(10)]


@pytest.mark.parametrize("leave", ["break", "close", "collect", "error", "never"])
def test_no_thread_stays_however_it_is_left(leave):
    # A21 K41
    m = OrderedMap(iter(int, 1), lambda i: [i], workers=4, ahead=8)
    it = iter(m)
    if leave != "never":
        assert [next(it) for _ in range(3)] == [0, 0, 0]
    if leave == "error":
        with pytest.raises(ZeroDivisionError):
            for _ in it:
                1 / 0  # noqa: B018
    if leave == "close":
        m.close()
        m.close()
    threads = [weakref.ref(t) for t in ours()]
    it.close()
    del m, it
    gc.collect()
    for ref in threads:
        thread = ref()
        if thread is not None:
            thread.join(5)
    assert ours() == []


def test_close_wakes_a_consumer_in_another_thread():
    hold, failed = threading.Event(), []

    def call(i):
        hold.wait(20)
        return [i]

    m = OrderedMap(range(10), call, workers=2)

    def consume():
        try:
            list(m)
        except WorkerError as error:
            failed.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    while not m._core.port.running:
        threading.Event().wait(0.001)
    m.stop()
    consumer.join(20)
    assert not consumer.is_alive()
    assert len(failed) == 1
    hold.set()
    m.close()
    assert ours() == []


def test_a_thread_inside_user_code_is_named_and_left():
    hold, inside = threading.Event(), threading.Event()

    def stuck(i):
        if i:
            inside.set()
            hold.wait(30)
        return [i]

    m = OrderedMap(range(5), stuck, workers=1)
    assert next(iter(m)) == 0
    assert inside.wait(10)
    with pytest.warns(RuntimeWarning, match="stuck"):
        m._core.close(0.05)
    hold.set()
    for t in ours():
        t.join(10)
    assert ours() == []
    m.close()


@pytest.mark.parametrize("stuck", [2, 3])
def test_a_call_over_its_time_fails_in_place_with_its_stack(monkeypatch, stuck):
    # and no other item does, whatever could have been in one job with it: time passes once the others are there
    hold, arrived = threading.Event(), []
    monkeypatch.setattr("thalweg.work.turns.perf_counter", lambda: 100.0 if len(arrived) >= 5 else 0.0)

    def call(i):
        if i == stuck:
            hold.wait(30)
        return [i]

    def seen(message):
        if message.outcomes:
            arrived.append(message.number)

    m = OrderedMap(range(6), call, workers=2, timeout=50, stop_on_error=False, chunk=2, hook=seen)
    turns = [(t.item, t.error) for t in m.turns()]
    assert [i for i, e in turns if e is None] == [0, 1, *range(2, stuck), *range(stuck + 1, 6)]
    assert "hold.wait" in str(turns[stuck][1])
    hold.set()
    m.close()


class Starts(Runner):
    """Starts as a worker process does: not before it is let."""

    def __init__(self, call, may):
        super().__init__(call, str, True)
        self.may = may

    def begin(self):
        self.may.wait(30)

    def stack(self):
        return "importing things"


class Clock:
    """A clock that jumps 100 s at each look, until it has seen enough."""

    def __init__(self, end, then):
        self.now, self.end, self.then = 0.0, end, then

    def __call__(self):
        if self.now >= self.end:
            self.then()
            return self.now
        self.now += 100
        return self.now


def test_a_worker_process_may_take_longer_to_start_than_a_stall_and_is_named_when_it_never_does(monkeypatch):
    may = threading.Event()
    monkeypatch.setattr("thalweg.work.turns.perf_counter", Clock(1000, may.set))
    m = OrderedMap(range(6), lambda i: [i], workers=2, stall_after=300, make_runner=lambda: Starts(lambda i: [i], may))
    assert list(m) == list(range(6))
    m.close()
    never = threading.Event()
    monkeypatch.setattr("thalweg.work.turns.perf_counter", Clock(9000, lambda: None))
    m = OrderedMap(
        range(6), lambda i: [i], workers=2, stall_after=300, make_runner=lambda: Starts(lambda i: [i], never)
    )
    with pytest.raises(StalledError, match=r"a worker process that starts is busy(.|\n)*importing things"):
        list(m)
    never.set()
    m.close()


def test_a_stall_says_who_waits_for_what():
    hold = threading.Event()

    def call(i):
        if i == 1:
            hold.wait(30)
        return [i]

    m = OrderedMap(range(6), call, workers=2, stall_after=0.2)
    got = []
    with pytest.raises(StalledError, match="waits for item 1") as caught:
        [got.append(x) for x in m]
    assert got == [0]
    assert "hold.wait" in str(caught.value)
    hold.set()
    m.close()


def test_a_source_that_waits_for_its_consumer_is_not_starved_by_chunks():
    # an item may not sit in a half-filled job while the source gives nothing
    seen = threading.Semaphore(1)

    def source():
        for i in range(200):
            assert seen.acquire(timeout=20)
            yield i

    got = []
    for x in OrderedMap(source(), lambda i: [i], workers=2, chunk=8):
        got.append(x)
        seen.release()
    assert got == list(range(200))


def test_the_next_item_never_waits_for_bytes():
    # SEMANTICS 5.4, model `head_free`: a budget of one byte still lets everything through, alone
    peaks = []

    def call(i):
        return (bytes(1000) for _ in range(5))

    budget = ByteBudget(1)
    for out in OrderedMap(range(20), call, workers=4, ahead=16, budget=budget):
        peaks.append(len(out))
    assert peaks == [1000] * 100
    assert budget.used == 0
    assert budget.peak <= 3000  # one output in hand, one on its way, and an input
    assert budget.oversize > 0


class Sized:
    """An item of so many bytes, as arrays have them."""

    def __init__(self, nbytes):
        self.nbytes = nbytes


@pytest.mark.parametrize("chunk", [1, 4, None])
def test_an_item_over_the_budget_goes_through_alone_and_is_counted(chunk):
    # SEMANTICS 5.4
    budget, seen = ByteBudget(10_000), []

    def call(item):
        if item.nbytes > 10_000:
            seen.append(budget.used)
        return [item]

    sizes = [300, 300, 50_000, 300, 300, 300, 60_000, 300] * 3
    m = OrderedMap(map(Sized, sizes), call, workers=3, ahead=16, chunk=chunk, budget=budget)
    assert [x.nbytes for x in m] == sizes
    assert seen == [n + 128 for n in sizes if n > 10_000]  # nothing else was in memory then
    assert budget.oversize == len(seen)
    assert budget.used == 0


@pytest.mark.parametrize("place", ["credits", "bytes", "part", "call", "nothing"])
def test_close_wakes_every_place_that_waits(place):
    # model `close_wakes`: the reader for room or bytes, a worker for its output's turn, the consumer away
    budget = ByteBudget(1000 if place in {"bytes", "part"} else None)
    at_work = threading.Event()

    def call(item):
        at_work.set()
        if place == "part":
            return (Sized(600) for _ in range(20))
        return [item]

    m = OrderedMap((Sized(600) for _ in range(100)), call, workers=2, ahead=4, chunk=1, budget=budget)
    it = iter(m)
    next(it)
    assert at_work.wait(20)
    waiting = {
        "credits": lambda: m.stats["read"] >= 4,
        "part": lambda: budget._waiters,
        "bytes": lambda: budget._waiters,
    }
    while not waiting.get(place, lambda: True)():
        threading.Event().wait(0.001)
    m.close()
    assert ours() == []
    m.close()


def test_items_without_output_give_their_room_back():
    # model `empty_pays`: a consumer that waits for the first output sees 300 turns pass, with room for two
    m = OrderedMap(range(301), lambda i: [i] if i == 300 else [], workers=2, ahead=2)
    assert list(m) == [300]
    streamed = OrderedMap(range(301), lambda i: iter([i] if i == 300 else []), workers=2, ahead=2)
    assert list(streamed) == [300]


def test_only_started_maps_have_threads():
    m = OrderedMap(range(5), lambda i: [i], workers=4)
    assert ours() == []
    del m
