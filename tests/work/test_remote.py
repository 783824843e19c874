"""Promises of worker processes: what travels, how errors arrive, and that nothing is left."""

import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from thalweg.core.errors import StalledError, WorkerError
from thalweg.work.arena import Arena
from thalweg.work.ordered import OrderedMap
from thalweg.work.port import Job
from thalweg.work.remote import RemoteCalls
from thalweg.work.spawn import Child


def mapped(items, call, *, stop_on_error=True, workers=2, copy=False, **more):
    calls = RemoteCalls(call, lambda i: f"item {i}", stop_on_error, copy=copy)
    return OrderedMap(items, call, workers=workers, make_runner=calls, stop_on_error=stop_on_error, **more), calls


def gone(pid, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except OSError:
            return True
        threading.Event().wait(0.02)
    return False


def test_closures_and_lambdas_run_in_other_processes_in_order():
    # A2 A8 A9
    offset = 1000
    m, _ = mapped(range(200), lambda i: [(offset + i, os.getpid())] * (i % 3), workers=3, chunk=None)
    out = list(m)
    assert [v for v, _ in out] == [1000 + i for i in range(200) for _ in range(i % 3)]
    assert os.getpid() not in {pid for _, pid in out}
    m.close()


@pytest.mark.parametrize("copy", [False, True])
def test_any_value_survives_and_arrays_come_whole(copy):
    # A52
    def call(i):
        return [
            {
                "text": "π" * i,
                "bytes": bytes([i]) * 5000,
                "small": np.arange(i),
                "big": np.full((100, 30 + i), i, np.float32),
                "strided": np.arange(20_000).reshape(100, 200)[::2, ::3],
                "none": None,
                "nested": {"a": [1, (2, "x")]},
            }
        ]

    m, calls = mapped(range(1, 40), call, copy=copy)
    kept = list(m)
    for i, out in enumerate(kept, 1):
        want = call(i)[0]
        for name, value in want.items():
            got = out[name]
            assert np.array_equal(got, value) if isinstance(value, np.ndarray) else got == value
        out["big"][0, 0] = 7  # the caller owns what it gets
    m.close()
    del out, kept, got
    assert calls.arena.leased == 0


def test_a_delivered_array_keeps_its_bytes_as_long_as_any_view_lives():
    m, _ = mapped(range(60), lambda i: [np.full(20_000, i, np.int64)])
    views = [a.reshape(100, 200)[3:, ::7] for a in m]
    assert all((v == i).all() for i, v in enumerate(views))
    m.close()


def test_arena_lends_again_what_nobody_looks_into():
    arena = Arena(1 << 20)
    piece = arena.borrow(100_000)
    view = np.frombuffer(arena.lease(piece), np.uint8)[5:10]
    other = arena.borrow(100_000)
    assert other is not piece
    arena.give_back(other)
    assert arena.borrow(100_000) is other
    del view
    assert arena.borrow(100_000) is piece
    assert arena.borrow(2 << 20) is None
    arena.close()
    arena.close()


def test_no_two_threads_borrow_the_same_memory():
    # workers of one map share an arena; two arrays in one place would be silent corruption
    before, arena, lent = sys.getswitchinterval(), Arena(1 << 30), [[], [], []]

    def borrow(mine):
        try:
            for k in range(3000):
                piece = arena.borrow(4096)
                if k % 30:
                    arena.give_back(piece)
                else:
                    mine.append(piece)
        except IndexError as error:
            mine.append(error)

    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=borrow, args=(mine,)) for mine in lent]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        sys.setswitchinterval(before)
    offsets = [piece.offset for mine in lent for piece in mine]
    assert len(offsets) == len(set(offsets)) == 300
    arena.close()


@pytest.mark.parametrize("kept", [False, True])
def test_copied_arrays_are_the_callers_own_and_their_memory_is_used_again(kept):
    m, calls = mapped(range(200), lambda i: [np.full(20_000, i, np.int64)], copy=True, ahead=8, chunk=1)
    out = []
    for i, a in enumerate(m):
        assert (a == i).all()
        a[0] = -1
        if kept:
            out.append(a)
    assert calls.arena.leased == 0
    assert [int(a[1]) for a in out] == list(range(200))[: len(out)]
    if not kept:
        assert calls.own.made <= 16 * 204_800  # 8 in flight, some being handed over; not 200
    m.close()


class TwoArguments(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a}-{b}")


class NoPickle(Exception):
    def __reduce__(self):
        raise TypeError("never")


