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


def test_answers_of_the_prompt_of_a_pair_are_not_trained_wherever_it_stands(qwen, trained):
    talk = turns("one", "a", "two")
    sides = {"chosen": [{"role": "assistant", "content": "yes"}], "rejected": [{"role": "assistant", "content": "no"}]}
    before = ChatEncoder(qwen)({"prompt": talk, **sides})
    inside = ChatEncoder(qwen)({name: [*talk, *answer] for name, answer in sides.items()})
    for sample in (before, inside):
        assert trained(sample) == ["yes<|im_end|>"]
        other = {"input_ids": sample["rejected_input_ids"], "labels": sample["rejected_labels"]}
        assert trained(other) == ["no<|im_end|>"]
    said = [talk[0], {**talk[1], "weight": 1.0}, talk[2]]
    assert trained(ChatEncoder(qwen)({"prompt": said, **sides})) == ["a<|im_end|>", "yes<|im_end|>"]
    (equal,) = ChatEncoder(qwen).encode_batch([{"prompt": talk, "chosen": "yes", "rejected": "yes"}])
    assert equal.reason == "no trained token"


def test_the_weight_of_an_answer_not_preferred_stays_with_it(qwen):
    answer = {"role": "assistant", "content": "no", "loss_weight": 0.5}
    sample = ChatEncoder(qwen)({"prompt": "q", "chosen": "yes", "rejected": [answer]})
    assert sample["rejected_loss_weights"].tolist() == [0.5]
    assert "loss_weights" not in sample
