"""What a limit takes of a preference pair."""

import pytest

from thalweg.encode import ChatEncoder, EncodeError


def turns(*said):
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(said)]


# B26
@pytest.mark.parametrize("long", ["chosen", "rejected"])
def test_both_sides_of_a_pair_keep_one_prompt_under_every_limit(qwen, long):
    talk = [{"role": "system", "content": "s"}, *turns("one", "a", "two", "b", "three", "c", "four")]
    record = {"messages": talk, "chosen": "yes", "rejected": "no", "id": "p"} | {long: "long " * 30}
    whole, kept, cut = ChatEncoder(qwen)(record), set(), 0
    longest = max(len(whole["input_ids"]), len(whole["rejected_input_ids"]))
    for limit in range(longest, 8, -3):
        encoder = ChatEncoder(qwen, max_length=limit)
        (result,) = encoder.encode_batch([record])
        if isinstance(result, EncodeError):
            assert result.reason == "no trained token"
            assert "record p" in str(result)
            continue
        sides = [qwen.decode(ids) for ids in (result.ids, result.more["rejected_input_ids"])]
        assert max(len(result.ids), len(result.more["rejected_input_ids"])) <= limit
        prompts = {side.rpartition("<|im_start|>assistant\n")[0] for side in sides}
        assert len(prompts) == 1
        kept.add(prompts.pop())
        cut += encoder.counts["answers cut"]
    assert len(kept) == 4
    assert cut


def test_the_weight_of_an_answer_not_preferred_stays_with_it(qwen):
    answer = {"role": "assistant", "content": "no", "loss_weight": 0.5}
    sample = ChatEncoder(qwen)({"prompt": "q", "chosen": "yes", "rejected": [answer]})
    assert sample["rejected_loss_weights"].tolist() == [0.5]
    assert "loss_weights" not in sample
