"""examples/mindspeed: both configurations of the reference document train ten steps, are killed, and go on alike."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from reference_files import STARTS, reference
from warm import needs_of

pytest.importorskip("torch")
pytest.importorskip("datasets")
pytest.importorskip("av")
ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "mindspeed"
STEPS = 10
LATER = ["datasets", *(f"transformers:{n}ThinkerForConditionalGeneration" for n in ("Qwen2_5Omni", "Qwen3OmniMoe"))]


def by_script(folder, config):
    """Run run.sh as a user does; give its losses by step."""
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    command = [str(EXAMPLE / "run.sh"), config, "--iters", str(STEPS)]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    return losses(done.stdout)


def losses(text):
    words = "  ".join(rf"perf/global_seq_len_{kind} [1-9]\d*" for kind in ("avg", "min", "max"))
    return {int(n): loss for n, loss in re.findall(rf"step (\d+)  loss ([\d.]+)  {words}", text)}


# A56 B44 B46 C38
@pytest.mark.slow
@pytest.mark.parametrize("name", STARTS)
def test_a_configuration_as_it_stands_trains_is_killed_and_resumes_to_the_same_losses(tmp_path, warm, name):
    script = EXAMPLE / "train.py"
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    (one / name).write_text(reference(name), encoding="utf-8")
    words, more = (script, name, "--iters", STEPS), {"needs": [*needs_of(script), *LATER]}
    if name == "data_7b.json":
        whole = by_script(one, name)
    else:
        run = warm.run(*words, cwd=one, **more)
        assert run.returncode == 0, run.err[-3000:]
        whole = losses(run.out)
    assert list(whole) == list(range(1, STEPS + 1))
    shutil.copytree(one, two, ignore=shutil.ignore_patterns("save_path", "out"))
    killed, seen = warm.start(*words, cwd=two, piped=True, **more), {}
    for line in killed.lines():
        seen |= losses(line)
        if len(seen) == 4:
            killed.kill()
            break
    assert killed.wait() == -9
    run = warm.run(*words, cwd=two, **more)
    assert run.returncode == 0, run.err[-3000:]
    rest = losses(run.out)
    assert max(rest) == STEPS
    assert {**seen, **rest} == whole
