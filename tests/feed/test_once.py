"""Passes over data: in parallel, kept in pieces, shared by the processes of a node, the same whoever ran them."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import thalweg as tw
from thalweg.feed import once

N = 1000


@pytest.fixture(autouse=True)
def small_pieces(tmp_path, monkeypatch):
    monkeypatch.setenv("THALWEG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(once, "PIECE", 100)
    monkeypatch.setattr(once, "CALL", 10)


def source(n=N):
    return tw.from_dataset([{"value": i, "id": f"s{i}"} for i in range(n)], id="id", fingerprint=f"numbers {n}")


def encode(sample):
    return {"input_ids": np.arange(1 + sample["value"] % 7, dtype=np.int32)}


def twice(sample):
    return [encode(sample)] * (sample["value"] % 3)


def keep(sample):
    return sample["value"] % 3 == 0


# E50 E51 C15
@pytest.mark.parametrize(
    "how", [{"mode": "threads", "workers": 3}, {"mode": "processes", "workers": 2}, {"workers": 0}]
)
def test_any_workers_keep_the_same_samples_in_the_same_order(how, tmp_path, monkeypatch):
    def made(name, **words):
        monkeypatch.setenv("THALWEG_CACHE", str(tmp_path / name))
        mapped = source().map(twice, remove_columns=["value"], **words)
        lengths = source().map(encode, **words).cache(what="lengths")
        kept = source().map(encode, **words).filter(keep)
        return (
            [(s["input_ids"].tolist()) for s in mapped.cache()],
            lengths.num_rows,
            lengths.filter(lambda length: length == 7, columns="length").num_rows,
            [s["value"] for s in kept],
        )

    with once.in_this_thread(True):
        plain = made("plain")
    assert made("other", **how) == plain
    assert len(plain[0]) == sum(i % 3 for i in range(N))
    assert plain[3] == list(range(0, N, 3))


def test_a_pass_that_was_broken_off_goes_on_with_the_pieces_it_has():
    calls, stop = [], [450]

    def feeds():
        counted = Counted(calls, stop)
        return source().map(counted), source().filter(counted)

    for attempt in feeds():
        calls.clear()
        stop[0] = 450
        run = attempt.cache() if attempt.stages[-1].verb == "map" else attempt
        with once.in_this_thread(True):
            with pytest.raises(KeyboardInterrupt):
                _ = run.num_rows
            assert calls == list(range(451))
            calls.clear()
            stop[0] = None
            assert run.num_rows == N
            assert calls == list(range(400, N))  # the pieces that were whole are not made again
            calls.clear()
            assert run.num_rows == N
            assert calls == []


class Counted:
    """Notes its calls; its notes are no part of its identity."""

    fingerprint = "counted"

    def __init__(self, calls, stop):
        self.calls, self.stop = calls, stop

    def __call__(self, sample):
        self.calls.append(sample["value"])
        if self.stop[0] == sample["value"]:
            raise KeyboardInterrupt
        return encode(sample)


JOB = """
import os, sys, time
import numpy as np
import thalweg as tw
from thalweg.feed import once
once.PIECE, once.CALL = 100, 10
mine, other = sys.argv[1:]

class Log:
    fingerprint = "log"
    def __call__(self, sample):
        with open(mine, "a") as file:
            file.write(f"{sample['value']}\\n")
        while not os.path.exists(other):  # neither may finish before the other has begun
            time.sleep(0.001)
        return {"input_ids": np.arange(1 + sample["value"] % 7, dtype=np.int32)}

rows = [{"value": i, "id": f"s{i}"} for i in range(2000)]
feed = tw.from_dataset(rows, id="id", fingerprint="two").map(Log(), mode="inline").cache()
print(feed.num_rows)
"""


@pytest.mark.slow
def test_the_processes_of_a_node_share_a_pass(tmp_path):
    paths = [str(tmp_path / f"log{rank}") for rank in range(2)]
    jobs = []
    for rank in range(2):
        env = {**os.environ, "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}
        command = [sys.executable, "-c", JOB, paths[rank], paths[1 - rank]]
        jobs.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env))
    assert [job.communicate()[0].strip() for job in jobs] == ["2000", "2000"]
    logs = [(tmp_path / f"log{rank}").read_text().split() for rank in range(2)]
    assert sorted(map(int, logs[0] + logs[1])) == list(range(2000))  # each sample once on the node
    assert logs[0][0] == "0"
    assert logs[1][0] == "1000"  # each begins elsewhere


def test_without_workers_a_pass_runs_in_the_thread_that_asks():
    threads = set()

    class Where:
        fingerprint = "where"

        def __call__(self, sample):
            threads.add(threading.current_thread())
            return encode(sample)

    tw.Loader(source().map(Where(), remove_columns=["value"]).cache().batch(4), workers=0, return_tensors="np").close()
    assert threads == {threading.current_thread()}


def test_a_progress_line_says_how_far_a_long_pass_is(monkeypatch, capsys):
    monkeypatch.setattr(once, "QUIET", 0.0)
    assert source().filter(keep).num_rows == 334
    lines = capsys.readouterr().err.splitlines()
    assert ": 0 of 10 pieces, 10% of the next" in lines[0]  # not only when a whole piece is done
    assert ": 9 of 10 pieces, 90% of the next" in lines[-2]
    assert "from before" not in lines[0]


def test_the_time_left_of_a_short_pass_is_that_of_its_samples(monkeypatch, capsys):
    """Less than a piece: the rest of the samples is left, not the rest of a piece."""
    now = [0.0]
    monkeypatch.setattr(once, "PIECE", 16_384)
    monkeypatch.setattr(once, "QUIET", 0.0)
    monkeypatch.setattr(once, "CALL", 10)
    monkeypatch.setattr(once.time, "monotonic", lambda: now[0])
    feed = tw.from_dataset([{"value": n} for n in range(40)], fingerprint="forty")
    with once.in_this_thread(True):
        feed.map(lambda s: now.__setitem__(0, now[0] + 1) or encode(s), remove_columns=["value"]).cache().num_rows  # noqa: B018
    lines = [line for line in capsys.readouterr().err.splitlines() if "pieces" in line]
    assert "0 of 1 pieces, 25% of the next, 30 s left" in lines[0]


def test_a_pass_that_goes_on_counts_the_pieces_of_before_from_its_first_line_on(monkeypatch, capsys):
    calls = []

    def run():
        with once.in_this_thread(True):
            return source().map(Counted(calls, [450]), remove_columns=["value"]).cache().num_rows

    with pytest.raises(KeyboardInterrupt):
        run()
    now = [0.0]
    monkeypatch.setattr(once.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(Counted, "__call__", lambda self, sample: now.__setitem__(0, now[0] + 1) or encode(sample))
    capsys.readouterr()
    assert run() == N
    lines = [line for line in capsys.readouterr().err.splitlines() if "pieces" in line]
    assert ": 4 of 10 pieces (4 from before), 10% of the next, 590 s left" in lines[0]
