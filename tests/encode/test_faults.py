"""Faults of public collators, packers and encoders, each a promise here; and conversations made at random, half broken.

Others of them stand where their part is: labels across a border in tests/plan/test_rows.py and tests/encode/
test_isolation.py, rows of fully masked documents in tests/feed/test_packing.py, means over steps in test_losses.py.
"""

import copy
import random
from pathlib import Path

import numpy as np
import pytest

from thalweg.core.sample import Ragged
from thalweg.encode import ChatEncoder, EncodeError
from thalweg.encode.collate import DIALECTS
from thalweg.plan.rows import lay_out

trl = pytest.importorskip("trl")
FOLDER = Path(trl.__file__).parent / "chat_templates"


def turns(*said):
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(said)]


def mask_of(encoded):
    mask = np.zeros(len(encoded.ids), int)
    for a, b in encoded.spans.tolist():
        mask[a:b] = 1
    return mask.tolist()


# K13
@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_wherever_a_text_is_cut_into_question_and_answer_the_whole_answer_is_trained(qwen, trained, cut):
    text = "It doesn't matter  where 中文句子 or a word's cut: \n\n  it's 1,000.5% the same."
    sample = ChatEncoder(qwen)({"messages": turns(text[:cut], text[cut:])})
    assert trained(sample) == [f"{text[cut:]}<|im_end|>"]


# E23
@pytest.mark.parametrize("name", [None, "qwen2_5_training.jinja", "qwen3_training.jinja"])
def test_prompt_and_response_have_the_loss_of_the_same_messages(qwen, name):
    source = None if name is None else (FOLDER / name).read_text(encoding="utf-8")
    encoder = ChatEncoder(qwen, chat_template=source)
    wanted = encoder({"messages": turns("What is it?", "A river.\n")})
    forms = [{"prompt": "What is it?", "response": "A river.\n"},
             {"instruction": "What is it?", "output": "A river.\n"},
             {"prompt": turns("What is it?"), "completion": turns("", "A river.\n")[1:]}]  # fmt: skip
    for record in forms:
        sample = encoder(record)
        assert np.array_equal(sample["input_ids"], wanted["input_ids"])
        assert np.array_equal(sample["labels"], wanted["labels"])


# E22
def test_an_end_token_that_is_the_padding_too_is_trained_and_seen(qwen):
    encoded = ChatEncoder(qwen).encode_batch([{"messages": turns("a", "b")}, {"messages": turns("a", "b " * 9)}])
    eos = qwen.eos_token_id
    rows = lay_out(
        Ragged.from_rows([e.ids for e in encoded], np.int32), np.arange(3), pad_id=eos, packed=False,
        spans=Ragged.from_rows([e.spans for e in encoded]),
    )  # fmt: skip
    batch = DIALECTS["hf"](rows)
    for row, e in enumerate(encoded):
        n = len(e.ids)
        assert batch["attention_mask"][row].tolist() == [1] * n + [0] * (len(batch["labels"][row]) - n)
        assert (batch["labels"][row] == eos).sum() == 1
        assert (batch["labels"][row, n:] == -100).all()


# E24
def test_no_limit_leaves_a_conversation_without_a_trained_token(qwen):
    record = {"messages": turns("a question of some words " * 5, "an answer", "and again " * 5, "yes"), "id": "r"}
    kept, encoder = 0, ChatEncoder(qwen)
    for limit in range(1, 80):
        encoder.max_length = limit
        (result,) = encoder.encode_batch([record])
        if isinstance(result, EncodeError):
            assert result.reason == "no trained token"
            assert "record r" in str(result)
        else:
            assert len(result.ids) <= limit
            assert sum(mask_of(result)) > 0
            kept += 1
    assert 0 < kept < 79


# E23 K15
@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen3_training.jinja", "qwen2_5_training.jinja", "qwen3_vl_training.jinja"])
def test_a_thousand_real_conversations_have_no_label_that_differs_from_the_oracle_template(qwen, records, name):
    rows = records("alpaca_en_demo.json")[:500] + records("alpaca_zh_demo.json")[:500]
    source = (FOLDER / name).read_text(encoding="utf-8")
    encoder = ChatEncoder(qwen, chat_template=source, backend="tokenizers")
    said = [row["instruction"] + ("\n" + row["input"] if row["input"] else "") for row in rows]
    talks = [turns(said[i], row["output"], said[i - 1], rows[i - 1]["output"]) for i, row in enumerate(rows)]
    encoded = encoder.encode_batch([{"messages": talk} for talk in talks])
    parts = encoder.drawer.turns.parts
    for talk, ours in zip(talks, encoded, strict=True):
        given = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in talk] if parts else talk
        theirs = qwen.apply_chat_template(
            given, chat_template=source, return_dict=True, return_assistant_tokens_mask=True
        )
        assert ours.ids.tolist() == theirs["input_ids"]
        assert mask_of(ours) == theirs["assistant_masks"]


