"""The doctor finds the faults of real collators: TRL's, transformers', LLaMA-Factory's and LMMS Engine's own code."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
pytest.importorskip("torch")
pytest.importorskip("transformers")

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("peer_collators.py")
WHEELS = {"llamafactory": "llamafactory==0.9.5", "lmms_engine": "lmms-engine==0.1.4"}

# case -> the checks that must say "error" or "warning", and the only errors allowed
FOUND = {
    "trl_flat": (set(), set()),
    "trl_mask_of_ones": ({"documents are apart"}, {"documents are apart"}),
    "trl_cut_to_nothing": ({"something is trained", "truncation"}, {"something is trained", "truncation"}),
    "trl_template_without_marks": ({"something is trained"}, {"something is trained"}),
    "hf_padding_is_the_end": (
        {"padding is no real token", "answers end", "prompts off the loss"},
        {"answers end", "prompts off the loss"},
    ),
    "factory_packing": (
        {"mask ends at padding", "documents are apart"},
        {"mask ends at padding", "documents are apart"},
    ),
    "factory_neat": (set(), set()),
    "factory_neat_trains_prompts": (
        {"documents begin untrained", "prompts off the loss"},
        {"documents begin untrained", "prompts off the loss"},
    ),
    "factory_efficient_eos": ({"labels are their tokens"}, {"labels are their tokens"}),
    "engine_padding_is_the_end": ({"mask hides no token"}, {"mask hides no token", "answers end"}),
    "engine_pads_left": ({"padding side"}, {"padding side"}),
    "engine_packs_are_padded": ({"padding wasted"}, {"samples come once"}),
    "engine_ranks_differ": ({"steps are equal"}, {"steps are equal"}),
}


@pytest.fixture(scope="session")
def wheels(tmp_path_factory):
    """The projects' wheels, unpacked: without what they need for training."""
    kept = ROOT / ".bench" / "wheels"
    kept.mkdir(parents=True, exist_ok=True)
    for name, need in WHEELS.items():
        if (kept / name / name).is_dir():
            continue
        folder = tmp_path_factory.mktemp(name)
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q", "--no-deps", need]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        found = next(folder.glob("*.whl"), None)
        if found is None:
            pytest.skip(f"{need} cannot be fetched: {done.stderr.strip().splitlines()[-1:]}")
        with zipfile.ZipFile(found) as wheel:
            wheel.extractall(folder / "unpacked")
        (folder / "unpacked").rename(kept / name)
    return kept


# C40 C41
@pytest.mark.parametrize("case", FOUND)
def test_the_faults_of_a_real_collator_are_found_and_no_other_is_said(case, wheels, warm):
    needs = ["torch.utils.data", "qwen_ready", "transformers:DataCollatorForLanguageModeling"]
    if case.startswith("trl"):
        pytest.importorskip("trl")
        pytest.importorskip("datasets")
        needs += ["datasets", "trl.trainer.sft_trainer"]
    must, may = FOUND[case]
    done = warm.run(SCRIPT, case, wheels, needs=needs)
    assert done.returncode == 0, done.err[-2000:]
    levels = done.told()[-1]
    assert {check for check in must if levels.get(check) not in {"error", "warning"}} == set(), levels
    assert {check for check, level in levels.items() if level == "error"} <= may, levels
