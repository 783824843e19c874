"""What takes long says so, once."""

import sys
import threading

import pytest

from thalweg.work import late


class Heard:
    def __init__(self):
        self.text, self.there = "", threading.Event()

    def write(self, text):
        self.text += text

    def flush(self):
        self.there.set()


def test_what_takes_long_is_told_once_and_what_is_quick_not_at_all(monkeypatch):
    heard = Heard()
    monkeypatch.setattr(sys, "stderr", heard)
    monkeypatch.setattr(late, "QUIET", 0.0)
    with late.told_where_slow("counting ..."):
        assert heard.there.wait(60)
    assert heard.text == "counting ...\n"
    monkeypatch.setattr(late, "QUIET", 600.0)
    with pytest.raises(ZeroDivisionError), late.told_where_slow("again ..."):
        raise ZeroDivisionError
    assert heard.text == "counting ...\n"


def test_one_rank_of_a_node_tells_it(monkeypatch):
    heard = Heard()
    monkeypatch.setattr(sys, "stderr", heard)
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(late, "QUIET", 0.0)
    started = []
    monkeypatch.setattr(threading.Timer, "start", started.append)
    with late.told_where_slow("counting ..."):
        pass
    assert started == []
    assert not heard.text
