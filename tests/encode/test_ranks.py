"""tiktoken-style ranks: equal ids where they fit, a reason where they do not."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg.core.errors import ConfigError
from thalweg.encode import ChatEncoder, TextEncoder
from thalweg.encode import backend as backends
from thalweg.encode.backend import ODD, choose, first_difference, reference
from thalweg.encode.ranks import Ranks

pytest.importorskip("tiktoken")
tokenizers = pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def ranks(qwen):
    return Ranks(qwen)


# E15
def test_ids_are_those_of_the_reference_on_real_documents_and_odd_strings(qwen, ranks, records):
    texts = [r["text"] for r in records("c4_demo.jsonl")[:60]]
    marks = ["<|im_start|>user\n<think>x</think><|im_end|>", "a<tool_call>b", "e\u0301 <|vision_start|>"]
    assert first_difference(ranks, reference(qwen), [*ODD, *texts, *marks]) is None
    ids, offsets = ranks.encode(texts, special=True)
    assert (ids.dtype, offsets.dtype) == (np.int32, np.int64)
    assert ranks.encode([], special=True)[0].tolist() == []


# E15
@settings(max_examples=150, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=4))
def test_ids_are_those_of_the_reference_on_any_text(qwen, ranks, texts):
    assert first_difference(ranks, reference(qwen), texts) is None


def test_encoders_take_it_by_name_and_a_lone_surrogate_is_still_refused(qwen):
    record = {"messages": [{"role": "user", "content": "a <|im_end|>"}, {"role": "assistant", "content": "b"}]}
    one, two = (ChatEncoder(qwen, backend=name)(record) for name in ("tiktoken", "tokenizers"))
    assert one["input_ids"].tolist() == two["input_ids"].tolist()
    assert one["labels"].tolist() == two["labels"].tolist()
    with pytest.raises(ValueError, match="holds a lone surrogate"):
        TextEncoder(qwen, backend="tiktoken").encode_batch(["\ud83d"])


class Fast:
    """As much of a tokenizer of transformers as a choice of engines reads."""

    def __init__(self, engine):
        self.backend_tokenizer = engine

    def __len__(self):
        return self.backend_tokenizer.get_vocab_size()


def bpe(words, merges, **steps):
    engine = tokenizers.Tokenizer(tokenizers.models.BPE(words, merges))
    for name, value in steps.items():
        setattr(engine, name, value)
    return Fast(engine)


def test_what_ranks_do_not_fit_is_refused_with_the_reason(qwen):
    letters = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    words = {letter: i for i, letter in enumerate(sorted(letters))}
    level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    assert choose(bpe(words, [], pre_tokenizer=level), "tiktoken", ["a b"]).name == "tiktoken"
    pieces = tokenizers.models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]")
    cases = [
        (Fast(tokenizers.Tokenizer(pieces)), "its model is WordPiece"),
        (bpe(words, []), "cuts texts by"),
        (bpe(words, [], pre_tokenizer=level, normalizer=tokenizers.normalizers.Lowercase()), "changes texts before"),
        (bpe({k: v for k, v in words.items() if k != "a"}, [], pre_tokenizer=level), "not every byte has a rank"),
        (bpe({**words, "\u4e2d": 256}, [], pre_tokenizer=level), "is not of bytes"),
    ]
    for tokenizer, why in cases:
        with pytest.raises(ConfigError, match=rf"ranks do not fit this tokenizer: .*{why}"):
            choose(tokenizer, "tiktoken", [])
    # the ids of these merges do not follow their order: "bc" joins first here, and "ab" by the ranks
    unordered = bpe({**words, "ab": 256, "bc": 257}, [("b", "c"), ("a", "b")], pre_tokenizer=level)
    with pytest.raises(ConfigError, match="tiktoken gives other ids for 'abc'"):
        choose(unordered, "tiktoken", ["abc"])


# E15
def test_the_engine_that_chooses_itself_takes_the_fast_one_once_there_is_text_enough(qwen, monkeypatch):
    pytest.importorskip("fastokens")
    monkeypatch.setattr(backends, "ENOUGH", 200)
    engine, sure = backends.Auto(qwen), reference(qwen)
    names = []
    for i in range(6):
        texts = [f"text number {i} of many, \u4e2d\u6587 and <|im_end|>"]
        for special in (True, False):
            mine, theirs = engine.encode(texts, special=special), sure.encode(texts, special=special)
            assert [a.tolist() for a in mine] == [a.tolist() for a in theirs]
        names.append(engine.name)
    assert names[0] == "tokenizers"
    assert names[-1] == "fastokens"
    assert names == sorted(names, reverse=True)
    assert TextEncoder(qwen)._backend is ChatEncoder(qwen)._backend  # one for all encoders of a tokenizer
