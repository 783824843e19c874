"""Every engine, with its own package: trained on our feed, killed, resumed, the losses of a run never killed."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

JOB = Path(__file__).with_name("engine_job.py")
PACKAGES = {
    "plain": "torch", "stateful": "torchdata", "titan": "torchtitan", "accelerate": "accelerate",
    "lightning": "lightning", "lightning_endless": "lightning", "trainer": "transformers",
}  # fmt: skip


def run(engine, folder, kill=-1):
    folder.mkdir(exist_ok=True)
    env = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(JOB), engine, str(folder), str(kill)],
        capture_output=True, text=True, env=env, timeout=500, check=False,
    )  # fmt: skip
    losses = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"step"')]
    assert losses, done.stderr[-3000:]
    return {line["step"]: line["loss"] for line in losses}, done.returncode


@pytest.mark.slow
@pytest.mark.parametrize("engine", PACKAGES)
def test_a_killed_run_goes_on_with_the_losses_of_one_never_killed(tmp_path, engine):  # A42 K28 K32 K49
    if find_spec(PACKAGES[engine]) is None:
        pytest.skip(f"the package {PACKAGES[engine]} is not installed")
    whole, _ = run(engine, tmp_path / "whole")
    assert sorted(whole) == list(range(10))
    first, ended = run(engine, tmp_path / "run", kill=7)  # the newest checkpoint is that of step 5
    assert ended == -9
    assert max(first) == 7
    rest, ended = run(engine, tmp_path / "run")
    assert ended == 0
    assert sorted(rest) == [6, 7, 8, 9]
    assert {**first, **rest} == pytest.approx(whole, abs=1e-4)
    assert sum(list(whole.values())[-3:]) < sum(list(whole.values())[:3])