def raise_from(x):
    try:
        raise KeyError("inner")
    except KeyError as error:
        raise RuntimeError("outer") from error


def closure_error(x):
    class Inner(Exception):
        pass

    raise Inner("deep")


def with_lock(x):
    error = OSError("locked")
    error.lock = threading.Lock()
    raise error


def throw(error):
    def call(x):
        raise error() if isinstance(error, type) else error

    return call


CASES = [
    ("two", lambda x: (_ for _ in ()).throw(TwoArguments(1, 2)), "TwoArguments", "1-2"),
    ("nopickle", lambda x: (_ for _ in ()).throw(NoPickle("text")), "NoPickle", "text"),
    ("closure", closure_error, "Inner", "deep"),
    ("lock", with_lock, "OSError", "locked"),
    ("key", lambda x: {}["x"], "KeyError", "x"),
    ("stop", lambda x: next(iter(())), "StopIteration", ""),
    ("exit", lambda x: sys.exit(3), "SystemExit", "3"),
    ("long", lambda x: (_ for _ in ()).throw(ValueError("m" * 10_000_000)), "ValueError", "m" * 1000),
    ("from", raise_from, "RuntimeError", "outer"),
]


@pytest.mark.parametrize("where", ["threads", "processes"])
@pytest.mark.parametrize(("name", "fail", "kind", "text"), CASES, ids=[c[0] for c in CASES])
def test_the_real_error_arrives_with_type_text_traceback_and_item(where, name, fail, kind, text):
    # K39 A18 A19
    def call(i):
        if i == 7:
            fail(i)
        return [i]

    if where == "threads":
        m = OrderedMap(range(20), call, workers=2, describe=lambda i: f"item {i}")
    else:
        m, _ = mapped(range(20), call, chunk=3)
    got = []
    with pytest.raises(Exception) as caught:
        [got.append(x) for x in m]
    assert got == list(range(7))
    said = str(caught.value) + "".join(getattr(caught.value, "__notes__", [])) + repr(caught.value.__cause__)
    assert not isinstance(caught.value, StopIteration | SystemExit)
    assert kind in said + type(caught.value).__name__
    assert text in said
    assert "item 7" in said
    if where == "processes":
        assert "in a worker process:\nTraceback" in said
    m.close()
    assert [t for t in threading.enumerate() if t.name.startswith("thalweg-")] == []


def test_a_killed_worker_is_an_error_that_names_signal_and_items():
    # K39
    def call(i):
        if i == 11:
            os.kill(os.getpid(), signal.SIGKILL)
        return [i]

    m, _ = mapped(range(40), call)
    got = []
    with pytest.raises(WorkerError, match=r"SIGKILL.*it held item 11") as caught:
        [got.append(x) for x in m]
    assert got == list(range(11)), caught.value
    m.close()


def test_after_a_death_the_other_items_of_the_job_are_not_lost():
    def call(i):
        if i == 11:
            os._exit(3)
        return [i]

    m, _ = mapped(range(40), call, chunk=8, stop_on_error=False, workers=2)
    turns = list(m.turns())
    assert [t.item for t in turns] == list(range(40))
    assert [t.outputs[0] for t in turns if t.error is None] == [t.item for t in turns if t.error is None]
    assert "exit status 3" in str(turns[11].error)
    assert sum(t.error is not None for t in turns) <= 2  # the first of the job may be blamed with it
    m.close()


# A52
def test_a_process_works_on_while_its_results_are_read(tmp_path):
    def call(i):
        if i == 5:
            (tmp_path / "began").touch()
        return [i]

    class Results(list):
        def result(self, number, items, outcomes, charged, size=None):
            end = time.monotonic() + 60
            while number < 4 and not (tmp_path / "began").exists() and time.monotonic() < end:
                threading.Event().wait(0.01)
            assert (tmp_path / "began").exists()
            self.extend(outcomes)

    jobs = [Job(0, [0, 1, 2, 3], 0), Job(4, [4, 5, 6, 7], 0)]
    runner, results = RemoteCalls(call, str, True)(), Results()
    runner.take = lambda: jobs[1] if len(results) < 4 else None
    for job in jobs:
        runner.run(job, results)
    runner.end()
    assert results == [[i] for i in range(8)]


