"""`thalweg status --follow` on a run that goes on: what it says follows what happens, and it ends when the run does."""

import json
import subprocess
import sys

import pytest

JOB = """
import os, sys, time
from thalweg.run import LocalPipelineExecutor
from thalweg.steps import JsonlReader, JsonlWriter

def gate(data, rank, world_size):
    while not os.path.exists(os.path.join(sys.argv[2], f"open{rank}")):
        time.sleep(0.01)
    yield from data

steps = [JsonlReader(sys.argv[1]), gate, JsonlWriter(os.path.join(sys.argv[2], "out"))]
LocalPipelineExecutor(steps, 2, 1, os.path.join(sys.argv[2], "log")).run()
"""


# D44 D43
@pytest.mark.slow
def test_status_follows_a_run_to_its_end_and_stats_merge_at_any_time(tmp_path, corpus):
    (tmp_path / "job.py").write_text(JOB)
    job = subprocess.Popen(
        [sys.executable, str(tmp_path / "job.py"), str(corpus), str(tmp_path)], stderr=subprocess.PIPE
    )
    log = tmp_path / "log"
    while not list(log.glob("attempts/g0/00000.*")):  # until it has begun
        assert job.poll() is None, job.stderr.read()
    thalweg = [sys.executable, "-m", "thalweg.cli"]
    follow = [*thalweg, "status", str(log), "--follow", "--every", "0.05"]
    following = subprocess.Popen(follow, stdout=subprocess.PIPE, text=True)

    def wait_for(words):
        for line in following.stdout:
            if words in line:
                return line
        raise AssertionError(f"{words!r} was never said")

    assert str(log) in wait_for("0/2 ranks")
    (tmp_path / "open0").touch()
    assert "200 documents" in wait_for("1/2 ranks")
    said = subprocess.run([*thalweg, "stats", str(log), "--json"], capture_output=True, check=True)
    stats = json.loads(said.stdout)[str(log)]
    assert stats["ranks"] == 1
    assert stats["steps"][0]["tally"]["made"] == 200
    (tmp_path / "open1").touch()
    assert "400 documents" in wait_for("2/2 ranks")
    assert following.wait(60) == 0
    assert following.stdout.read() == ""
    assert job.wait(60) == 0
    said = subprocess.run([*thalweg, "stats", str(log), "--json"], capture_output=True, check=True)
    assert json.loads(said.stdout)[str(log)]["steps"][0]["tally"]["made"] == 400
    job.stderr.close()
    following.stdout.close()
