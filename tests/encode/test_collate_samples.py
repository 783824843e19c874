"""Samples as columns: media in token order, labels and positions beside their tokens, the rest refused by name."""

import numpy as np
import pytest

from thalweg.core.errors import ConfigError, SampleError
from thalweg.encode.collate_samples import columns_of, join, samples_of

TEXT = {"input_ids": [1, 2, 3], "labels": [-100, 2, 3], "id": "a", "source": "x"}
IMAGE = {
    "input_ids": [4, 9, 9, 5],
    "labels": [-100, -100, -100, 5],
    "position_ids": np.array([[0, 1, 1, 3], [0, 1, 1, 3], [0, 1, 2, 3]]),
    "mm_token_type_ids": [0, 1, 1, 0],
    "pixel_values": np.arange(8.0).reshape(4, 2),
    "image_grid_thw": np.array([[1, 2, 2]]),
}
TWO = {**IMAGE, "pixel_values": 10 + np.arange(4.0).reshape(2, 2), "image_grid_thw": np.array([[1, 1, 1], [1, 1, 1]])}


# C47
def test_media_of_all_documents_stand_in_the_order_of_their_tokens():
    got = columns_of([IMAGE, TEXT, TWO])
    assert got.media["pixel_values"].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7], [10, 11], [12, 13]]
    assert got.media["image_grid_thw"].tolist() == [[1, 2, 2], [1, 1, 1], [1, 1, 1]]
    assert got.aligned["mm_token_type_ids"].values.tolist() == [0, 1, 1, 0, 0, 0, 0, 0, 1, 1, 0]
    assert [r.tolist() for r in got.rope][1] == [[0, 0, 0], [1, 1, 1], [2, 2, 2]]
    assert got.rope[0].tolist() == [[0, 0, 0], [1, 1, 1], [1, 1, 2], [3, 3, 3]]
    assert got.labels.values.tolist() == [-100, -100, -100, 5, -100, 2, 3, -100, -100, -100, 5]
    assert set(got.media) == {"pixel_values", "image_grid_thw"}


def test_text_alone_has_no_media_and_no_multimodal_positions():
    got = columns_of([TEXT, {**TEXT, "position_ids": [0, 1, 2], "attention_mask": [1, 1, 1]}])
    assert got.rope is None
    assert got.media == {}
    assert got.tokens.values.dtype == np.int32


def test_spans_are_kept_as_they_are():
    got = columns_of([{"input_ids": [1, 2], "loss_spans": [[1, 2]]}, {"input_ids": [3], "loss_spans": []}])
    assert got.labels is None
    assert got.spans.values.tolist() == [[1, 2]]
    assert got.spans.offsets.tolist() == [0, 1, 1]


def test_a_column_that_can_not_be_collated_is_refused_by_name():
    for value in ("text", {"a": 1}, 3.5, [["a"], ["b"]]):
        with pytest.raises(ConfigError, match="'extra'"):
            columns_of([{**TEXT, "extra": value}])
    with pytest.raises(ConfigError, match=r"'audio'.*behind the first axis"):
        columns_of([{**TEXT, "audio": np.zeros((1, 4))}, {**TEXT, "audio": np.zeros((1, 5))}])


# E9
def test_a_token_aligned_column_of_another_length_names_the_sample():
    with pytest.raises(SampleError, match="'labels' of sample 1 has 2 values for 3 tokens"):
        columns_of([TEXT, {**TEXT, "labels": [1, 2]}])
    with pytest.raises(SampleError, match="shape"):
        columns_of([{**IMAGE, "position_ids": np.zeros((3, 5), int)}])
    with pytest.raises(SampleError, match="no 'input_ids'"):
        columns_of([{"text": "a"}])


def test_samples_come_back_from_columns():
    columns = {"input_ids": columns_of([TEXT, IMAGE]).tokens, "id": ["a", "b"]}
    back = samples_of(columns, 2)
    assert back[1]["input_ids"].tolist() == [4, 9, 9, 5]
    assert [s["id"] for s in back] == ["a", "b"]
    assert join("x", [None, None, np.zeros((2, 1))]).shape == (2, 1)
