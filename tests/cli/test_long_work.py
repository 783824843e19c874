"""Commands that run a user's functions over all samples say so, and end at once at Ctrl-C."""

import os
import signal
import subprocess
import sys

import pytest

from thalweg.cli import output

FEED = """
import os
import threading

import thalweg as tw


def lengths(sample):
    os.write(2, b"here\\n")
    threading.Event().wait(600)


feed = tw.from_files({data!r}).map(lengths).cache().pack(128, overlong="truncate").batch(2)
"""


@pytest.mark.parametrize("command", ["simulate", "pack"])
def test_ctrl_c_ends_a_pass_over_samples_at_once_with_one_line(tmp_path, command):
    (tmp_path / "data.jsonl").write_text('{"text": "a"}\n' * 1200)  # enough for calls in threads
    (tmp_path / "f.py").write_text(FEED.format(data=str(tmp_path / "data.jsonl")))
    run = subprocess.Popen(
        [sys.executable, "-m", "thalweg.cli", command, f"{tmp_path / 'f.py'}:feed"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
    )  # fmt: skip
    assert run.stderr is not None
    assert "here\n" in iter(run.stderr.readline, ""), "it ended before it called the function"
    run.send_signal(signal.SIGINT)
    out, said = run.communicate(timeout=120)
    assert run.returncode == 130
    assert out == ""
    assert "interrupted" in said.splitlines()[-1]
    assert "Traceback" not in said
    assert "still inside" not in said


def test_ctrl_c_is_its_owners_again_after_long_work():
    before = signal.getsignal(signal.SIGINT)
    with output.long_work("counting ..."):
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before
