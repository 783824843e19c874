"""A tokenizer kept for the next process: the same ids, without transformers, until something changes."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from thalweg.encode import ChatEncoder, TextEncoder
from thalweg.encode import tokens as tokens_module
from thalweg.encode.kept import Kept, _key, kept_or_made
from thalweg.encode.tokens import Vocabulary, load_tokenizer, shared_tokenizer, tokenizer_digest

ROOT = Path(__file__).resolve().parents[2]
RECORD = {
    "messages": [{"role": "user", "content": "q <|im_end|> 中"}, {"role": "assistant", "content": "answer"}],
    "id": 1,
}


@pytest.fixture(scope="module")
def folder(qwen, tmp_path_factory):
    """A model's folder, and a cache in which it is kept."""
    folder, cache = tmp_path_factory.mktemp("model"), tmp_path_factory.mktemp("cache")
    qwen.save_pretrained(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("THALWEG_CACHE", str(cache))
        made = kept_or_made(str(folder), lambda: load_tokenizer(folder), tokenizer_digest)
        assert not isinstance(made, Kept)  # the first start is that of transformers
    return folder, cache


@pytest.fixture
def kept(folder, monkeypatch):
    monkeypatch.setenv("THALWEG_CACHE", str(folder[1]))
    found = kept_or_made(str(folder[0]), lambda: load_tokenizer(folder[0]), tokenizer_digest)
    assert isinstance(found, Kept)
    return found


START = """
import json, sys
from thalweg.encode import ChatEncoder, TextEncoder
chat, text = ChatEncoder(sys.argv[1]), TextEncoder(sys.argv[1])
sample = chat(json.loads(sys.argv[2]))
ids = [sample[k].tolist() for k in ("input_ids", "labels")] + [text({"text": "a <|im_end|>"})["input_ids"].tolist()]
print(json.dumps([ids, chat.digest, text.digest, sorted({"transformers", "torch"} & set(sys.modules))]))
"""


@pytest.mark.slow
def test_the_next_process_has_the_same_samples_and_digests_without_transformers(folder, qwen):
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "THALWEG_CACHE": str(folder[1])}
    command = [sys.executable, "-c", START, str(folder[0]), json.dumps(RECORD)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    ids, chat_digest, text_digest, loaded = json.loads(done.stdout)
    real = load_tokenizer(folder[0])
    chat, text = ChatEncoder(real), TextEncoder(real)
    sample = chat(RECORD)
    assert ids[:2] == [sample["input_ids"].tolist(), sample["labels"].tolist()]
    assert ids[2] == text({"text": "a <|im_end|>"})["input_ids"].tolist()
    assert (chat_digest, text_digest) == (chat.digest, text.digest)
    assert loaded == []


def test_what_is_kept_answers_as_the_real_one_does(kept, folder):
    real = load_tokenizer(folder[0])
    mine, theirs = Vocabulary.of(kept), Vocabulary.of(real)
    for name in ("size", "bos_id", "eos_id", "pad_id", "prefix", "suffix", "special", "composes"):
        assert getattr(mine, name) == getattr(theirs, name), name
    assert (mine.widths == theirs.widths).all()
    assert kept.get_vocab() == real.get_vocab()
    words = ["<|im_end|>", "a", "no such word at all"]
    assert kept.convert_tokens_to_ids(words) == real.convert_tokens_to_ids(words)
    assert kept.chat_template == real.chat_template
    assert tokenizer_digest(kept) == tokenizer_digest(real)
    for ids in ([9707, 151645], real.encode("Hello, world ! It 's 𓀀 <|im_end|>"), [], [220, 9707, 0, 11, 198]):
        assert kept.decode(ids) == real.decode(ids)
    assert kept.is_untouched
    assert kept.decode([9707, 151645], skip_special_tokens=True) == "Hello"  # asked of the real one
    assert kept("a b").input_ids == real("a b").input_ids
    assert not kept.is_untouched


def test_what_is_added_to_the_real_one_is_seen_from_then_on(kept):
    before = tokenizer_digest(kept)
    kept.real.add_tokens(["<new>"])
    assert kept.convert_tokens_to_ids("<new>") == len(kept) - 1
    assert kept.encode("<new>") == [len(kept) - 1]
    assert "<new>" in kept.get_vocab()
    assert tokenizer_digest(kept) != before
    assert type(pickle.loads(pickle.dumps(kept))) is type(kept.real)


def test_an_encoder_gives_the_tokenizer_of_transformers_to_whoever_asks(folder, monkeypatch):
    import transformers

    monkeypatch.setenv("THALWEG_CACHE", str(folder[1]))
    monkeypatch.setattr(tokens_module, "_LOADED", {})
    encoder = TextEncoder(str(folder[0]))
    assert isinstance(encoder.words, Kept)
    assert encoder.words is shared_tokenizer(str(folder[0]))
    assert encoder.words.is_untouched
    assert isinstance(encoder.tokenizer, transformers.PreTrainedTokenizerBase)


def test_another_file_or_version_is_another_tokenizer_and_code_of_its_own_is_never_kept(
    folder, qwen, tmp_path, monkeypatch
):
    monkeypatch.setenv("THALWEG_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "model"
    qwen.save_pretrained(path)
    first = _key(path)
    assert first == _key(folder[0])
    (path / "weights.safetensors").write_bytes(b"x")
    assert _key(path) == first
    (path / "chat_template.jinja").write_text(qwen.chat_template + " ")
    assert _key(path) not in {first, None}
    with monkeypatch.context() as patch:
        patch.setattr("thalweg.encode.kept.version", lambda name: "0")
        assert _key(path) != first
    (path / "tokenization_mine.py").write_text("")
    assert _key(path) is None
    assert _key(tmp_path) is None
    kept_or_made(str(path), lambda: qwen, tokenizer_digest)
    assert not (tmp_path / "cache").exists()


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(folder, qwen, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("THALWEG_CACHE", str(tmp_path / "file"))
    assert kept_or_made(str(folder[0]), lambda: qwen, tokenizer_digest) is qwen
