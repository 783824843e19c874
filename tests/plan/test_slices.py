"""Context-parallel slices: put together they are the row, and their losses sum to that of the row."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg.core.errors import ConfigError
from thalweg.core.sample import Ragged
from thalweg.plan.labels import shift
from thalweg.plan.rows import lay_out
from thalweg.plan.slices import cut, places

LAYOUTS = ("zigzag", "zigzag_row", "contiguous")


@st.composite
def rows(draw):
    """Rows of aligned documents for up to four ranks, with multimodal positions or none."""
    size = draw(st.sampled_from([1, 2, 4]))
    shape = draw(st.lists(st.lists(st.integers(1, 20), max_size=3), min_size=1, max_size=3))
    sizes = [n for r in shape for n in r]
    tokens = Ragged.from_rows([np.arange(n) + 100 * i + 1 for i, n in enumerate(sizes)], np.int32)
    offsets = np.append(0, np.cumsum([len(r) for r in shape]))
    rope = Ragged(np.arange(3 * len(tokens.values)).reshape(-1, 3), tokens.offsets) if draw(st.booleans()) else None
    made = lay_out(tokens, offsets, align=2 * size, capacity=96, rope=rope, aligned={"mm_token_type_ids": tokens})
    return made, size


@given(rows(), st.sampled_from(LAYOUTS))
@settings(max_examples=150, deadline=None)
def test_slices_put_together_are_the_row(made, layout):
    whole, size = made
    parts = [cut(whole, r, size, layout) for r in range(size)]
    at = [places(whole, r, size, layout) for r in range(size)]
    assert np.array_equal(np.sort(np.concatenate(at, axis=1), axis=1), np.tile(np.arange(96), (len(whole.lengths), 1)))
    shifted = shift(whole.labels)
    for part, place in zip(parts, at, strict=True):
        assert part.input_ids.shape == (len(whole.lengths), 96 // size)
        assert np.array_equal(part.input_ids, np.take_along_axis(whole.input_ids, place, 1))
        assert np.array_equal(part.labels, np.take_along_axis(shifted, place, 1))
        own = whole.position_ids if whole.position_ids.ndim == 2 else whole.position_ids[2]
        got = part.position_ids if part.position_ids.ndim == 2 else part.position_ids[2]
        assert np.array_equal(got, np.take_along_axis(own, place, 1))
        assert part.columns["mm_token_type_ids"].shape == part.input_ids.shape
        assert np.array_equal(part.cu_seqlens, whole.cu_seqlens)
    assert sum(p.num_label_tokens for p in parts) == whole.num_label_tokens


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [2, 4])
def test_the_loss_summed_over_slices_is_that_of_the_row(size, layout):
    rng = np.random.default_rng(0)
    tokens = Ragged.from_rows([rng.integers(0, 50, n) for n in (13, 30, 7, 22)], np.int32)
    whole = lay_out(tokens, np.array([0, 2, 4]), align=2 * size, capacity=64)
    logits = rng.standard_normal((2, 64, 50))
    logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))

    def loss(scores, labels):
        each = -np.take_along_axis(scores, np.maximum(labels, 0)[..., None], -1)[..., 0]
        return float((each * (labels != -100)).sum())

    want = loss(logp, shift(whole.labels))
    got = 0.0
    for r in range(size):
        part, at = cut(whole, r, size, layout), places(whole, r, size, layout)
        got += loss(np.take_along_axis(logp, at[..., None], 1), part.labels)
    assert got == pytest.approx(want, abs=1e-5)


def test_zigzag_gives_all_ranks_the_same_pairs_of_tokens():
    tokens = Ragged.from_rows([np.ones(16), np.ones(48)], np.int32)
    whole = lay_out(tokens, np.array([0, 2]), align=4, capacity=64)
    pairs = {
        layout: {int((cut(whole, r, 2, layout).position_ids + 1).sum()) for r in range(2)}
        for layout in ("zigzag", "contiguous")
    }
    assert len(pairs["zigzag"]) == 1
    assert len(pairs["contiguous"]) == 2


def test_what_does_not_divide_says_what_to_align_to():
    tokens = Ragged.from_rows([np.ones(5), np.ones(7)], np.int32)
    whole = lay_out(tokens, np.array([0, 2]), capacity=14)
    with pytest.raises(ConfigError, match="align=4"):
        cut(whole, 0, 2, "zigzag")
    with pytest.raises(ConfigError, match="multiple of 4"):
        cut(whole, 0, 2, "zigzag_row")
    with pytest.raises(ConfigError, match="'zigzag_row'"):
        cut(whole, 0, 2, "zigzag_rows")
    with pytest.raises(ConfigError, match="cp_rank 2"):
        cut(whole, 2, 2)
