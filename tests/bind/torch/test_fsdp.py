"""FSDP2 on the CPU: killed without a word, continued on other numbers of ranks, the losses of a run never killed."""

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
JOB = Path(__file__).with_name("fsdp_job.py")
NEEDS = (
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "transformers:Qwen3ForCausalLM",
    "thalweg",
)


def leg(warm, tmp_path, name, world, folder, kill=-1):
    """Run all ranks; give the losses by step, and how the first rank ended."""
    folder.mkdir(exist_ok=True)
    store = tmp_path / f"store-{name}"
    ranks = [warm.start(JOB, store, r, world, folder, kill, needs=NEEDS) for r in range(world)]
    ended = ranks[0].wait()
    for rank in ranks[1:]:
        if kill >= 0:  # the others wait for a dead rank
            rank.kill()
        rank.wait()
    losses = ranks[0].told()
    assert losses, ranks[0].err[-2000:]
    return {line["step"]: line["loss"] for line in losses}, ended


@pytest.mark.slow
def test_story_8_fsdp2_a_killed_job_goes_on_with_the_same_losses_on_other_numbers_of_ranks(warm, tmp_path):  # A42 K32
    whole, _ = leg(warm, tmp_path, "whole", 2, tmp_path / "unused")
    assert sorted(whole) == list(range(9))
    first, ended = leg(warm, tmp_path, "first", 2, tmp_path / "ck", kill=4)  # inside step 4; checkpoint of step 2
    assert ended == -9
    assert sorted(first) == [0, 1, 2, 3]
    second, ended = leg(warm, tmp_path, "second", 4, tmp_path / "ck", kill=6)  # checkpoint of step 5
    assert ended == -9
    assert sorted(second) == [3, 4, 5]
    rest, ended = leg(warm, tmp_path, "rest", 2, tmp_path / "ck")
    assert ended == 0
    assert sorted(rest) == [6, 7, 8]
    for losses in (first, second, rest):
        assert losses == {step: pytest.approx(whole[step], abs=1e-4) for step in losses}
    assert whole[8] < whole[0]
