"""The Slurm executor on a real cluster of three nodes: arrays, failures, requeues, and a node that dies alone."""

import json
import os
import random
import signal
import time
from pathlib import Path

import psutil
import pytest
import zstandard
from kill_job import pipeline
from kills import LAUNCHES, TASKS, Job

from run.cluster import Cluster, missing
from thalweg.core.errors import ConfigError
from thalweg.run import SlurmPipelineExecutor, merge_stats
from thalweg.run.objects import Objects
from thalweg.steps import JsonlReader, JsonlWriter, LambdaFilter

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    why = missing()
    if why and "slurm" in os.environ.get("THALWEG_REQUIRE", "").split(","):
        pytest.fail(why)
    if why:
        pytest.skip(why)
    made = Cluster(tmp_path_factory.mktemp("slurm"), 3)
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
def make(tmp_path, corpus):
    def build(*steps, tasks=4, logs="log", source=None, out="out", **settings):
        pipeline = [JsonlReader(str(source or corpus)), *steps, JsonlWriter(str(tmp_path / out))]
        settings = {"time": "00:10:00", "partition": "debug", "mem_per_cpu_gb": 0.3, "with_srun": False, **settings}
        return SlurmPipelineExecutor(pipeline, tasks, logging_dir=str(tmp_path / logs), **settings)

    return build


def ids(folder):
    found = []
    for path in sorted(folder.glob("*.zst")):
        data = zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes())
        found += [json.loads(line)["id"] for line in data.splitlines()]
    return sorted(found)


ALL = sorted(f"{f}-{i}" for f in range(8) for i in range(50))


# D33 D35 D36 D38 D42
@pytest.mark.parametrize("srun", [False, True])
def test_arrays_run_all_ranks_once_and_their_statistics_are_merged_once(cluster, make, tmp_path, srun):
    first = make(tasks=5, tasks_per_job=2, workers=2, with_srun=srun)
    even = LambdaFilter(lambda doc: int(doc.id.partition("-")[2]) % 2 == 0)
    second = make(even, tasks=3, logs="log2", source=tmp_path / "out", out="out2", depends=first)
    (tmp_path / "out").mkdir()
    with pytest.raises(Exception, match="no files"):
        second.run()  # its input is not there yet: it is listed when it is submitted
    states = cluster.wait_for_jobs()
    assert set(states.values()) == {"COMPLETED"}
    assert ids(tmp_path / "out") == ALL
    stats = json.loads((tmp_path / "log/stats.json").read_text())
    assert (stats["ranks"], stats["steps"][0]["tally"]["made"]) == (5, 400)
    again = make(tasks=5, tasks_per_job=2, workers=2, with_srun=srun)
    again.run()
    assert again.job_id == "-1"
    second.run()
    cluster.wait_for_jobs()
    assert ids(tmp_path / "out2") == [i for i in ALL if int(i.partition("-")[2]) % 2 == 0]


# D21 D36
def test_a_failing_rank_fails_its_element_and_the_merge_and_is_all_that_runs_again(cluster, make, tmp_path):
    cure = tmp_path / "cure"

    def breaks(data, rank, world_size):
        for doc in data:
            if rank == 2 and not cure.exists():
                raise ValueError("not yet")
            yield doc

    executor = make(breaks)
    executor.run()
    states = cluster.wait_for_jobs()
    assert states[f"{executor.job_id}_2"] == "FAILED"
    assert states[f"{executor.job_id}_3"] == "COMPLETED"
    assert states[executor.merge_job_id] == "FAILED"
    assert merge_stats(tmp_path / "log").ranks == 3
    cure.touch()
    again = make(breaks)
    again.run()
    states = cluster.wait_for_jobs()
    assert [j for j in states if j.startswith(again.job_id)] == [f"{again.job_id}_0"]
    assert states[again.merge_job_id] == "COMPLETED"
    assert ids(tmp_path / "out") == ALL


def rank_processes(log):
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if "rank" in line and any(str(log) in word for word in line) and "--finish" not in line:
            found.append(process)
    return found


def slow_first(gate):
    """A step that waits on its first run, writing down who waits, until the gate opens."""

    def step(data, rank, world_size):
        for number, doc in enumerate(data):
            if rank == 0 and number == 20 and not os.path.exists(f"{gate}.open"):
                Path(f"{gate}.{os.getpid()}").touch()
                while not os.path.exists(f"{gate}.open"):
                    time.sleep(0.05)
            yield doc

    return step


# D37
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_puts_the_element_back_into_the_queue_and_it_finishes_the_rank(cluster, make, tmp_path, number):
    gate = tmp_path / "gate"
    executor = make(slow_first(str(gate)), tasks=2)
    executor.run()
    cluster.wait(lambda: list(tmp_path.glob("gate.[0-9]*")), "the rank to begin")
    (waiting,) = tmp_path.glob("gate.[0-9]*")
    os.kill(int(waiting.suffix[1:]), number)
    cluster.wait(lambda: cluster.jobs().get(f"{executor.job_id}_0") == "PENDING", "the requeue")
    Path(f"{gate}.open").touch()
    # two seconds: what the requeue revoked is kept by the second, and a start within it would be refused
    cluster.ask("scontrol", "update", f"JobId={executor.job_id}_0", "StartTime=now+2")
    states = cluster.wait_for_jobs(300)
    assert states[f"{executor.job_id}_0"] == "COMPLETED"
    assert states[executor.merge_job_id] == "COMPLETED"
    assert ids(tmp_path / "out") == ALL


