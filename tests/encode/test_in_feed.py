"""The encoders as a user has them: in a feed, with a cache, packed and batched; and the same samples offline."""

import json

import numpy as np
import pytest

import thalweg as tw
from thalweg.core.document import Document
from thalweg.encode import ChatEncoder, TextEncoder
from thalweg.steps.encode import EncodeChat

pytestmark = pytest.mark.slow


@pytest.fixture
def rows(tmp_path):
    said = [
        {"messages": [{"role": "user", "content": f"q{i}"}, {"role": "assistant", "content": f"a{i} " * (i + 1)}]}
        for i in range(12)
    ]
    (tmp_path / "chat.jsonl").write_text("".join(json.dumps(r) + "\n" for r in said))
    return said


# E15 E23 B47
def test_a_feed_of_conversations_trains_the_answers_and_nothing_else(qwen, rows, tmp_path, monkeypatch):
    monkeypatch.setenv("THALWEG_CACHE", str(tmp_path / "cache"))
    encoder = ChatEncoder(qwen)
    feed = tw.from_files(str(tmp_path / "chat.jsonl")).map(encoder, mode="inline").cache(str(tmp_path / "made"))
    loader = tw.Loader(feed.shuffle().pack(128, overlong="drop").batch(2), return_tensors="np", tail="pad")
    trained = []
    for batch in loader:
        ids, labels = batch["input_ids"], batch["labels"]
        assert set(labels[labels != -100].tolist()) <= set(ids.reshape(-1).tolist())
        for row in labels:
            trained += [t for t in qwen.decode([i for i in row.tolist() if i != -100]).split("<|im_end|>") if t]
    assert sorted(trained) == sorted(r["messages"][1]["content"] for r in rows)
    step = EncodeChat(qwen)
    for made, row in zip(step([Document("", str(i), metadata=r) for i, r in enumerate(rows)]), rows, strict=True):
        alone = encoder(row)
        assert np.array_equal(made["input_ids"], alone["input_ids"])
        spans = np.full(len(alone["labels"]), -100)
        for a, b in made["loss_spans"].tolist():
            spans[a:b] = made["input_ids"][a:b]
        assert np.array_equal(spans, alone["labels"])


# E15 A5
@pytest.mark.parametrize("batched", [False, 5])
def test_texts_are_encoded_one_by_one_or_in_batches(qwen, tmp_path, batched):
    texts = [f"text number {i}" for i in range(11)]
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    feed = tw.from_files(str(tmp_path / "text.jsonl")).map(TextEncoder(qwen), batched=batched, mode="inline")
    seen = [s["input_ids"] for s in feed]
    assert [qwen.decode(ids[:-1]) for ids in seen] == texts


def test_a_bad_record_is_left_out_where_that_is_asked_for(qwen, rows, tmp_path):
    rows[3] = {"messages": [{"role": "user", "content": "no answer"}]}
    (tmp_path / "chat.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    feed = tw.from_files(str(tmp_path / "chat.jsonl")).map(ChatEncoder(qwen), mode="inline", on_error="skip", max_bad=3)
    assert len([s for s in feed if s is not None]) == 11  # the twelfth keeps its place as a hole
