"""Promises of the CPU count."""

import os
import threading

import pytest

from thalweg.work import cpus


def test_a_container_quota_counts_in_both_forms(tmp_path):
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert cpus.quota(tmp_path) == 1.5
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert cpus.quota(tmp_path) is None
    old = tmp_path / "old"
    (old / "cpu").mkdir(parents=True)
    (old / "cpu/cpu.cfs_quota_us").write_text("400000")
    (old / "cpu/cpu.cfs_period_us").write_text("100000")
    assert cpus.quota(old) == 4
    (old / "cpu/cpu.cfs_quota_us").write_text("-1")
    assert cpus.quota(old) is None
    assert cpus.quota(tmp_path / "absent") is None


@pytest.mark.parametrize(
    ("environ", "ranks"),
    [
        ({}, 1),
        ({"LOCAL_WORLD_SIZE": "8"}, 8),
        ({"SLURM_NTASKS_PER_NODE": "4(x2)"}, 4),
        ({"LOCAL_WORLD_SIZE": "x", "MPI_LOCALNRANKS": "2"}, 2),
    ],
)
def test_local_ranks_come_from_the_launcher(environ, ranks):
    assert cpus.local_ranks(environ) == ranks


def test_cpus_are_shared_among_local_ranks_and_never_none(monkeypatch):
    monkeypatch.setattr(cpus, "affinity", lambda: 16)
    monkeypatch.setattr(cpus, "quota", lambda: 7.9)
    assert [cpus.usable_cpus(r) for r in (1, 2, 3, 100)] == [7, 3, 2, 1]
    monkeypatch.setattr(cpus, "quota", lambda: None)
    assert cpus.usable_cpus(2) == 8


def test_affinity_is_what_the_scheduler_allows():
    assert cpus.affinity() == len(os.sched_getaffinity(0))


def test_the_threads_clock_counts_neither_other_threads_nor_time_in_line(monkeypatch):
    clock = cpus.ThreadClock()
    seconds, cpu = clock()
    threading.Event().wait(0.05)
    later = clock()
    assert later[1] - cpu < 0.5 * (later[0] - seconds)  # it waited, and computed next to nothing
    if clock._file >= 0:  # where the system tells it: 300 s in line are taken off
        before, line = clock()[0], int(os.pread(clock._file, 64, 0).split()[1])
        monkeypatch.setattr(os, "pread", lambda *_: b"5 %d 7" % (line + 300_000_000_000))
        assert -301 < clock()[0] - before < -200
    clock.close()
    clock.close()
