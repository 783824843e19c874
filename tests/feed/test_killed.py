"""Jobs killed with SIGKILL and continued in fresh processes, on other numbers of ranks: the order goes on."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

import thalweg as tw
from thalweg.feed.ledger import verify_ledger

JOB = Path(__file__).with_name("killed_job.py")
spec = importlib.util.spec_from_file_location("killed_job", JOB)
killed_job = importlib.util.module_from_spec(spec)
spec.loader.exec_module(killed_job)


def run(folder, leg, world, steps, *, accumulation=1, workers=0, kill=True):
    """Run a leg, one process a rank; gives the rows of its steps in order, and the state behind it."""
    more = {"WORLD_SIZE": str(world), "ACCUMULATION": str(accumulation), "WORKERS": str(workers)}
    command = [sys.executable, str(JOB), str(folder), str(leg), str(steps), "kill" if kill else "end"]
    ranks = [
        subprocess.Popen(command, env={**os.environ, **more, "RANK": str(r)}, stderr=subprocess.PIPE, text=True)
        for r in range(world)
    ]
    for r in ranks:
        _, errors = r.communicate(timeout=120)
        assert r.returncode == (-signal.SIGKILL if kill else 0), errors
    told = [json.loads((folder / f"leg{leg}-{r}.json").read_text()) for r in range(world)]
    assert len({json.dumps(t["after"]) for t in told}) == 1
    assert len({len(t["steps"]) for t in told}) == 1  # equal steps on all ranks
    rows = [row for at in range(len(told[0]["steps"])) for t in told for row in t["steps"][at][3]]
    return [tuple(r) for r in rows], told[0]["after"]


def keep(folder, state):
    (folder / "state.json").write_text(json.dumps(state))


def whole(n):
    loader = tw.Loader(killed_job.feed(), epochs=None, return_tensors="np")
    return [tuple(r) for b in islice(loader, n) for r in b.info.ids]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("worlds", "workers"), [((2, 1), (0, 2)), ((2, 3), (3, 0)), ((4, 2), (2, 3)), ((1, 4), (0, 0))]
)
def test_a_killed_job_goes_on_at_another_world_size_and_worker_count(tmp_path, worlds, workers):  # K26 K32 C33 E48
    head, state = run(tmp_path, 0, worlds[0], 5, workers=workers[0])
    keep(tmp_path, state)
    tail, _ = run(tmp_path, 1, worlds[1], 14, accumulation=2, workers=workers[1], kill=False)
    assert head + tail == whole(len(head) + len(tail))
    verdict = verify_ledger(tmp_path / "ledger", killed_job.feed())
    assert verdict.problems == []
    assert verdict.rows == len(head) + len(tail)


@pytest.mark.slow
def test_killed_before_the_first_batch_twice_in_a_row_and_twice_from_one_state(tmp_path):  # K26
    none, state = run(tmp_path, 0, 2, 0)
    assert none == []
    keep(tmp_path, state)
    head, state = run(tmp_path, 1, 2, 4)
    keep(tmp_path, state)
    run(tmp_path, 2, 2, 3)  # killed, its state lost
    run(tmp_path, 3, 1, 2)  # killed again, from the same state
    again, state = run(tmp_path, 4, 3, 3)
    keep(tmp_path, state)
    tail, _ = run(tmp_path, 5, 1, 5, kill=False)
    assert head + again + tail == whole(len(head) + len(again) + len(tail))
    assert verify_ledger(tmp_path / "ledger", killed_job.feed()).problems == []


@pytest.mark.slow
def test_killed_exactly_at_the_end_of_an_epoch(tmp_path):  # K26 K32
    rows = killed_job.feed().num_rows
    head, state = run(tmp_path, 0, 1, rows)
    assert (state["epoch"], state["row_in_epoch"]) == ("1", "0")
    keep(tmp_path, state)
    tail, _ = run(tmp_path, 1, 2, 6, kill=False)
    assert head + tail == whole(rows + 12)
