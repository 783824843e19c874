"""The keys, shapes and conventions of each dialect."""

import numpy as np
import pytest

from thalweg.core.errors import ConfigError
from thalweg.core.sample import Ragged
from thalweg.encode.collate import DIALECTS
from thalweg.plan.rows import lay_out
from thalweg.plan.slices import cut

DOCS = Ragged.from_rows([[11, 12, 13], [21, 22], [31, 32, 33, 34]], np.int32)
SPANS = Ragged(np.array([[1, 3], [0, 2], [3, 4]], np.int32), np.array([0, 1, 2, 3]))


def rows(**more):
    return lay_out(DOCS, np.array([0, 2, 3]), spans=SPANS, capacity=6, **more)


def test_hf_packed_has_what_isolates_documents_and_nothing_that_undoes_it():
    batch = DIALECTS["hf"](rows())
    plain = ["input_ids", "labels", "position_ids", "use_cache"]
    assert sorted(batch) == sorted([*plain, "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"])
    assert batch["use_cache"] is False
    assert batch["input_ids"].tolist() == [[11, 12, 13, 21, 22, 0], [31, 32, 33, 34, 0, 0]]
    assert batch["labels"].tolist() == [[-100, 12, 13, -100, 22, -100], [-100, -100, -100, 34, -100, -100]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1, 0], [0, 1, 2, 3, 0, 1]]
    assert batch["cu_seq_lens_q"].tolist() == batch["cu_seq_lens_k"].tolist() == [0, 3, 5, 6, 10, 12]
    assert batch["cu_seq_lens_q"].dtype == np.int32
    assert batch["max_length_q"] == batch["max_length_k"] == 4
    assert type(batch["max_length_q"]) is int


# E22 E17
def test_hf_padded_masks_by_place_and_left_padding_brings_positions():
    one = np.array([0, 1, 2, 3])
    right = DIALECTS["hf"](lay_out(DOCS, one, spans=SPANS, packed=False))
    assert set(right) == {"input_ids", "labels", "attention_mask"}
    assert right["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1]]
    assert right["attention_mask"].dtype == np.int64
    left = DIALECTS["hf"](lay_out(DOCS, one, spans=SPANS, packed=False, pad="left", pad_id=11))
    assert left["attention_mask"].tolist() == [[0, 1, 1, 1], [0, 0, 1, 1], [1, 1, 1, 1]]
    assert left["position_ids"].tolist() == [[0, 0, 1, 2], [0, 1, 0, 1], [0, 1, 2, 3]]
    assert left["labels"].tolist() == [[-100, -100, 12, 13], [-100, -100, -100, 22], [-100, -100, -100, 34]]


def test_megatron_gets_shifted_labels_a_loss_mask_and_borders_with_a_batch_axis():
    batch = DIALECTS["megatron"](rows())
    assert set(batch) == {"tokens", "labels", "loss_mask", "position_ids", "attention_mask", "cu_seqlens", "max_seqlen"}
    assert batch["labels"].tolist() == [[12, 13, 0, 22, 0, 0], [0, 0, 34, 0, 0, 0]]
    assert batch["loss_mask"].tolist() == [[1, 1, 0, 1, 0, 0], [0, 0, 1, 0, 0, 0]]
    assert batch["loss_mask"].dtype == np.float32
    assert batch["attention_mask"] is None
    assert batch["cu_seqlens"].shape == (1, 6)
    assert batch["max_seqlen"].tolist() == [4]
    assert DIALECTS["megatron"].labels_shifted
    padded = DIALECTS["megatron"](lay_out(DOCS, np.array([0, 1, 2, 3]), packed=False))
    assert "cu_seqlens" not in padded


def test_torchtitan_takes_a_pair_of_inputs_and_shifted_labels():
    dialect = DIALECTS["torchtitan"]
    inputs, labels = dialect.form(dialect(rows()))
    assert set(inputs) == {"input", "positions"}
    assert labels.tolist() == [[12, 13, -100, 22, -100, -100], [-100, -100, 34, -100, -100, -100]]
    assert DIALECTS["hf"].form({"a": 1}) == {"a": 1}


def test_the_number_of_trained_tokens_does_not_depend_on_the_dialect():
    made = rows()
    assert made.num_label_tokens == (DIALECTS["hf"](made)["labels"] != -100).sum()
    assert made.num_label_tokens == DIALECTS["megatron"](made)["loss_mask"].sum()
    assert made.num_label_tokens == (DIALECTS["torchtitan"](made)["labels"] != -100).sum()


def test_a_dialect_without_left_padding_says_so():
    left = lay_out(DOCS, np.array([0, 1, 2, 3]), packed=False, pad="left")
    with pytest.raises(ConfigError, match="left"):
        DIALECTS["megatron"](left)


def test_multimodal_positions_have_the_text_row_first_for_hf_and_none_for_megatron():
    rope = Ragged(np.arange(27).reshape(9, 3), DOCS.offsets)
    made = rows(rope=rope)
    assert DIALECTS["hf"](made)["position_ids"].shape == (4, 2, 6)
    assert DIALECTS["hf"](made)["position_ids"][0].tolist() == [[0, 1, 2, 0, 1, 0], [0, 1, 2, 3, 0, 1]]
    assert DIALECTS["megatron"](made)["position_ids"].shape == (3, 2, 6)


def test_state_space_models_get_the_number_of_each_places_document():
    batch = DIALECTS["hf_mamba"](rows())
    assert batch["seq_idx"].tolist() == [[0, 0, 0, 1, 1, 2], [0, 0, 0, 0, 1, 1]]
    assert batch["seq_idx"].dtype == np.int32
    assert set(batch) - {"seq_idx"} == set(DIALECTS["hf"](rows()))


def test_a_context_parallel_slice_says_that_its_labels_are_shifted():
    whole = lay_out(DOCS, np.array([0, 2, 3]), spans=SPANS, align=4, capacity=8)
    part = cut(whole, 1, 2, "zigzag")
    assert part.labels_shifted
    hf = DIALECTS["hf"](part)
    assert hf["shift_labels"].tolist() == DIALECTS["torchtitan"](part)["labels"].tolist() == part.labels.tolist()
    assert DIALECTS["megatron"](part)["loss_mask"].sum() == part.num_label_tokens
    assert "shift_labels" not in DIALECTS["hf"](whole)
    with pytest.raises(ConfigError, match="slice already"):
        cut(part, 0, 2)
