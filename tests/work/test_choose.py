"""Promises of mode="auto": it looks at real calls, maps nothing twice, and keeps the order."""

import threading
from collections import Counter, deque

import pytest

from thalweg.work.budget import ByteBudget
from thalweg.work.choose import Chooser
from thalweg.work.ordered import OrderedMap
from thalweg.work.percopy import for_worker
from thalweg.work.remote import RemoteCalls


def run(call, n, cpus=2, processes=True):
    calls, choices = Counter(), []

    def counted(i):
        calls[i] += 1
        return call(i)

    make = (lambda: RemoteCalls(call, str, True)) if processes else None
    chooser = Chooser(cpus, make, told=choices.append)
    m = OrderedMap(range(n), counted, workers=1, chunk=None, watch=chooser.look, budget=ByteBudget(1 << 20))
    out = list(m)
    m.close()
    assert [t for t in threading.enumerate() if t.name.startswith("thalweg-")] == []
    assert max(calls.values()) == 1
    return out, choices


def wait(i):
    threading.Event().wait(0.004)
    return [i]


def compute(i):
    total = 0
    for k in range(30_000):
        total += k * i
    return [total]


@pytest.mark.parametrize(
    ("call", "n"), [(wait, 120), (compute, 150), (lambda i: [i, -i], 2000)], ids=["waits", "computes", "nothing"]
)
def test_whatever_is_chosen_each_item_is_mapped_once_in_order_and_the_choice_is_told_once(call, n):
    # A3: which choice it is depends on times; what follows from which times is tested below without a clock
    out, choices = run(call, n)
    assert out == [v for i in range(n) for v in call(i)]
    assert len(choices) <= 1
    if choices:
        assert choices[0].mode in {"threads", "processes"}
        assert choices[0].why


class Run:
    """A map whose calls take what a table says: seconds of waiting with one worker and two, and of computing."""

    def __init__(self, waits, computes):
        self.waits, self.computes = waits, computes
        self.workers, self.pace, self.made, self.is_timed = 1, deque(maxlen=64), None, True

    def set_workers(self, n, make_runner=None):
        self.workers, self.made = n, make_runner

    def timed(self, yes):
        self.is_timed = yes

    def chosen(self, cpus=2, processes=True):
        told = []
        chooser = Chooser(cpus, (lambda: "process runners") if processes else None, told=told.append)
        for _ in range(40):
            wait = self.waits[self.workers - 1] if self.workers <= 2 else 0.0
            self.pace.append((wait + self.computes, self.computes, 1))
            chooser.look(self)
        assert len(told) == 1
        assert self.workers == told[0].workers
        assert not self.is_timed
        assert (self.made == "process runners") == (told[0].mode == "processes")
        return told[0]


ms = 1e-3


@pytest.mark.parametrize(
    ("waits", "computes", "mode", "workers", "said"),
    [
        ((5 * ms, 5 * ms), 0.1 * ms, "threads", 16, "waits"),  # disk, network
        ((5 * ms, 6 * ms), 2 * ms, "threads", 16, "waits"),
        ((0.0, 2 * ms), 2 * ms, "processes", 4, "did not run at the same time"),  # Python: one waits for the other
        ((3 * ms, 6 * ms), 2 * ms, "processes", 4, "did not run"),  # Python, beside a consumer that computes in Python
        ((0.0, 0.1 * ms), 2 * ms, "threads", 4, "at the same time"),  # numpy, image decoders
        ((0.0, 0.03 * ms), 0.1 * ms, "threads", 4, "at the same time"),
        ((0.0, 0.2 * ms), 0.1 * ms, "threads", 1, "too little"),  # Python, but cheap
        ((0.0, 0.0), 0.005 * ms, "threads", 1, "less than handing"),
    ],
)
def test_what_is_chosen_follows_from_what_a_second_worker_changes(waits, computes, mode, workers, said):
    # A3: time in line for a CPU is in none of these figures (the clock leaves it out), so load changes no choice
    choice = Run(waits, computes).chosen(cpus=4)
    assert (choice.mode, choice.workers) == (mode, workers)
    assert said in choice.why


def test_what_cannot_be_sent_stays_in_one_thread_and_says_so():
    choice = Run((0.0, 2 * ms), 2 * ms).chosen(processes=False)
    assert (choice.mode, choice.workers) == ("threads", 1)
    assert "cannot be sent" in choice.why


def test_one_cpu_gets_one_thread_but_many_for_calls_that_wait():
    assert Run((0.0, 0.0), 2 * ms).chosen(cpus=1).workers == 1
    assert Run((5 * ms, 5 * ms), 0.1 * ms).chosen(cpus=1).workers == 16


class FakeTokenizer:
    """Stands in the library's module, as the real ones do."""

    __module__ = "tokenizers.fake"

    def __init__(self):
        self.calls = []


def test_a_tokenizer_is_copied_and_all_else_is_shared():
    # a counter that the function captured must go on counting in the caller's object
    shared, tok = [], FakeTokenizer()

    def fn(x):
        shared.append(x)
        tok.calls.append(x)
        return tok

    one, two = for_worker(fn), for_worker(fn)
    assert one(1) is not tok
    assert one(1) is not two(2)
    assert shared == [1, 1, 2]
    assert tok.calls == []

    class Encoder:
        def __init__(self):
            self.tokenizer, self.shared = tok, shared

        def __call__(self, x):
            self.shared.append(x)
            return self.tokenizer

    encoder = Encoder()
    copied = for_worker(encoder)
    assert copied(7) is not tok
    assert shared[-1] == 7
    assert for_worker(len) is len


def test_a_function_without_a_tokenizer_is_itself():
    def fn(x):
        return x

    assert for_worker(fn) is fn
