"""The Ray executor on a real local cluster of two nodes: errors reported, dead actors' ranks tried again."""

import json
import os
import random
import signal
import time

import psutil
import pytest
from kills import Job, launch_until_done

from thalweg.core.errors import RunError
from thalweg.run import RayPipelineExecutor
from thalweg.steps import JsonlReader, JsonlWriter

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def cluster():
    if "ray" in os.environ.get("THALWEG_REQUIRE", "").split(","):
        import ray
    else:
        ray = pytest.importorskip("ray", exc_type=ImportError)
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    try:
        made.add_node(num_cpus=2)
        ray.init(address=made.address, log_to_driver=False)
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


@pytest.fixture
def make(tmp_path, corpus):
    def build(*steps, tasks=4, **settings):
        pipeline = [JsonlReader(str(corpus)), *steps, JsonlWriter(str(tmp_path / "out"), compression=None)]
        settings = {"mem_per_cpu_gb": 0.1, "logging_dir": str(tmp_path / "log"), **settings}
        return RayPipelineExecutor(pipeline, tasks, **settings)

    return build


def ids(folder):
    return sorted(json.loads(line)["id"] for p in folder.iterdir() for line in p.read_text().splitlines())


ALL = sorted(f"{f}-{i}" for f in range(8) for i in range(50))


# D40 D42
def test_all_ranks_run_on_several_nodes_and_a_second_launch_finds_nothing_to_do(cluster, make, tmp_path):
    def where(data, rank, world_size):
        import ray

        (tmp_path / f"node-{ray.get_runtime_context().get_node_id()}").touch()
        end = time.monotonic() + 120
        while len(list(tmp_path.glob("node-*"))) < 2 and time.monotonic() < end:
            time.sleep(0.05)  # until the other node was given work too
        yield from data

    stats = make(where, tasks=6, workers=4).run()
    assert ids(tmp_path / "out") == ALL
    assert len(list(tmp_path.glob("node-*"))) == 2
    assert stats.ranks == 6
    assert make(where, tasks=6, workers=2, tasks_per_job=3).run().to_dict() == stats.to_dict()


# D40 D21
def test_errors_are_reported_in_a_table_and_only_failed_ranks_run_again(cluster, make, tmp_path):
    cure = tmp_path / "cure"

    def breaks(data, rank, world_size):
        for doc in data:
            if rank == 2 and not cure.exists():
                raise ValueError("not yet")
            yield doc

    with pytest.raises(RunError, match=r"1 of 4 ranks failed, 3 are complete[\s\S]*rank 00002  ValueError: not yet"):
        make(breaks, tasks_per_job=2).run()
    cure.touch()
    assert make(breaks).run().ranks == 4
    assert ids(tmp_path / "out") == ALL


# D40 D15
def test_a_dead_actors_ranks_are_tried_again_and_count_once(cluster, make, tmp_path):
    def dies(data, rank, world_size):
        mark = tmp_path / f"died-{rank}"
        for number, doc in enumerate(data):
            if number == 30 and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield doc

    stats = make(dies, workers=2).run()
    assert (stats.ranks, stats[0].tally.made) == (4, 400)
    assert ids(tmp_path / "out") == ALL
    for mark in tmp_path.glob("died-*"):
        mark.unlink()
    with pytest.raises(RunError, match="ActorDied"):
        make(dies, skip_completed=False, retries=0, workers=2).run()


# D40
def test_a_rank_that_runs_too_long_is_stopped(cluster, make):
    def hangs(data, rank, world_size):
        for doc in data:
            if rank == 1:
                time.sleep(3600)
            yield doc

    with pytest.raises(RunError, match=r"1 of 4 ranks failed[\s\S]*TimeLimit: stopped after 15 s"):
        make(hangs, time=15).run()


# D5 D40 D42
def test_blocks_of_the_datatrove_package_run_unchanged(cluster, tmp_path):
    pytest.importorskip("datatrove")
    pytest.importorskip("spacy")
    from datatrove_chain import TASKS, check

    settings = {"mem_per_cpu_gb": 0.3, "logging_dir": str(tmp_path / "log")}
    check(tmp_path, lambda steps: RayPipelineExecutor(steps, TASKS, **settings).run())


def actors(process=None):
    """The processes that run ranks; those of other launches on this cluster have ended."""
    return [p for p in psutil.process_iter(["cmdline"]) if "ray::_Runner" in " ".join(p.info["cmdline"] or [])]


def check_kills(cluster, folder, documents, seed, kills, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    job = Job(folder, documents)
    job.run_undisturbed()
    job.takes = 5  # seconds until actors run, and a little
    launch_until_done(job, "ray", actors, random.Random(seed), kills)
    job.wait_for_what_lives()
    for process in actors():
        process.wait(timeout=30)
    job.prove()
    return job


# D40 D15 D16
def test_kill_9_of_actors_and_drivers_then_the_output_of_an_undisturbed_run(cluster, tmp_path, monkeypatch):
    job = check_kills(cluster, tmp_path / "job", 4_000, 1, 3, monkeypatch)
    assert job.kills == {"worker": 2, "parent": 1}


# D40 D15 D16
@pytest.mark.soak
def test_ten_kills_over_a_large_job(cluster, tmp_path, monkeypatch):
    assert check_kills(cluster, tmp_path / "job", 16_000, 2, 10, monkeypatch).kills == {"worker": 5, "parent": 5}
