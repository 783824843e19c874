"""Kill -9 at any moment, worker or parent, then the same command again: the output of a run that nobody disturbed."""

import random
import shutil

import psutil
import pytest
from kills import Job, launch_until_done


def workers_of(process):
    """The processes that run ranks: children of the one that starts them, not of the launch itself."""
    try:
        return [p for p in psutil.Process(process.pid).children(recursive=True) if p.ppid() != process.pid]
    except psutil.Error:
        return []


def check(folder, documents, seed, writer, kills):
    job = Job(folder, documents, writer)
    job.run_undisturbed("local")
    launch_until_done(job, "local", workers_of, random.Random(seed), kills)
    job.wait_for_what_lives()
    job.prove()
    shutil.rmtree(folder)
    return job


# D15 D16 D10
@pytest.mark.slow
@pytest.mark.parametrize(("seed", "writer"), [(1, "ours"), (2, "records"), (3, "datatrove")])
def test_kill_9_at_any_moment_then_the_output_of_an_undisturbed_run(tmp_path, seed, writer):
    if writer == "datatrove":
        pytest.importorskip("datatrove")
    job = check(tmp_path / "job", 4_000, seed, writer, kills=3)
    assert job.kills == {"worker": 2, "parent": 1}


# D15 D16
@pytest.mark.soak
@pytest.mark.parametrize("writer", ["ours", "records", "datatrove"])
def test_a_hundred_kills_over_a_large_job(tmp_path, writer):
    kills = {"worker": 0, "parent": 0}
    for seed in range(17):
        job = check(tmp_path / str(seed), 16_000, seed, writer, kills=6)
        kills = {kind: n + job.kills[kind] for kind, n in kills.items()}
    assert kills == {"worker": 51, "parent": 51}
