"""Promises of mode="auto": it looks at real calls, maps nothing twice, and keeps the order."""

import threading
import time
from collections import Counter

import numpy as np

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


def test_calls_that_wait_get_many_threads():
    # A3 A4
    def call(i):
        time.sleep(0.004)
        return [i]

    out, choices = run(call, 120)
    assert out == list(range(120))
    assert [(c.mode, c.workers) for c in choices] == [("threads", 16)]
    assert "waits" in str(choices[0])


def test_calls_that_cost_nothing_get_one_thread():
    out, choices = run(lambda i: [i, -i], 2000)
    assert out == [v for i in range(2000) for v in (i, -i)]
    assert [(c.mode, c.workers) for c in choices] == [("threads", 1)]


def test_python_bound_calls_end_in_one_worker_per_cpu_or_say_why_not():
    def call(i):
        total = 0
        for k in range(60_000):
            total += k * i
        return [total]

    out, choices = run(call, 150)
    assert out == [call(i)[0] for i in range(150)]
    assert len(choices) == 1
    assert choices[0].mode in {"processes", "threads"}  # a busy machine may show two CPUs at work or one
    assert "CPU" in choices[0].why


def test_without_a_second_cpu_nothing_is_tried():
    def call(i):
        return [int(np.sort(np.arange(300_000)[::-1]).sum()) + i]

    _, choices = run(call, 100, cpus=1)
    assert [c.workers for c in choices] == [1]


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
