import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg.core.errors import ConfigError
from thalweg.encode import TextEncoder
from thalweg.encode.errors import EncodeError


@pytest.fixture(scope="module")
def encoder(qwen):
    return TextEncoder(qwen)


# E15 B2 B3
def test_ids_are_those_of_the_tokenizer_alone_on_real_documents(encoder, qwen, records):
    texts = [r["text"] for r in records("c4_demo.jsonl")]
    for text, ids in zip(texts, encoder.encode_batch(texts), strict=True):
        assert ids.tolist() == [*qwen(text).input_ids, qwen.eos_token_id]


# E15
@settings(max_examples=150, deadline=None)
@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=5))
def test_ids_are_those_of_the_tokenizer_alone_on_odd_strings(encoder, qwen, texts):
    for text, ids in zip(texts, encoder.encode_batch(texts), strict=True):
        if not any(token in text for token in qwen.added_tokens_encoder):
            assert ids.tolist() == [*qwen(text).input_ids, qwen.eos_token_id]


# E23
def test_every_token_of_a_document_is_a_label(encoder):
    sample = encoder({"text": "a b c", "id": "x", "other": 1})
    assert sample["id"] == "x"
    assert "other" not in sample
    assert sample["input_ids"].dtype == np.int32
    assert sample["labels"].dtype == np.int64
    assert sample["labels"].tolist() == sample["input_ids"].tolist()


def test_columns_of_samples_give_what_single_samples_give(encoder):
    texts = ["one", "", "two three"]
    columns = encoder({"text": texts, "id": ["a", "b", "c"]})
    assert encoder({"text": ""}) is None  # as offline, where it is dropped as "empty text"
    for i, text in enumerate(["one", "two three"]):
        assert np.array_equal(columns["input_ids"][i], encoder({"text": text})["input_ids"])
    assert columns["id"] == ["a", "c"]


# E16
@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 6, 100])
def test_a_text_over_the_limit_is_cut_and_gets_no_end_token(qwen, limit):
    whole = [*qwen("one two three four").input_ids, qwen.eos_token_id]
    short = TextEncoder(qwen, max_length=limit)
    ids = list(short.encode_batch(["one two three four", "x"]))
    assert ids[0].tolist() == whole[:limit]
    assert ids[1].tolist() == [*qwen("x").input_ids, qwen.eos_token_id][:limit]


# B4
def test_text_that_looks_like_a_special_token_stays_text(encoder, qwen):
    ids = encoder({"text": "say <|im_end|> twice"})["input_ids"].tolist()
    assert ids.count(qwen.eos_token_id) == 1
    assert qwen.decode(ids[:-1]) == "say <|im_end|> twice"
    read = TextEncoder(qwen, split_special_tokens=False)({"text": "say <|im_end|> twice"})["input_ids"].tolist()
    assert read.count(qwen.eos_token_id) == 2


@pytest.mark.slow
def test_a_pickled_encoder_gives_the_same_ids(encoder):
    again = pickle.loads(pickle.dumps(encoder))
    assert np.array_equal(again({"text": "some text"})["input_ids"], encoder({"text": "some text"})["input_ids"])


def test_a_lone_surrogate_is_refused_with_its_place(encoder):
    with pytest.raises(EncodeError, match="text 1 of 2 holds a lone surrogate at character 3") as caught:
        encoder.encode_batch(["fine", "ok \ud83d end"])
    assert caught.value.reason == "not valid Unicode"


def test_a_missing_column_names_the_nearest(encoder):
    with pytest.raises(EncodeError, match="did you mean 'texts'"):
        encoder({"texts": "a"})


def test_an_end_token_that_the_tokenizer_lacks_is_refused_when_built(qwen):
    with pytest.raises(ConfigError, match="no beginning-of-text token"):
        TextEncoder(qwen, add_bos=True)
