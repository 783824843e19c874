"""examples/mindspeed: both configurations of the reference document train as they stand, stop, and go on alike."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from warm import needs_of

pytest.importorskip("torch")
pytest.importorskip("datasets")
pytest.importorskip("av")
ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "mindspeed"
STEPS = 5
LATER = ["datasets", *(f"transformers:{n}ThinkerForConditionalGeneration" for n in ("Qwen2_5Omni", "Qwen3OmniMoe"))]


def document():
    for parent in Path(__file__).resolve().parents:
        file = parent.parent / "shared" / "documents" / "async_preprocess_iterable_dataset.txt"
        if file.is_file():
            return file.read_text(encoding="utf-8")
    pytest.skip("../shared/documents is not beside the checkout")
    raise AssertionError


def by_script(folder, config):
    """Run run.sh as a user does; give its losses by step."""
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    command = [str(EXAMPLE / "run.sh"), config, "--iters", str(STEPS)]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    return losses(done.stdout)


def losses(text):
    return {int(n): loss for n, loss in re.findall(r"step (\d+)  loss ([\d.]+)", text)}


# A56 B44 B46
@pytest.mark.slow
@pytest.mark.parametrize(("name", "start"), [("data_7b.json", '{\n    "dataset_param"'), ("omni.yaml", "parallel:\n")])
def test_a_configuration_as_it_stands_trains_is_killed_and_resumes_to_the_same_losses(tmp_path, warm, name, start):
    text, script = document(), EXAMPLE / "train.py"
    begin = text.index(start)
    written = text[begin : text.index("bash examples", begin)].rstrip()
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    (one / name).write_text(written[: written.rindex("\n")].strip() + "\n", encoding="utf-8")
    words, more = (script, name, "--iters", STEPS), {"needs": [*needs_of(script), *LATER]}
    if name == "data_7b.json":
        whole = by_script(one, name)
    else:
        run = warm.run(*words, cwd=one, **more)
        assert run.returncode == 0, run.err[-3000:]
        whole = losses(run.out)
    assert list(whole) == list(range(1, STEPS + 1))
    shutil.copytree(one, two, ignore=shutil.ignore_patterns("save_path"))
    killed, seen = warm.start(*words, cwd=two, piped=True, **more), {}
    for line in killed.lines():
        seen |= losses(line)
        if len(seen) == 2:
            killed.kill()
            break
    assert killed.wait() == -9
    run = warm.run(*words, cwd=two, **more)
    assert run.returncode == 0, run.err[-3000:]
    rest = losses(run.out)
    assert max(rest) == STEPS
    assert {**seen, **rest} == whole
