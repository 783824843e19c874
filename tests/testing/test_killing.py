"""Programs that are killed on purpose: by the clock, and before each of their file operations."""

import os
import select
import subprocess
import sys

import pytest

from thalweg.testing import kill_loop, run_crashing

GOOD = """
import os, sys
folder = sys.argv[1]
for i in range(3):
    final = f"{folder}/{i}.txt"
    if os.path.exists(final):
        continue
    with open(final + ".tmp", "w") as f:
        f.write(f"part {i}" * 100)
    os.rename(final + ".tmp", final)
print(sorted(os.listdir(folder)))
"""
HALF_FILES = GOOD.replace('final + ".tmp"', "final").replace("os.rename(final, final)", "")
HALF_FILES = HALF_FILES.replace("f.write", 'f.flush(); os.mkdir(f"{folder}/d{i}"); f.write')


def whole(folder):
    return all(p.read_text() == f"part {p.stem}" * 100 for p in folder.glob("*.txt"))


@pytest.fixture
def script(tmp_path):
    def write(text):
        path = tmp_path / "job.py"
        path.write_text(text)
        return path

    return write


def test_each_crash_point_is_tried_and_a_rerun_ends_right(script, tmp_path):
    job, points = script(GOOD), 0
    while True:
        out = tmp_path / f"out{points}"
        out.mkdir()
        if not run_crashing([job, out], at=points, under=out):
            break
        assert whole(out)
        subprocess.run([sys.executable, job, out], check=True, capture_output=True)
        assert sorted(p.name for p in out.iterdir()) == ["0.txt", "1.txt", "2.txt"]
        assert whole(out)
        points += 1
    assert points == 6  # three files opened, three renamed


def test_a_program_with_half_files_is_caught_at_some_crash_point(script, tmp_path):
    job, caught = script(HALF_FILES), []
    for at in range(6):
        out = tmp_path / f"out{at}"
        out.mkdir()
        run_crashing([job, out], at=at, under=out)
        caught.append(whole(out))
    assert not all(caught)


def test_operations_elsewhere_are_not_counted(script, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    assert run_crashing([script(GOOD), tmp_path], at=99, under=tmp_path / "elsewhere") is False


def test_a_program_that_fails_by_itself_is_not_taken_for_killed(script, tmp_path):
    with pytest.raises(AssertionError, match=r"(?s)status 1.*ZeroDivisionError"):
        run_crashing([script("1/0")], at=99, under=tmp_path)
    with pytest.raises(AssertionError, match="status 3"):
        kill_loop([sys.executable, script("raise SystemExit(3)")], seed=0, kills=1, within=30.0)


WAITS = """
import os, sys, time
marks = sys.argv[1]
open(f"{marks}/{os.getpid()}", "w").close()
if len(os.listdir(marks)) <= 2:
    time.sleep(600)
"""


def test_a_hanging_program_is_killed_run_again_and_finished(script, tmp_path):
    marks = tmp_path / "marks"
    marks.mkdir()
    seen = []
    command = [sys.executable, script(WAITS), marks]
    killed = kill_loop(
        command, seed=1, kills=30, within=4.0, after_kill=lambda: seen.append(len(list(marks.iterdir())))
    )
    assert killed == len(seen) >= 2
    assert seen == sorted(seen)


SPAWNS = """
import subprocess, sys
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(sys.argv[1], "a").write(f"{worker.pid}\\n")
if len(open(sys.argv[1]).readlines()) < 2:
    worker.wait()
worker.kill(); worker.wait()
"""


def gone(pid):
    """Wait for the end of a process that is not ours; True where it ended."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], 20)[0])
    finally:
        os.close(handle)


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs process descriptors (Linux)")
def test_no_worker_outlives_the_loop(script, tmp_path):
    pids = tmp_path / "pids"
    kill_loop([sys.executable, script(SPAWNS), pids], seed=3, kills=9, within=2.5, orphans=True)
    assert all(gone(int(pid)) for pid in pids.read_text().split())
