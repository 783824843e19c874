"""FSDP2 on the CPU: killed without a word, continued on another number of ranks, the losses of a run never killed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
JOB = Path(__file__).with_name("fsdp_job.py")


def leg(tmp_path, name, world, folder, kill=-1):
    """Run all ranks; give the losses by step, and how the first rank ended."""
    store = tmp_path / f"store-{name}"
    folder.mkdir(exist_ok=True)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", str(JOB), str(store), str(r), str(world), str(folder), str(kill)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        for r in range(world)
    ]  # fmt: skip
    out, err = ranks[0].communicate(timeout=400)
    if kill >= 0:  # the others wait for a dead rank
        for rank in ranks[1:]:
            rank.kill()
    for rank in ranks[1:]:
        rank.communicate(timeout=400)
    losses = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    assert losses, err[-2000:]
    return {line["step"]: line["loss"] for line in losses}, ranks[0].returncode


@pytest.mark.slow
def test_a_killed_job_goes_on_with_the_same_losses_on_another_number_of_ranks(tmp_path):  # A42 K32
    whole, _ = leg(tmp_path, "whole", 2, tmp_path / "unused")
    assert sorted(whole) == list(range(9))
    first, ended = leg(tmp_path, "first", 2, tmp_path / "ck", kill=4)  # inside step 4; the checkpoint is of step 2
    assert ended == -9
    assert sorted(first) == [0, 1, 2, 3]
    rest, ended = leg(tmp_path, "rest", 4, tmp_path / "ck")
    assert ended == 0
    assert sorted(rest) == list(range(3, 9))
    for step, loss in {**first, **rest}.items():
        assert loss == pytest.approx(whole[step], abs=1e-4)
    assert whole[8] < whole[0]
