"""A stream that is killed again and again gives what one that ran through gives, and leaves nothing."""

import json
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from thalweg.feed.ledger import verify_ledger

JOB = Path(__file__).with_name("stream_killed_job.py")


def in_session(session):
    """Processes of a session that are not dead."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] not in "ZX":
            found.append(int(path.parent.name))
    return found


def run(folder, kill_after):
    """Run the job and kill it after so many steps; give its lines, and whether it came to its end."""
    job = subprocess.Popen(
        [sys.executable, str(JOB), str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True, env={**os.environ, "TMPDIR": str(folder.parent)},
    )  # fmt: skip
    if kill_after is not None:
        job.stdin.write("." * (kill_after + 3))  # up to three steps more are under way when it is killed
        job.stdin.flush()
    else:
        job.stdin.close()
    lines, killed = [], False
    for line in job.stdout:  # to its end: what was written before the kill was handed over, and its place may be saved
        if line.startswith("[") and line.endswith("\n"):
            lines.append(json.loads(line))
        if kill_after is not None and len(lines) >= kill_after and not killed:
            job.kill()
            killed = True
    job.stdin.close()
    job.stdout.close()
    err = job.stderr.read()
    job.stderr.close()
    code = job.wait(60)
    assert code == 0 or (killed and code == -9), err  # it may have come to its end before the kill
    end = time.monotonic() + 60
    while in_session(job.pid) and time.monotonic() < end:
        threading.Event().wait(0.02)
    assert in_session(job.pid) == []
    return lines, code == 0


@pytest.mark.parametrize(
    ("seed", "kills"), [pytest.param(1, 3, marks=pytest.mark.slow), pytest.param(2, 40, marks=pytest.mark.soak)]
)
def test_killed_at_any_step_it_goes_on_with_the_next_row(tmp_path, seed, kills):
    # A51 A21 K28 K30 K41
    rng = random.Random(seed)
    (tmp_path / "whole").mkdir()
    (tmp_path / "killed").mkdir()
    whole, _ = run(tmp_path / "whole", None)
    got, ended, legs = {}, False, 0
    while not ended:
        most = max(1, 3 * len(whole) // kills)
        lines, ended = run(tmp_path / "killed", rng.randint(1, most) if legs < kills else None)
        got.update({step: rows for step, *rows in lines})
        legs += 1
    assert [got[step] for step in sorted(got)] == [rows for _, *rows in whole]
    assert legs > kills // 2
    verdict = verify_ledger(tmp_path / "killed" / "ledger")
    assert verdict.ok, verdict.problems
    assert verdict.rows == len(whole)
    assert [name for name in os.listdir("/dev/shm") if "thalweg" in name] == []
    assert {path.name for path in tmp_path.iterdir()} == {"whole", "killed"}  # its temporary files were here
