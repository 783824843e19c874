"""Promises of one call beside its caller."""

import threading

import pytest

from thalweg.work.beside import Beside


def names():
    return [t.name for t in threading.enumerate() if t.name == "thalweg-test"]


@pytest.mark.parametrize("here", [False, True])
def test_a_call_is_over_when_its_caller_goes_on_and_its_error_is_raised_there(here):
    done = []
    one = Beside(lambda: done.append(threading.current_thread().name), name="thalweg-test")
    one.start(here=here)
    one.end()
    one.end()
    assert done == [threading.current_thread().name if here else "thalweg-test"]
    bad = Beside(lambda: done.append(1 // 0), name="thalweg-test")
    bad.start(here=here)
    bad.wait()
    with pytest.raises(ZeroDivisionError):
        bad.end()
    assert names() == []


def test_a_call_goes_on_while_its_caller_does_something_else():
    go, there = threading.Event(), threading.Event()

    def call():
        there.set()
        assert go.wait(60)

    one = Beside(call, name="thalweg-test")
    one.start()
    assert there.wait(60)
    assert names() == ["thalweg-test"]
    go.set()
    one.end()
    assert names() == []


def test_where_no_thread_can_be_started_the_call_is_made_all_the_same(monkeypatch):
    def none(_thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none)
    done = []
    one = Beside(lambda: done.append(threading.current_thread()), name="thalweg-test")
    one.start()
    one.end()
    assert done == [threading.current_thread()]


def test_what_was_never_started_is_not_waited_for():
    Beside(lambda: None, name="thalweg-test").wait()
