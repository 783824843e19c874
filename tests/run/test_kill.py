"""Kill -9 at any moment, worker or parent, then the same command again: the output of a run that nobody disturbed."""

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from thalweg.store.records import open_records

JOB = Path(__file__).with_name("kill_job.py")
TASKS = 8


def corpus(folder, documents):
    folder.mkdir()
    each = documents // TASKS
    for f in range(TASKS):
        rows = [{"text": f"document {f} {i} " * 5, "id": f"{f}-{i}", "metadata": {"n": i}} for i in range(each)]
        (folder / f"{f}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return folder


def command(source, out, log, workers, writer):
    return [sys.executable, str(JOB), str(source), str(out), str(log), str(TASKS), str(workers), writer]


def content(out):
    """All files that readers would see, byte for byte."""
    return {str(p.relative_to(out)): p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file()}


def workers_of(process):
    try:
        return [p for p in psutil.Process(process.pid).children(recursive=True) if not p.children()]
    except psutil.Error:
        return []


def run_until_done(arguments, random, takes, fresh):
    """Kill at random moments and launch again, without waiting for what may still live, until a launch succeeds.

    `takes`: seconds of a launch that nobody disturbs; kills fall into them. A job that was done before its first
    kill proves nothing: `fresh` clears it away, and it begins anew.
    """
    kills = 0
    for _ in range(60):
        process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
        aims = random.randrange(3)
        deadline = time.monotonic() + random.uniform(0.1, 0.9) * takes
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        if process.poll() is None and kills < 6:
            victims = workers_of(process) if aims else []
            for victim in random.sample(victims, min(aims, len(victims))) or [psutil.Process(process.pid)]:
                try:
                    victim.send_signal(signal.SIGKILL)
                    kills += 1
                except psutil.NoSuchProcess:
                    pass
            if aims and process.poll() is None:
                process.communicate(timeout=120)
            if process.poll() is None:
                process.wait(timeout=30)
        else:
            process.communicate(timeout=120)
        process.stderr.close()
        if process.returncode == 0:
            if kills:
                return kills
            fresh()
    raise AssertionError("the job never finished")


def check(tmp_path, documents, seed, writer):
    source = corpus(tmp_path / "in", documents)
    begun = time.monotonic()
    subprocess.run(command(source, tmp_path / "whole", tmp_path / "log0", 2, writer), check=True, capture_output=True)
    takes = time.monotonic() - begun

    def fresh():
        shutil.rmtree(tmp_path / "out")
        shutil.rmtree(tmp_path / "log")

    arguments = command(source, tmp_path / "out", tmp_path / "log", 2, writer)
    kills = run_until_done(arguments, random.Random(seed), takes, fresh)
    # what still lives of killed launches must not matter: it ends by itself
    for process in psutil.process_iter(["cmdline"]):
        if str(tmp_path / "log") in (process.info["cmdline"] or []):
            process.wait(timeout=30)
    if writer == "records":
        whole, out = open_records(tmp_path / "whole"), open_records(tmp_path / "out")
        assert out.fingerprint == whole.fingerprint
        assert [r["id"] for r in out] == [r["id"] for r in whole]
        assert sorted(content(tmp_path / "out")) == sorted(content(tmp_path / "whole"))
    else:
        assert content(tmp_path / "out") == content(tmp_path / "whole")
    stats = json.loads((tmp_path / "log/stats.json").read_text())
    assert stats["ranks"] == TASKS
    assert stats["steps"][0]["tally"]["made"] == documents
    left = [
        p for p in (tmp_path / "log/attempts").rglob("*") if p.name != ".generation" and p.parent.name != "attempts"
    ]
    assert left == []
    shutil.rmtree(tmp_path)
    return kills


# D15 D16 D10
@pytest.mark.slow
@pytest.mark.parametrize(("seed", "writer"), [(1, "ours"), (2, "records"), (3, "datatrove")])
def test_kill_9_at_any_moment_then_the_output_of_an_undisturbed_run(tmp_path, seed, writer):
    if writer == "datatrove":
        pytest.importorskip("datatrove")
    assert check(tmp_path, 4_000, seed, writer) > 0


# D15 D16
@pytest.mark.soak
@pytest.mark.parametrize("writer", ["ours", "records", "datatrove"])
def test_a_hundred_kills_over_a_large_job(tmp_path, writer):
    kills = seed = 0
    while kills < 100:
        folder = tmp_path / str(seed)
        folder.mkdir()
        kills += check(folder, 16_000, seed, writer)
        seed += 1
