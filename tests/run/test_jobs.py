"""Ranks as hosted jobs, through the official client, against a server that runs them: with secrets nowhere on disk."""

import json
import sys
from pathlib import Path

import pytest

from thalweg.core.errors import ConfigError, RunError
from thalweg.run import JobsPipelineExecutor, LocalPipelineExecutor
from thalweg.run.objects import Objects
from thalweg.steps import JsonlReader, JsonlWriter, LambdaFilter

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")]

TOKEN, SECRET = "hf_3bXq_token_of_the_hub", "s3cr3t-of-the-feed"


@pytest.fixture
def hub(monkeypatch):
    constants = pytest.importorskip("huggingface_hub.constants")
    from hub import Hub

    server = Hub(TOKEN)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "src"))
    yield server
    server.close()


@pytest.fixture
def make(hub, tmp_path, corpus):
    def build(*steps, tasks=4, log=str(tmp_path / "log"), out=str(tmp_path / "out"), **settings):
        pipeline = [JsonlReader(str(corpus)), *steps, JsonlWriter(out, compression=None)]
        settings = {"token": TOKEN, "poll_interval": 0.2, "launcher": [sys.executable], **settings}
        return JobsPipelineExecutor(pipeline, tasks, logging_dir=log, **settings)

    return build


def ids(out):
    return {p.name: [json.loads(line)["id"] for line in p.read_text().splitlines()] for p in Path(out).iterdir()}


# D41 D42
def test_jobs_give_what_a_local_run_gives_and_no_secret_is_on_disk(make, hub, tmp_path, corpus):
    def uses_it(data, rank, world_size):
        for doc in data:
            doc.metadata["key"] = "s3cr3t-of-the-feed"
            yield doc

    keys = {"secrets": {"FEED_KEY": SECRET}, "env": {"TONE": "low-and-private"}}
    with pytest.raises(ConfigError, match="the secret FEED_KEY is part of a step"):
        make(uses_it, log=str(tmp_path / "refused"), **keys).run()
    assert not list((tmp_path / "refused").glob("launches/*"))

    def asks(data, rank, world_size):
        import os

        assert len(os.environ["FEED_KEY"]) == 18
        assert len(os.environ["HF_TOKEN"]) == 24
        yield from (doc for doc in data if doc.metadata["n"] % 2)

    executor = make(asks, workers=2, tasks_per_job=2, **keys)
    stats = executor.run()
    assert stats[0].tally.made == 400
    assert stats[1].tally.out == 200
    whole = [JsonlReader(str(corpus)), LambdaFilter(odd), JsonlWriter(str(tmp_path / "whole"), compression=None)]
    LocalPipelineExecutor(whole, 4, 1, str(tmp_path / "log2")).run()
    assert ids(tmp_path / "out") == ids(tmp_path / "whole")
    assert [s["environment"]["THALWEG_ARRAY_INDEX"] for s in hub.specs] == ["0", "1"]
    assert all(s["secrets"] == {"HF_TOKEN": TOKEN, "FEED_KEY": SECRET} for s in hub.specs)
    assert hub.specs[0]["labels"]["thalweg_job"] == "data_processing"
    on_disk = [p for p in (tmp_path / "log").rglob("*") if p.is_file()]
    assert len(on_disk) > 10
    for path in on_disk:
        data = path.read_bytes()
        assert not any(private.encode() in data for private in (TOKEN, SECRET, "low-and-private")), path
    executor.run()
    assert len(hub.specs) == 2  # complete: nothing is sent


def odd(doc):
    return doc.metadata["n"] % 2 == 1


# D41
def test_a_job_that_is_killed_is_sent_again_and_no_more_than_asked_live_at_once(make, hub):
    killed = []

    def kill_first(name, process):
        if not killed:
            killed.append(name)
            process.kill()

    hub.on_send = kill_first
    looks = []

    def busy(method, path):
        if method == "GET":
            looks.append(path)
        return 503 if len(looks) == 2 else None  # the hub does not answer once

    hub.harm = busy
    stats = make(workers=1, tasks=3).run()
    assert stats[0].tally.made == 400
    assert [s["environment"]["THALWEG_ARRAY_INDEX"] for s in hub.specs] == ["0", "1", "2", "0"]
    assert hub.most == 1


# D21 D41
def test_one_failing_rank_does_not_stop_the_others_and_is_in_the_table(make, hub, tmp_path):
    cure = tmp_path / "cure"

    def breaks(data, rank, world_size):
        if rank == 1 and not cure.exists():
            raise ValueError("not yet")
        yield from data

    with pytest.raises(
        RunError, match=r"1 of 3 ranks failed, 2 are complete\n  rank 00001  JobFailed: job job.* ERROR"
    ):
        make(breaks, tasks=3, max_retries=0).run()
    assert len(hub.specs) == 3
    assert "ValueError: not yet" in (tmp_path / "log/logs/task_00001.log").read_text()
    cure.touch()
    assert make(breaks, tasks=3).run()[0].tally.made == 400
    assert len(hub.specs) == 4  # only what was missing


# D41
def test_an_interrupt_cancels_the_jobs(make, hub):
    def forever(data, rank, world_size):
        import time

        time.sleep(600)
        yield from data

    hub.on_send = lambda *_: None
    executor = make(forever, tasks=2)

    def stop(method, path):
        if method == "GET" and len(hub.specs) == 2:
            import _thread

            hub.harm = lambda *_: None
            _thread.interrupt_main()

    hub.harm = stop
    with pytest.raises(KeyboardInterrupt, match="jobs cancelled: 0 of 2 ranks"):
        executor.run()
    assert hub.cancelled == {"job0", "job1"}
    assert [p.wait(30) for p in hub.processes.values()] == [-9, -9]


# D41
def test_jobs_keep_everything_on_an_object_store(make, hub, bucket, s3_server, monkeypatch):
    url, _ = bucket
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.url)
    stats = make(tasks=2, log=f"{url}/log", out=f"{url}/out").run()
    assert stats[0].tally.made == 400
    out = Objects(f"{url}/out")
    assert sorted(name for name, _, _ in out.names("")) == ["00000.jsonl", "00001.jsonl"]
    log = Objects(f"{url}/log")
    for name, _, _ in log.names(""):
        assert TOKEN.encode() not in log.get(name)
    with pytest.raises(ConfigError, match=r"may hold credentials .key, secret."):
        make(tasks=3, log=(f"{url}/log2", {"key": "test", "secret": "test"}), out=f"{url}/out2").run()
    Objects(f"{url}/in").put("a.jsonl", b'{"text": "more"}\n')
    more = JsonlReader((f"{url}/in", {"key": "test", "secret": "test"}))
    with pytest.raises(ConfigError, match=r"may hold credentials .key, secret.*/in"):
        make(more, tasks=3, log=f"{url}/log3", out=f"{url}/out3").run()


def test_a_token_is_needed_and_the_index_is_not_the_users(make, monkeypatch, tmp_path):
    with pytest.raises(ConfigError, match="THALWEG_ARRAY_INDEX"):
        make(env={"THALWEG_ARRAY_INDEX": "3"})
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(ConfigError, match="no token of the hub"):
        make(token=None).run()
    assert not list((tmp_path / "log").glob("launches/*"))
