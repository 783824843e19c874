"""Runs on an object store as users make them: what they cost in requests, and what their commands show."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from thalweg.cli.status import command as status
from thalweg.core.errors import ConfigError, RunError
from thalweg.run import LocalPipelineExecutor
from thalweg.run.objects import Objects
from thalweg.run.watch import look
from thalweg.steps import JsonlReader, JsonlWriter, RecordsWriter
from thalweg.store.records import open_records

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")]


@pytest.fixture
def make(bucket, corpus):
    url, options = bucket

    def build(*steps, tasks=8, out="out", **settings):
        pipeline = [JsonlReader(str(corpus)), *steps, JsonlWriter((f"{url}/{out}", options), compression=None)]
        return LocalPipelineExecutor(pipeline, tasks, 1, (f"{url}/log", options), **settings)

    return build


def rows(store):
    found = {}
    for name, _, _ in store.names(""):
        found[name] = [json.loads(line)["id"] for line in store.get(name).splitlines()]
    return found


def test_a_finished_rank_with_one_output_file_costs_at_most_10_requests(make, s3_server):
    s3_server.seen.clear()
    make(tasks=8).run()
    assert len(s3_server.seen) <= 10 * 8
    s3_server.seen.clear()
    stats = make(tasks=8).run()  # complete: only looked at
    assert stats[0].tally.made == 400
    assert [
        request for request in s3_server.seen if request[0] in {"PUT", "POST"} and "stats.json" not in request[1]
    ] == []


def test_status_of_20_000_ranks_costs_at_most_25_requests(bucket, s3_server):
    url, options = bucket
    store = Objects(f"{url}/log", options)
    record = {"id": "x", "generation": 0, "tasks": 20_000, "manifest": {"inputs": {}}, "outside": []}
    store.put("runs/00000.json", json.dumps(record).encode())
    import moto.backends

    backend = moto.backends.get_backend("s3")["123456789012"]["aws"]
    for rank in range(19_999):
        backend.put_object(url.removeprefix("s3://"), f"log/completions/{rank:05d}", b"")
    s3_server.seen.clear()
    state = look((f"{url}/log", options))
    assert (state.complete, state.missing) == (19_999, [19_999])
    assert len(s3_server.seen) <= 25


# D17 D19
def test_a_changed_run_is_refused_and_begun_anew_under_names_of_its_own(make, bucket, corpus):
    url, options = bucket
    make(tasks=3).run()
    store = Objects(f"{url}/out", options)
    first = rows(store)
    assert sorted(first) == ["00000.jsonl", "00001.jsonl", "00002.jsonl"]
    with pytest.raises(RunError, match="tasks: 3 -> 2"):
        make(tasks=2).run()
    assert rows(store) == first
    make(tasks=2, adopt=True).run()
    second = rows(store)
    assert sorted(second) == ["00000.g1.jsonl", "00001.g1.jsonl"]  # a key belongs to one generation for ever
    assert {i for ids in second.values() for i in ids} == {i for ids in first.values() for i in ids}
    assert make(tasks=2).run()[0].tally.made == 400


def tokens(data, rank, world_size):
    for doc in data:
        yield {"input_ids": np.frombuffer(doc.text.encode(), np.uint8).astype(np.int32), "id": doc.id}


# K47
@pytest.mark.parametrize("log", ["s3", "disk"])
def test_records_on_an_object_store_are_the_records_of_a_local_run(bucket, corpus, tmp_path, log, monkeypatch):
    monkeypatch.setenv("THALWEG_CACHE_DIR", str(tmp_path / "cache"))
    url, options = bucket
    far, home = f"{url}/records", (f"{url}/log", options) if log == "s3" else str(tmp_path / "log")

    def run(folder, logging_dir, tasks=3, **settings):
        steps = [JsonlReader(str(corpus)), tokens, RecordsWriter(folder)]
        return LocalPipelineExecutor(steps, tasks, 1, logging_dir, **settings).run()

    run(str(tmp_path / "near"), str(tmp_path / "nearlog"))
    run((far, options), home)
    near = open_records(tmp_path / "near")
    made = open_records(far, storage_options=options, cache_dir=tmp_path / "c1")
    assert made.fingerprint == near.fingerprint
    assert [r["id"] for r in made] == [r["id"] for r in near]
    run((far, options), home)  # complete: the same set
    (corpus / "7.jsonl").unlink()
    run((far, options), home, tasks=2, adopt=True)
    newer = open_records(far, storage_options=options, cache_dir=tmp_path / "c2")
    assert len(newer) == 350
    assert newer[349]["id"] == "5-49"
    assert list(Objects(far, options).uploads()) == []


# D21 D44
def test_a_failed_rank_is_in_the_table_and_its_log_on_the_store(make, bucket, corpus, tmp_path):
    url, options = bucket
    cure = tmp_path / "cure"

    def breaks(data, rank, world_size):
        if rank == 1 and not cure.exists():
            raise ValueError("not yet")
        yield from data

    with pytest.raises(RunError, match=rf"rank 00001  ValueError: not yet\n.*{url}/log/logs/task_00001.log"):
        make(breaks, tasks=3).run()
    state = look((f"{url}/log", options))
    assert (state.complete, state.failed, state.missing) == (2, [1], [1])
    store = Objects(f"{url}/log", options)
    assert b"ValueError: not yet" in store.get("logs/task_00001.log")
    cure.touch()
    assert make(breaks, tasks=3).run()[0].tally.made == 400
    assert look((f"{url}/log", options)).failed == []


def test_the_command_takes_a_url(make, bucket, s3_server, monkeypatch):
    url, _ = bucket
    make(tasks=2).run()
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.url)
    said = CliRunner().invoke(status, [f"{url}/log", "--json"])
    assert said.exit_code == 0, said.output
    assert json.loads(said.output)[0]["complete"] == 2


def test_places_that_cannot_work_are_refused_before_anything_runs(bucket, corpus, tmp_path):
    url, options = bucket
    pipeline = [JsonlReader(str(corpus)), JsonlWriter(str(tmp_path / "out"))]
    with pytest.raises(ConfigError, match="an output folder is not"):
        LocalPipelineExecutor(pipeline, 1, 1, (f"{url}/log", options)).run()
    with pytest.raises(ConfigError, match="no uploads that are completed later"):
        LocalPipelineExecutor(pipeline, 1, 1, "memory://log").run()


# D15 D16
def test_kill_9_of_workers_and_parents_then_the_same_objects(bucket, corpus, tmp_path, s3_server, monkeypatch):
    url, options = bucket
    job = tmp_path / "job.py"
    job.write_text(
        "import sys, time\n"
        "from thalweg.run import LocalPipelineExecutor\n"
        "from thalweg.steps import JsonlReader, JsonlWriter, LambdaFilter\n"
        f"options = {options!r}\n"
        "def slow(doc):\n"
        "    time.sleep(0.001)\n"
        "    return doc.metadata['n'] % 3 > 0\n"
        "out = JsonlWriter((sys.argv[2] + '/out', options), compression=None)\n"
        "steps = [JsonlReader(sys.argv[1]), LambdaFilter(slow), out]\n"
        "LocalPipelineExecutor(steps, 8, 2, (sys.argv[2] + '/log', options), retries=3).run()\n"
    )
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    def start(at):
        command = [sys.executable, str(job), str(corpus), f"{url}/{at}"]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)

    assert start("whole").wait() == 0
    wanted = rows(Objects(f"{url}/whole/out", options))
    for commit in (1, 3, 6):  # the parent dies right after so many commits were asked for
        process = start("killed")
        s3_server.wait_for(
            lambda commit=commit, process=process: (
                len({p for m, p in s3_server.seen if m == "PUT" and re.search(r"killed/log/commits/", p)}) >= commit
                or process.poll() is not None
            )
        )
        process.kill()
        process.wait()
    assert start("killed").wait() == 0
    store = Objects(f"{url}/killed/out", options)
    assert rows(store) == wanted
    assert list(store.uploads()) == []
