"""Every example runs as written, in an empty folder with an empty cache."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_an_example_runs_as_written(example, tmp_path):
    env = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(ROOT / "src"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    command = [sys.executable, str(example)]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
