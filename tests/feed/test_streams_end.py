"""Promises of the end: whatever happens to a process that reads a stream, nothing is left of it."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

# No main guard, functions of the script itself, an endless source, full buffers: the worst a user writes.
SCRIPT = """
import os, sys, time
import thalweg as tw
def slow(sample):
    time.sleep(0.2)
    return {"pid": os.getpid(), "n": sample["n"]}
def source():
    n = 0
    while True:
        yield {"n": n}
        n += 1
feed = tw.from_stream(source).map(slow, mode=MODE, workers=4).batch(1, collate="raw")
loader = tw.Loader(feed, return_tensors="np")
def children():
    out = []
    for p in os.listdir("/proc"):
        if p.isdigit():
            try:
                stat = open(f"/proc/{p}/stat").read().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(stat[1]) == os.getpid():
                out.append(int(p))
    return out
batches = iter(loader)
for _ in range(3):
    next(batches)
print(*children(), flush=True)
print("ready", flush=True)
END
"""


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def start(mode, end, **environ):
    code = SCRIPT.replace("MODE", repr(mode)).replace("END", end)
    run = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONWARNINGS": "ignore", **environ},
    )  # fmt: skip
    pids = [int(p) for p in run.stdout.readline().split()]
    assert run.stdout.readline() == "ready\n", run.communicate()[1]
    return run, pids


def all_gone(pids, seconds=60):  # what ends needs moments; a crowded machine gives them late
    end = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < end:
        threading.Event().wait(0.05)
    return not any(map(alive, pids))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["threads", "processes"])
@pytest.mark.parametrize(
    ("end", "status", "said"),
    [
        ("del batches, loader", 0, ""),
        ("pass", 0, ""),
        ("1 / 0", 1, "ZeroDivisionError"),
        ("for b in batches:\n    1 / 0", 1, "ZeroDivisionError"),
        ("sys.exit(5)", 5, ""),
        ("loader.close(); loader.close()", 0, ""),
    ],
    ids=["del", "end", "error", "error_in_loop", "exit", "close_twice"],
)
def test_the_process_ends_with_its_own_status_and_without_noise(mode, end, status, said):
    # A21 K41
    run, pids = start(mode, end)
    _out, err = run.communicate(timeout=120)
    assert run.returncode == status, err
    assert err.count("Traceback") == bool(said)
    assert said in err
    assert (len(pids) >= 4) == (mode == "processes")
    assert all_gone(pids)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["threads", "processes"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_signals_leave_no_process(mode, number):
    # A21 K41
    run, pids = start(mode, "for b in batches: pass")
    run.send_signal(number)
    _, err = run.communicate(timeout=120)
    assert run.returncode in {-number, 130}
    if number == signal.SIGINT:
        assert (
            err.count("\nKeyboardInterrupt") == 1
        )  # of this process alone; it may have come while another was handled
    assert all_gone(pids)


@pytest.mark.slow
def test_a_killed_run_leaves_nothing_in_shared_memory_and_the_next_starts_at_once(tmp_path):
    # K41: named segments and files would stay; ours have no name
    for _ in range(2):
        run, pids = start("processes", "time.sleep(60)", TMPDIR=str(tmp_path))
        run.kill()
        run.communicate(timeout=120)
        assert all_gone(pids)
    assert [name for name in os.listdir("/dev/shm") if "thalweg" in name] == []
    assert list(tmp_path.iterdir()) == []
