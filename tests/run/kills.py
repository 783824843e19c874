"""What the kill loops of all executors share: a job, kill -9 of its workers and parents, and the proof afterwards."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
from kill_job import pipeline

from thalweg.run import LocalPipelineExecutor
from thalweg.store.records import open_records

JOB = Path(__file__).with_name("kill_job.py")
TASKS = 8
LAUNCHES = 100  # after so many the job is taken for one that never finishes


class Job:
    """A corpus, the output of a run that nobody disturbed, and places for the run that is killed.

    Attributes:
        takes: seconds of an undisturbed launch; kills fall into them.
        kills: how often each kind of process was killed.
        hold: while this file is there one document in the middle of the last file is not let through: the job
            cannot be done before it was killed often enough, however fast the machine is.
        sessions: of all launches; every process of a launch is in its session.
    """

    def __init__(self, folder, documents, writer="ours"):
        self.folder, self.documents, self.writer = folder, documents, writer
        self.source, self.out, self.log = folder / "in", folder / "out", folder / "log"
        self.sessions, self.kills = set(), {"worker": 0, "parent": 0}
        self.hold = folder / "hold"
        self.source.mkdir(parents=True)
        each = documents // TASKS
        for f in range(TASKS):
            rows = [{"text": f"document {f} {i} " * 5, "id": f"{f}-{i}", "metadata": {"n": i}} for i in range(each)]
            if f == TASKS - 1:
                rows[each // 2]["metadata"]["hold"] = str(self.hold)
            (self.source / f"{f}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))

    def command(self, out, log, workers=2, executor="local"):
        words = [JOB, self.source, out, log, TASKS, workers, self.writer, executor]
        return [sys.executable, *map(str, words)]

    def run_undisturbed(self, executor=None):
        """Make the output to compare with: in this process, or as a launch whose time is taken."""
        begun = time.monotonic()
        if executor is None:
            steps = pipeline(str(self.source), str(self.folder / "whole"), self.writer)
            LocalPipelineExecutor(steps, TASKS, 1, str(self.folder / "log0")).run()
        else:
            command = self.command(self.folder / "whole", self.folder / "log0", executor=executor)
            subprocess.run(command, check=True, capture_output=True)
        self.takes = time.monotonic() - begun

    def kill(self, kind, process):
        """Send kill -9; nothing is counted of a process that is gone."""
        try:
            process.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            return False
        self.kills[kind] += 1
        return True

    @property
    def next_kind(self):
        """Workers and parents in turn."""
        return min(self.kills, key=self.kills.get)

    @property
    def killed(self):
        return sum(self.kills.values())

    def wait_for_what_lives(self):
        """What still lives of killed launches ends by itself."""
        for process in psutil.process_iter():
            try:
                if os.getsid(process.pid) in self.sessions:
                    process.wait(timeout=30)
            except ProcessLookupError:
                continue

    def prove(self):
        """The output is that of the undisturbed run, byte for byte; the books say so; nothing is left over."""
        whole, out = self.folder / "whole", self.out
        if self.writer == "records":
            near, made = open_records(whole), open_records(out)
            assert made.fingerprint == near.fingerprint
            assert [r["id"] for r in made] == [r["id"] for r in near]
            assert sorted(content(out)) == sorted(content(whole))
        else:
            assert content(out) == content(whole)
        stats = json.loads((self.log / "stats.json").read_text())
        assert stats["ranks"] == TASKS
        assert stats["steps"][0]["tally"]["made"] == self.documents
        tries = (self.log / "attempts").rglob("*")
        assert [p for p in tries if p.name != ".generation" and p.parent.name != "attempts"] == []


def content(out):
    """All files that readers would see, byte for byte."""
    return {str(p.relative_to(out)): p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file()}


def launch_until_done(job, executor, workers_of, random, kills):
    """Launch as a process of its own, killing workers and parents in turn at random moments, until it succeeds.

    A launch is followed by the next at once: what still lives of it must not matter.

    Args:
        executor: "local" or "ray".
        workers_of: process of a launch -> processes that run ranks.
        kills: how many.
    """
    command = job.command(job.out, job.log, executor=executor)
    job.hold.touch()
    for _ in range(LAUNCHES):
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        job.sessions.add(process.pid)
        while process.poll() is None and job.killed < kills:
            if job.next_kind == "parent":
                wait_for(process, random.uniform(0, 0.9) * job.takes)
                if process.poll() is None:
                    job.kill("parent", psutil.Process(process.pid))
                    process.wait(timeout=60)
                continue
            while not (victims := workers_of(process)) and process.poll() is None:
                time.sleep(0.02)
            wait_for(process, random.uniform(0, 0.3) * job.takes)
            victims = workers_of(process) or victims
            if victims:
                job.kill("worker", random.choice(victims))
        if job.killed >= kills:
            job.hold.unlink(missing_ok=True)
        process.wait(timeout=240)
        if process.returncode == 0:
            return
    raise AssertionError("the job never finished")


def wait_for(process, seconds):
    """Wait, but not for a process that has ended."""
    end = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
