"""examples/mindspeed: both configurations of the reference document train as they stand, stop, and go on alike."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("datasets")
pytest.importorskip("av")
ROOT = Path(__file__).resolve().parents[2]
RUN = ROOT / "examples" / "mindspeed" / "run.sh"
STEPS = 5


def document():
    for parent in Path(__file__).resolve().parents:
        file = parent.parent / "shared" / "documents" / "async_preprocess_iterable_dataset.txt"
        if file.is_file():
            return file.read_text(encoding="utf-8")
    pytest.skip("../shared/documents is not beside the checkout")
    raise AssertionError


def started(folder, config, *more):
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    command = [str(RUN), config, "--iters", str(STEPS), *more]
    return subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def losses(process):
    out, error = process.communicate(timeout=900)
    assert process.returncode == 0, error[-3000:]
    return {int(n): loss for n, loss in re.findall(r"step (\d+)  loss ([\d.]+)", out)}


# A56 B44 B46
@pytest.mark.slow
@pytest.mark.parametrize(("name", "start"), [("data_7b.json", '{\n    "dataset_param"'), ("omni.yaml", "parallel:\n")])
def test_a_configuration_as_it_stands_trains_is_killed_and_resumes_to_the_same_losses(tmp_path, name, start):
    text = document()
    begin = text.index(start)
    written = text[begin : text.index("bash examples", begin)].rstrip()
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    (one / name).write_text(written[: written.rindex("\n")].strip() + "\n", encoding="utf-8")
    whole = losses(started(one, name))
    assert list(whole) == list(range(1, STEPS + 1))
    shutil.copytree(one, two, ignore=shutil.ignore_patterns("save_path"))
    killed = started(two, name)
    seen = {}
    for line in killed.stdout:
        if found := re.match(r"step (\d+)  loss ([\d.]+)", line):
            seen[int(found[1])] = found[2]
        if len(seen) == 2:
            killed.send_signal(signal.SIGKILL)
            break
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    rest = losses(started(two, name))
    assert max(rest) == STEPS
    assert {**seen, **rest} == whole
