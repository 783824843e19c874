"""The two example configurations of the reference document, a text model's folder, and small data sets."""

import json
import os

import pytest

from reference_files import STARTS, reference

pytest.importorskip("torch")
os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Both examples of the document as they stand, or ours with the same keys, in a folder of their own."""
    monkeypatch.chdir(tmp_path)
    for name in STARTS:
        (tmp_path / name).write_text(reference(name), encoding="utf-8")
    return tmp_path


@pytest.fixture(scope="session")
def qwen(qwen):
    """Qwen's template and special tokens with few words: a whole vocabulary takes a second wherever it is loaded."""
    return qwen.train_new_from_iterator(["a question, an answer, more, and the last"], 400)


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory, qwen):
    folder = tmp_path_factory.mktemp("model")
    qwen.save_pretrained(folder)
    from thalweg.bind.mindspeed.samples import tokenizer_of
    from thalweg.encode import ChatEncoder

    kept = tokenizer_of(str(folder))  # loading it again for each test would take a second each
    ChatEncoder(kept)({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})
    yield str(folder)
    del kept


def record(i, **more):
    turns = [("human", f"question {i}"), ("gpt", f"answer {i}"), ("human", f"more {i}"), ("gpt", f"last {i}")]
    return {"conversations": [{"from": r, "value": v} for r, v in turns], "n": i, **more}


@pytest.fixture
def param(tmp_path, model_dir):
    """A dataset_param of 23 records, two of them out of order; keywords change its sections."""
    rows = [record(i) for i in range(23)]
    rows[5]["conversations"].reverse()
    rows[11]["conversations"].pop()
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))

    def make(preprocess=None, attr=None, **basic):
        told = {
            "dataset": str(tmp_path / "rows.json"),
            "cache_dir": str(tmp_path / "cache"),
            "dataset_dir": str(tmp_path),
        }
        return {
            "dataset_type": "huggingface",
            "preprocess_parameters": {"model_name_or_path": model_dir, **(preprocess or {})},
            "basic_parameters": {**told, **basic},
            "attr": attr or {},
        }

    return make