# A24 K39
@pytest.mark.parametrize("fatal", [{37, 38, 200, 399}, {15, 16, 31, 32}, set(range(0, 400, 50))])
def test_deaths_in_jobs_that_were_sent_ahead_cost_the_items_that_died_and_no_other(fatal):
    def call(i):
        if i in fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        return [i]

    m, _ = mapped(range(400), call, stop_on_error=False, chunk=16, ahead=128)
    turns = [(t.item, t.outputs, t.error) for t in m.turns()]
    m.close()
    assert [item for item, _, _ in turns] == list(range(400))
    errors = {item: str(error) for item, _, error in turns if error is not None}
    assert fatal <= errors.keys()
    assert len(errors) <= 2 * len(fatal)  # the first of a job may be blamed with it
    assert all(outputs == [item] for item, outputs, error in turns if error is None)
    assert all("SIGKILL" in text and f"it held item {item}" in text for item, text in errors.items())


def test_a_job_that_was_sent_ahead_and_given_up_does_not_answer_for_another():
    runner, got = RemoteCalls(lambda i: [i * 10], str, True)(), []

    class Results:
        def result(self, number, items, outcomes, charged, size=None):
            got.append((number, outcomes))

    ahead = [Job(2, [2, 3], 0)]
    runner.take = lambda: ahead.pop() if ahead else None
    runner.run(Job(0, [0, 1], 0), Results())
    runner.run(Job(6, [6, 7], 0), Results())  # not the one that was sent
    runner.end()
    assert got == [(0, [[0], [10]]), (6, [[60], [70]])]


def test_a_job_that_was_sent_ahead_to_a_process_that_is_given_up_is_sent_to_the_next():
    class NotRead:
        def __reduce__(self):
            return int, ("no number",)  # fails where it is read

    class Results:
        def result(self, number, items, outcomes, charged, size=None):
            got.append((number, outcomes))

    runner, got = RemoteCalls(lambda i: [NotRead() if i == 1 else i], str, True)(), []
    jobs = [Job(0, [0, 1], 0), Job(2, [2, 3], 0)]
    ahead = [jobs[1]]
    runner.take = lambda: ahead.pop() if ahead else None
    running = threading.Thread(target=lambda: [runner.run(job, Results()) for job in jobs], daemon=True)
    running.start()
    running.join(60)
    runner.cancel()  # ends the wait for results of a job that nobody has
    runner.end()
    assert not ahead
    assert [number for number, _ in got] == [0, 2]
    assert isinstance(got[0][1][0].error, ValueError)
    assert got[1][1] == [[2], [3]]


def test_a_call_over_its_time_in_a_process_is_killed_and_replaced(monkeypatch):
    arrived = []  # time passes once all other results are there
    monkeypatch.setattr("thalweg.work.turns.perf_counter", lambda: 100.0 if len(arrived) >= 7 else 0.0)

    def call(i):
        if i == 3:
            time.sleep(60)
        return [i]

    def seen(message):
        if message.outcomes:
            arrived.append(message.number)

    m, _ = mapped(range(8), call, stop_on_error=False, timeout=50, hook=seen)
    turns = list(m.turns())
    assert [t.item for t in turns if t.error is None] == [0, 1, 2, 4, 5, 6, 7]
    assert "in call" in str(turns[3].error)  # where the worker process stood, not the thread that waits for it
    m.close()


def test_a_stall_shows_where_worker_processes_stand(monkeypatch, tmp_path):
    begun, clock = tmp_path / "begun", itertools.count()  # each look at the clock is a second, once the call has begun
    monkeypatch.setattr("thalweg.work.turns.perf_counter", lambda: float(next(clock)) if begun.exists() else 0.0)

    def asleep(i):
        if i:
            begun.touch()
            time.sleep(60)
        return [i]

    m, _ = mapped(range(6), asleep, stall_after=20, workers=1)
    with pytest.raises(StalledError, match=r"waits for item 1[\s\S]*in a worker process:[\s\S]*in asleep"):
        list(m)
    m.close()


def in_dev_shm(maps):
    return {line[line.index("/dev/shm") :] for line in maps.splitlines() if "/dev/shm" in line}


def test_no_array_goes_through_dev_shm_however_small_it_is():
    # containers have 64 MB there: 200 MB are kept alive at once, and neither side maps anything of it
    before = in_dev_shm(Path("/proc/self/maps").read_text())  # locks that other libraries made in this process
    m, _ = mapped(range(100), lambda i: [np.full(1 << 18, i, np.int64)], ahead=16)
    kept = list(m)
    pids = [os.getpid(), *(r.child.pid for r in m._core.runners if r.child)]
    maps = "".join(Path(f"/proc/{pid}/maps").read_text() for pid in pids)
    assert in_dev_shm(maps) <= before
    assert "memfd:thalweg" in maps
    assert all((a == i).all() for i, a in enumerate(kept))
    m.close()