WORDS = (
    "hello",
    " world ",
    "中文",
    "\n",
    "<b>",
    "👩‍👩‍👧",
    "é",
    "1,000",
    "",
    "  ",
    "<|im_start",
    "<think>",
    "don't",
    "\t",
    "<image>",
)
BREAKS = (
    lambda m: m.update(role="wizard"), lambda m: m.update(role=None), lambda m: m.pop("role"),
    lambda m: m.update(content=3), lambda m: m.update(content=None), lambda m: m.update(content=[{"type": "hologram"}]),
    lambda m: m.update(content=["a", {"text": "b"}]), lambda m: m.update(role="assistant"), lambda m: m.clear(),
    lambda m: m.update(tool_calls=[{"function": {}}]), lambda m: m.update(weight="x"), lambda m: m.update(role="tool"),
    lambda m: m.update(content="\ud83d"), lambda m: m.update(content="\ufdd0"), lambda m: m.update(content={"a": 1}),
)  # fmt: skip


JUNK = (
    None, 3, float("nan"), "", "[", "{}", b"x", [], {}, [[]], [None], {"a": 1}, True, (1,), {1}, np.zeros(3), "\ud83d",
    {"content": 3}, np.array(["a"], object), "<image>", lambda: 0,
)  # fmt: skip


def places(value, at=()):
    """Every place within a record."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*at, key)
        if isinstance(inner, (dict, list)):
            yield from places(inner, (*at, key))


def test_no_value_of_an_odd_kind_in_a_real_record_crashes_the_encoder(qwen, records):
    draw = random.Random(5)
    encoders = [
        ChatEncoder(qwen, backend="tokenizers"),
        ChatEncoder(qwen, backend="tokenizers", max_length=64, tool_format="qwen", enable_thinking=False),
    ]
    names = ["alpaca_en_demo.json", "dpo_en_demo.json", "glaive_toolcall_en_demo.json", "reason_tool_use_demo_50.jsonl",
             "v1_sft_demo.jsonl"]  # fmt: skip
    rows, refused = [row for name in names for row in records(name)[:20]], 0
    for number in range(2000):
        record = copy.deepcopy(draw.choice(rows))
        (*way, last) = draw.choice(list(places(record)))
        owner = record
        for key in way:
            owner = owner[key]
        owner[last] = copy.deepcopy(draw.choice(JUNK))
        (result,) = draw.choice(encoders).encode_batch([{**record, "id": number}])
        if isinstance(result, EncodeError):
            refused += 1
            assert f"record {number}" in str(result)
    assert refused > 500


# K15 K17 E23
@pytest.mark.parametrize("name", ["qwen3_training.jinja", "qwen2_5_training.jinja"])
def test_random_conversations_have_the_labels_of_the_oracle_or_are_refused_by_name(qwen, name):
    draw = random.Random(7)
    text = lambda least: "".join(draw.choices(WORDS, k=draw.randint(least, 9)))
    good, broken = [], []
    for i in range(600):
        talk = turns(*(text(0) if j % 2 == 0 else text(0) + "x" for j in range(2 * draw.randint(1, 3))))
        talk = [{"role": "system", "content": text(0)}, *talk] if draw.random() < 0.3 else talk
        (broken if i % 2 else good).append({"messages": talk, "id": f"r{i}"})
    for record in broken:
        draw.choice(BREAKS)(draw.choice(record["messages"]))
    source = (FOLDER / name).read_text(encoding="utf-8")
    encoder = ChatEncoder(qwen, chat_template=source, backend="tokenizers")
    mixed = [r for pair in zip(good, broken, strict=True) for r in pair]
    results = dict(zip([r["id"] for r in mixed], encoder.encode_batch(mixed), strict=True))
    accepted = 0
    for record in good:
        ours = results[record["id"]]
        if isinstance(ours, EncodeError):
            continue
        accepted += 1
        if any(token in m["content"] for m in record["messages"] for token in qwen.added_tokens_encoder):
            continue  # it stays text here: test_chat
        theirs = qwen.apply_chat_template(
            record["messages"], chat_template=source, return_dict=True, return_assistant_tokens_mask=True
        )
        assert ours.ids.tolist() == theirs["input_ids"]
        assert mask_of(ours) == theirs["assistant_masks"]
    assert accepted >= 0.99 * len(good)
    refused = [results[r["id"]] for r in broken if isinstance(results[r["id"]], EncodeError)]
    assert len(refused) > len(broken) // 2
    names = {r["id"] for r in broken}
    assert all(str(e).count("record r") == 1 and e.where.removeprefix("record ") in names for e in refused)
