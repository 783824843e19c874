"""Supervised processes: every job is answered, deaths are named, nothing is left running."""

import os
import signal
import sys

import psutil
import pytest

from thalweg.core.errors import ConfigError
from thalweg.work.processes import supervise


def children():
    return {p.pid for p in psutil.Process().children(recursive=True) if "thalweg-worker" in p.name() or _serves(p)}


def _serves(process):
    try:
        return "multiprocessing.forkserver" in " ".join(process.cmdline()) and process.ppid() != os.getpid()
    except psutil.Error:
        return False


def double(job, send):
    send(("began", job))
    return os.getpid(), job * 2


def test_every_job_is_answered_once_by_other_processes():
    heard = []
    outcomes = list(supervise(double, range(20), workers=2, on_message=lambda job, m: heard.append((job, m))))
    assert sorted(o.job for o in outcomes) == list(range(20))
    assert all(o.result[1] == o.job * 2 and o.failure is None for o in outcomes)
    assert os.getpid() not in {o.result[0] for o in outcomes}
    assert sorted(heard) == [(j, ("began", j)) for j in range(20)]
    assert children() == set()


def test_functions_defined_inside_a_test_travel_by_value():
    base = 40

    def add(job, send):
        return base + job

    assert sorted(o.result for o in supervise(add, [1, 2], workers=2)) == [41, 42]


# D21
def test_an_exception_is_described_and_the_others_go_on():
    def work(job, send):
        if job == 3:
            error = ValueError("no three")
            error.add_note("while counting")
            raise error
        if job == 4:
            sys.exit(0)
        return job

    failed = {o.job: o.failure for o in supervise(work, range(6), workers=2) if o.failure}
    assert sorted(failed) == [3, 4]
    assert (failed[3].kind, failed[3].message, failed[3].died) == ("ValueError", "no three; while counting", False)
    assert "no three" in failed[3].trace
    assert failed[4].kind == "SystemExit"


# D22
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_worker_that_dies_is_named_with_its_signal_and_costs_its_job_alone(number):
    def work(job, send):
        if job == 2:
            os.kill(os.getpid(), number)
        return job

    outcomes = {o.job: o for o in supervise(work, range(6), workers=2)}
    assert sorted(outcomes) == list(range(6))
    assert outcomes[2].failure.kind == number.name
    assert outcomes[2].failure.died
    assert [j for j, o in outcomes.items() if o.failure] == [2]


# D22
def test_a_job_whose_worker_died_is_given_out_again_when_asked(tmp_path):
    def work(job, send):
        mark = tmp_path / str(job)
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return job

    told = []
    outcomes = list(supervise(work, range(3), workers=2, retries=1, on_retry=lambda job, f: told.append((job, f.kind))))
    assert sorted(o.result for o in outcomes) == [0, 1, 2]
    assert sorted(told) == [(j, "SIGKILL") for j in range(3)]


# D23
def test_leaving_early_ends_all_workers():
    def work(job, send):
        if job == 0:
            return 0
        signal.pause()
        return job

    outcomes = supervise(work, range(3), workers=3)
    assert next(outcomes).job == 0
    outcomes.close()
    assert children() == set()


def test_a_bare_fork_is_refused():
    with pytest.raises(ConfigError, match="fork of a process with threads can hang"):
        list(supervise(double, [1], workers=1, start_method="fork"))