def test_a_function_that_cannot_be_sent_is_refused_by_name():
    lock = threading.Lock()
    with pytest.raises(WorkerError, match="lock"):
        RemoteCalls(lambda i: [lock], str, True)


def test_a_function_that_cannot_be_loaded_is_an_error_with_the_reason(tmp_path, monkeypatch):
    (tmp_path / "vanishing.py").write_text("def call(i):\n    return [i]\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    from vanishing import call

    m, _ = mapped(range(5), call)
    (tmp_path / "vanishing.py").unlink()
    for cached in tmp_path.rglob("*.pyc"):
        cached.unlink()
    with pytest.raises(WorkerError, match="vanishing"):
        list(m)
    m.close()


def test_a_child_tells_where_it_stands():
    def body(wire, fds):
        wire.send(b"here")
        threading.Event().wait(60)

    child = Child(body)
    assert bytes(child.wire.receive()[0]) == b"here"
    assert "in body" in child.stack(5)
    child.kill()
    assert "SIGKILL" in child.death()
    child.end()
    child.end()


SCRIPT = """
import threading
import numpy as np
import thalweg as tw

LOCK = threading.Lock()  # a global that cannot be pickled, and is not used by the function
class Scale:
    def __init__(self, by): self.by = by
    def __call__(self, sample): return {"n": factor(sample["n"]) * self.by, "pid": __import__("os").getpid()}
def factor(n): return n + OFFSET
OFFSET = 100
feed = tw.from_stream([{"n": i} for i in range(30)])
for fn in (Scale(2), lambda s: {"n": factor(s["n"]) * 2, "pid": __import__("os").getpid()}):
    loader = tw.Loader(feed.map(fn, mode="processes", workers=2).batch(1, collate="raw"), return_tensors="np")
    got = [b["samples"][0] for b in loader]
    loader.close()
    assert [s["n"] for s in got] == [2 * (i + 100) for i in range(30)], got
    assert __import__("os").getpid() not in {s["pid"] for s in got}
print("ran once")
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["script", "notebook"])
def test_functions_of_a_script_without_a_main_guard_and_of_a_notebook_run_in_processes(tmp_path, how):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    # a notebook's cells are executed in __main__ and are in no file
    code = f"exec(compile(open({str(path)!r}).read(), '<cell 3>', 'exec'), globals())"
    command = [sys.executable, str(path)] if how == "script" else [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "ran once\n"), done.stderr


PARENT = """
import sys, os, time
from thalweg.work.ordered import OrderedMap
from thalweg.work.port import Job
from thalweg.work.remote import RemoteCalls
def call(i):
    if i > 2: time.sleep(60)
    return [os.getpid()]
m = OrderedMap(range(9), call, workers=2, make_runner=RemoteCalls(call, str, True))
it = iter(m)
pids = {next(it) for _ in range(3)}
print(*pids, *[r.child.pid for r in m._core.runners], flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_workers_end_with_their_parent_however_it_ends(number):
    # K41 A21: the script has no main guard, and its workers are asleep inside user code
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    pids = [int(p) for p in parent.stdout.readline().split()]
    assert len(set(pids)) >= 2
    parent.send_signal(number)
    assert parent.wait(60) in (-number, 1, 130)
    parent.stdout.close()
    assert all(gone(pid) for pid in pids)


def test_two_hundred_starts_and_breaks_grow_nothing():
    # A21 K41
    def fds():
        return len(os.listdir("/proc/self/fd"))

    counts = []
    for k in range(200):
        remote = k % 40 == 0
        if remote:
            m = mapped(iter(int, 1), lambda i: [np.zeros(5000)], ahead=8)[0]
        else:
            m = OrderedMap(iter(int, 1), lambda i: [i], workers=4, ahead=8)
        it = iter(m)
        next(it)
        next(it)
        m.close()
        del m, it
        if remote:
            gc.collect()
            counts.append((fds(), threading.active_count(), len(gc.get_objects())))
    (*first, objects), (*last, more) = counts[1], counts[-1]
    assert all(later <= before for later, before in zip(last, first, strict=True)), counts
    assert more < objects + 100, counts  # of 120 starts in between
