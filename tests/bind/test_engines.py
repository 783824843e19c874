"""Every engine, with its own package: trained on our feed, killed, resumed, the losses of a run never killed."""

from importlib.util import find_spec
from pathlib import Path

import pytest

JOB = Path(__file__).with_name("engine_job.py")
SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "chat"
STEPS = 10
# engine -> what is imported before; the first is its package
NEEDS = {
    "plain": ["torch"],
    "stateful": ["torchdata.stateful_dataloader"],
    "titan": ["torchtitan.components.dataloader"],
    "accelerate": ["accelerate:Accelerator"],
    "lightning": ["lightning.pytorch"],
    "lightning_endless": ["lightning.pytorch"],
    "trainer": ["transformers:Trainer", "transformers:Qwen3ForCausalLM"],
    "sft": ["trl:SFTTrainer", "transformers:Qwen3ForCausalLM"],
    "dpo": ["trl:DPOTrainer", "transformers:Qwen3ForCausalLM"],
}


def run(warm, engine, folder, kill=-1):
    folder.mkdir(exist_ok=True)
    done = warm.run(JOB, engine, folder, kill, needs=NEEDS[engine])
    losses = {line["step"]: line["loss"] for line in done.told() if "step" in line}
    assert losses, done.err[-3000:]
    return losses, done.returncode


@pytest.mark.slow
@pytest.mark.parametrize("engine", NEEDS)
def test_a_killed_run_goes_on_with_the_losses_of_one_never_killed(tmp_path, warm, engine):  # A42 K28 K32 K49 F7
    package = NEEDS[engine][0].partition(".")[0].partition(":")[0]
    if find_spec(package) is None:
        pytest.skip(f"the package {package} is not installed")
    if engine in {"sft", "dpo"} and not SHARED.is_dir():
        pytest.skip("no ../shared/data beside the checkout")
    whole, _ = run(warm, engine, tmp_path / "whole")
    assert sorted(whole) == list(range(STEPS))
    first, ended = run(warm, engine, tmp_path / "run", kill=7)  # the newest checkpoint is that of step 5
    assert ended == -9
    assert max(first) == 7
    rest, ended = run(warm, engine, tmp_path / "run")
    assert ended == 0
    assert sorted(rest) == [6, 7, 8, 9]
    assert {**first, **rest} == pytest.approx(whole, abs=1e-4)
    assert sum(list(whole.values())[-3:]) < sum(list(whole.values())[:3])
