"""Legs of the training job: followed to the end, killed on all ranks at the right step, and failures told."""

import os
from pathlib import Path

import pytest

from thalweg.cli.demo.legs import Leg, run_leg
from thalweg.core.errors import RunError

# A stand-in for the training program: the same contract (spec, RANK, progress on rank 0's stdout), without a model.
PROGRAM = """
import json, os, pathlib, sys, threading
spec = json.load(open(sys.argv[1]))
here, rank = pathlib.Path(sys.argv[1]).parent, int(os.environ["RANK"])
(here / f"pid-{rank}").write_text(str(os.getpid()))
if "fifo" in spec:
    open(spec["fifo"], "rw"[rank]).close()  # both ranks are there
print("a library says hello", flush=True)
if spec.get("fail") == rank:
    raise RuntimeError("the disk is full")
for step in range(spec["steps"]):
    print(json.dumps({"done": step + 1}), flush=True)
    if spec.get("hang_at") == step + 1:
        threading.Event().wait()
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "stand_in.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    return "stand_in"


def gone(pid):
    return not Path(f"/proc/{pid}").exists()


def test_a_leg_runs_to_its_end_and_tells_how_far_it_is(tmp_path, module):
    said = []
    folder = run_leg(Leg("whole", 2, 1), {"steps": 20}, tmp_path, said.append, module)
    assert said == ["whole: step 10 of 20", "whole: step 20 of 20"]
    assert {p.name for p in folder.iterdir()} >= {"spec.json", "rank-0.err", "rank-1.err"}


@pytest.mark.skipif(not Path("/proc").exists(), reason="needs /proc")
def test_a_kill_ends_every_rank(tmp_path, module):
    os.mkfifo(tmp_path / "fifo")
    spec = {"steps": 9, "hang_at": 5, "fifo": tmp_path / "fifo"}
    folder = run_leg(Leg("killed", 2, 1, kill_at=5), spec, tmp_path, lambda _: None, module)
    assert all(gone((folder / f"pid-{rank}").read_text()) for rank in (0, 1))


def test_a_failing_rank_is_named_with_its_last_words(tmp_path, module):
    with pytest.raises(RunError, match="rank 1 of the training job") as caught:
        run_leg(Leg("bad", 2, 1), {"steps": 3, "fail": 1}, tmp_path, lambda _: None, module)
    assert any("the disk is full" in note for note in caught.value.__notes__)


def test_a_job_that_ends_before_its_kill_is_an_error(tmp_path, module):
    with pytest.raises(RunError, match="ended before step 9"):
        run_leg(Leg("short", 1, 1, kill_at=9), {"steps": 3}, tmp_path, lambda _: None, module)


@pytest.mark.skipif(not Path("/proc").exists(), reason="needs /proc")
def test_ctrl_c_leaves_no_rank_behind(tmp_path, module):
    def interrupted(_):
        raise KeyboardInterrupt

    os.mkfifo(tmp_path / "fifo")
    spec = {"steps": 10, "hang_at": 10, "fifo": tmp_path / "fifo"}
    with pytest.raises(KeyboardInterrupt):
        run_leg(Leg("left", 2, 1), spec, tmp_path, interrupted, module)
    assert all(gone((tmp_path / "left" / f"pid-{rank}").read_text()) for rank in (0, 1))