# D16 D15
def test_a_node_that_dies_while_its_job_lives_on_gives_two_copies_of_which_one_counts(cluster, make, tmp_path):
    gate = tmp_path / "gate"
    executor = make(slow_first(str(gate)), tasks=2)
    executor.run()
    cluster.wait(lambda: list(tmp_path.glob("gate.[0-9]*")), "the rank to begin")
    shown = cluster.ask("squeue", "-h", "-r", "-o", "%i %N")
    node = dict(line.split() for line in shown.splitlines() if len(line.split()) == 2)[f"{executor.job_id}_0"]
    cluster.kill_node(node)
    try:
        cluster.wait(lambda: cluster.jobs().get(f"{executor.job_id}_0") == "PENDING", "the node's death", 120)
        cluster.ask("scontrol", "update", f"JobId={executor.job_id}_0", "StartTime=now+2")
        cluster.wait(lambda: len(list(tmp_path.glob("gate.[0-9]*"))) == 2, "the second copy", 240)
        assert len(list((tmp_path / "log/attempts/g0").glob("00000.*"))) == 2
        Path(f"{gate}.open").touch()
        cluster.wait(lambda: not rank_processes(tmp_path / "log"), "both copies", 120)
    finally:
        cluster.start_node(int(node[1:]))
    cluster.wait_for_jobs(300)
    assert ids(tmp_path / "out") == ALL
    assert json.loads((tmp_path / "log/stats.json").read_text())["steps"][0]["tally"]["made"] == 400
    assert [p.name for p in (tmp_path / "log/attempts/g0").iterdir()] == [".generation"]


# D5 D33 D42
def test_blocks_of_the_datatrove_package_run_unchanged(cluster, tmp_path):
    pytest.importorskip("datatrove")
    pytest.importorskip("spacy")
    from datatrove_chain import check

    def run(steps):
        settings = {"mem_per_cpu_gb": 0.3, "with_srun": False, "logging_dir": str(tmp_path / "log")}
        SlurmPipelineExecutor(steps, 2, "00:10:00", "debug", **settings).run()
        cluster.wait_for_jobs()
        return merge_stats(tmp_path / "log")

    check(tmp_path, run)


# D33 D12 D42
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
def test_a_logging_directory_on_an_object_store_serves_the_nodes(cluster, bucket, corpus, tmp_path, monkeypatch):
    url, options = bucket
    monkeypatch.chdir(tmp_path)

    def make(log=(f"{url}/log", options), out=(f"{url}/out", options)):
        steps = [JsonlReader(str(corpus)), JsonlWriter(out, compression=None)]
        settings = {"mem_per_cpu_gb": 0.3, "with_srun": False, "logging_dir": log}
        return SlurmPipelineExecutor(steps, 2, "00:10:00", "debug", **settings)

    private = options | {"key": "test", "secret": "test"}
    with pytest.raises(ConfigError, match=r"may hold credentials .key, secret."):
        make(log=(f"{url}/log", private)).run()
    executor = make()
    executor.run()
    states = cluster.wait_for_jobs()
    assert states[executor.merge_job_id] == "COMPLETED", (tmp_path / "slurm_logs").glob("*")
    assert merge_stats((f"{url}/log", options))[0].tally.made == 400
    store = Objects(f"{url}/out", options)
    found = [json.loads(line)["id"] for name, _, _ in store.names("") for line in store.get(name).splitlines()]
    assert sorted(found) == ALL
    again = make()
    again.run()
    assert again.job_id == "-1"


def check_kills(cluster, folder, documents, seed, kills, monkeypatch):
    """Kill -9 the processes that run ranks, and in turn the daemons above them, whose ranks live on.

    After each kill everything is cancelled and the next launch is submitted at once.
    """
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parent}:{os.environ.get('PYTHONPATH', '')}")
    job, draws = Job(folder, documents), random.Random(seed)
    job.run_undisturbed()
    job.hold.touch()
    for _ in range(LAUNCHES):
        settings = {"mem_per_cpu_gb": 0.3, "with_srun": False, "logging_dir": str(job.log), "tasks_per_job": 2}
        steps = pipeline(str(job.source), str(job.out), job.writer)
        executor = SlurmPipelineExecutor(steps, TASKS, "00:10:00", "debug", **settings)
        executor.run()
        if job.killed < kills:
            cluster.wait(lambda: rank_processes(job.log), "a rank", 120)
            time.sleep(draws.uniform(0, 3))  # from before its first import to after its end
            victims = rank_processes(job.log)
            if victims:
                strike(job, draws.choice(victims))
                cluster.ask("scancel", "--user=root")  # the victim may be of an earlier launch
            continue
        job.hold.unlink(missing_ok=True)
        cluster.wait_for_jobs()
        if not executor.get_incomplete_ranks():
            break
    cluster.wait(lambda: not rank_processes(job.log), "orphans to end")
    job.prove()
    return job


def strike(job, rank):
    kind = job.next_kind
    try:
        job.kill(kind, rank if kind == "worker" else rank.parent())
    except psutil.NoSuchProcess:
        return


# D33 D15 D16
def test_kill_9_of_ranks_and_of_the_daemons_above_them_then_the_output_of_an_undisturbed_run(
    cluster, tmp_path, monkeypatch
):
    job = check_kills(cluster, tmp_path / "job", 4_000, 1, 3, monkeypatch)
    assert job.kills == {"worker": 2, "parent": 1}


# D33 D15 D16
@pytest.mark.soak
def test_twenty_kills_over_a_large_job(cluster, tmp_path, monkeypatch):
    assert check_kills(cluster, tmp_path / "job", 16_000, 2, 20, monkeypatch).kills == {"worker": 10, "parent": 10}
