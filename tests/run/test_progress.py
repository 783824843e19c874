"""Progress in documents and bytes with the time left, on a terminal and elsewhere; Ctrl-C; disks that fill."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest

from thalweg.run import LocalPipelineExecutor
from thalweg.run import progress as module
from thalweg.run.progress import Progress
from thalweg.run.watch import look
from thalweg.steps import JsonlReader, JsonlWriter


class Terminal(io.StringIO):
    def isatty(self):
        return True


# D43
def test_plain_lines_tell_documents_bytes_and_the_time_left(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    out = io.StringIO()
    with Progress(4, 4_000_000, stream=out, _began=0.0) as shown:
        shown.read(0, 10, 500_000)
        assert out.getvalue() == ""  # not for every report
        now[0] = 30.0
        shown.read(1, 20, 500_000)
        shown.ended(0, ok=True)
        now[0] = 120.0
        shown.read(1, 80, 3_500_000)
        shown.ended(1, ok=False)
    lines = out.getvalue().splitlines()
    assert lines[0] == "0/4 ranks, 30 documents, 1.0 MB of 4.0 MB, 1 min 30 s left"
    assert lines[-1] == "1/4 ranks, 90 documents, 4.0 MB of 4.0 MB, 1 failed, 0 s left"


# D43
def test_a_terminal_gets_a_bar_with_the_same_words():
    out = Terminal()
    with Progress(2, 1000, stream=out) as shown:
        shown.read(0, 5, 500)
        shown.ended(0, ok=True)
    assert re.search(r"1/2 ranks, 5 documents, 500 B of 1\.0 kB", out.getvalue())


SLOW = """
import sys, time
from thalweg.run import LocalPipelineExecutor
from thalweg.steps import JsonlReader, JsonlWriter

def slow(data, rank, world_size):
    for doc in data:
        open(f"{sys.argv[2]}/began-{rank}", "w").close()
        time.sleep(3600)
        yield doc

steps = [JsonlReader(sys.argv[1]), slow, JsonlWriter(sys.argv[2] + "/out")]
LocalPipelineExecutor(steps, 4, 2, sys.argv[2] + "/log").run()
"""


# D23
@pytest.mark.slow
def test_ctrl_c_ends_soon_with_one_line_and_leaves_no_process(tmp_path, corpus):
    (tmp_path / "job.py").write_text(
        SLOW.replace("sys.argv[1]", repr(str(corpus))).replace("sys.argv[2]", repr(str(tmp_path)))
    )
    command = [sys.executable, "-m", "thalweg.cli", "run", str(tmp_path / "job.py")]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    end = time.monotonic() + 60
    while len(list(tmp_path.glob("began-*"))) < 2 and time.monotonic() < end:
        time.sleep(0.05)
    family = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert errors.strip().splitlines()[-1].startswith("interrupted: 0 of 4 ranks are complete")
    _, alive = psutil.wait_procs(family, timeout=60)
    assert alive == []
    assert not (tmp_path / "out").exists()


# D43
def test_after_ctrl_c_no_rank_is_said_to_be_at_work(tmp_path, corpus, monkeypatch):
    def ended_from_outside(_executor, task, ranks, _progress):
        task.home.note(ranks[0], 3, 30)
        raise KeyboardInterrupt

    monkeypatch.setattr(LocalPipelineExecutor, "_work", ended_from_outside)
    steps = [JsonlReader(str(corpus)), JsonlWriter(str(tmp_path / "out"))]
    with pytest.raises(KeyboardInterrupt, match="interrupted: 0 of 4 ranks"):
        LocalPipelineExecutor(steps, 4, 2, str(tmp_path / "log")).run()
    assert look(tmp_path / "log").running == {}


# D20
@pytest.mark.slow
def test_a_disk_that_fills_is_a_clear_error_and_a_rerun_after_freeing_space_is_right(tmp_path, corpus):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", str(disk)], check=False, capture_output=True
    )
    if mounted.returncode:
        disk.rmdir()
        pytest.skip("no right to mount a small disk here")
    try:
        (disk / "ballast").write_bytes(b"x" * 120_000)
        code = (
            "from thalweg.run import LocalPipelineExecutor as L\n"
            "from thalweg.steps import JsonlReader, JsonlWriter\n"
            f"s = [JsonlReader({str(corpus)!r}), JsonlWriter({str(disk / 'out')!r}, compression=None)]\n"
            f"L(s, 2, 1, {str(tmp_path / 'log')!r}).run()\n"
        )
        command = [sys.executable, "-c", code]
        first = subprocess.run(command, capture_output=True, text=True, check=False)
        assert first.returncode == 1
        assert "No space left on device" in first.stderr
        assert not any((disk / "out").glob("0*"))
        assert not any((tmp_path / "log/completions").glob("0*"))
        (disk / "ballast").unlink()
        subprocess.run(command, check=True, capture_output=True)
        rows = [json.loads(line) for p in (disk / "out").glob("0*") for line in p.read_text().splitlines()]
        assert len({r["id"] for r in rows}) == len(rows) == 400
    finally:
        subprocess.run(["umount", str(disk)], check=False)
        disk.rmdir()
