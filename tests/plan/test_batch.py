"""Buckets, token budgets and groups: which samples share a batch, and what padding they save."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg.core.errors import ConfigError, InputError
from thalweg.plan import batch, pack

REMAINDERS = ("pad", "keep", "drop", "up")


def spread(n=20_000, mean=300, top=1024, seed=0):
    """Lengths with a mean of 300 up to 1,024, as the document that promises 70% waste assumes."""
    return np.clip(np.random.default_rng(seed).lognormal(np.log(mean) - 0.4, 0.8, n), 1, top).astype(np.int64)


# E20 E21
@given(
    st.lists(st.integers(1, 40), max_size=120),
    st.sampled_from(REMAINDERS),
    st.sampled_from(["longest", "boundary"]),
    st.sampled_from([1, 2, 3]),
    st.sampled_from([1, 8]),
)
@settings(max_examples=200, deadline=None)
def test_every_sample_is_in_one_batch_of_its_bucket_or_counted(lengths, remainder, pad_to, run, multiple):
    n = np.array(lengths, np.int64)
    got = batch.bucket(n, [8, 16], [4, 3, 2], remainder=remainder, pad_to=pad_to, run=run, multiple=multiple)
    assert len(np.unique(got.rows.order)) == len(got.rows.order)
    left_out = len(n) - len(got.rows.order)
    assert left_out == sum(d for d, _ in got.loss.reasons.values())
    assert n.sum() - n[got.rows.order].sum() == got.loss.tokens
    assert remainder == "drop" or not left_out
    assert left_out <= 3 * 4 * run
    for samples, size, width in zip(got.rows, got.sizes, got.rows.capacities, strict=True):
        assert len(samples) <= size
        assert width % multiple == 0
        if len(samples):
            assert n[samples].max() <= width
            own = np.searchsorted([8, 16], n[samples])
            assert remainder == "up" or len(set(own)) == 1
            assert size <= (4, 3, 2)[own.max()] or remainder == "up"
    if remainder != "keep":  # a step of `run` ranks has one shape
        assert len(got.rows) % run == 0
        for i in range(0, len(got.rows), run):
            assert (
                len(
                    {
                        (int(b), int(w))
                        for b, w in zip(got.sizes[i : i + run], got.rows.capacities[i : i + run], strict=True)
                    }
                )
                == 1
            )
    assert sum(got.shapes().values()) == len(got.rows)


# E20
def test_a_length_on_the_boundary_belongs_below_it_and_a_longer_one_to_the_last_bucket():
    got = batch.bucket([8, 9, 8, 16, 17, 9], [8, 16], [2, 2, 2], pad_to="boundary")
    assert [r.tolist() for r in got.rows] == [[0, 2], [1, 3], [5], [4]]
    assert got.rows.capacities.tolist() == [8, 16, 16, 17]
    assert got.sizes.tolist() == [2, 2, 2, 2]


# E20
def test_leftovers_follow_the_rule_that_was_asked_for():
    lengths, boundaries, sizes = [3, 3, 3, 12], [8, 16], [2, 2]
    rows = {r: batch.bucket(lengths, boundaries, sizes, remainder=r) for r in REMAINDERS}
    assert [b.tolist() for b in rows["pad"].rows] == [[0, 1], [2], [3]]
    assert rows["pad"].sizes.tolist() == [2, 2, 2]
    assert rows["keep"].sizes.tolist() == [2, 1, 1]
    assert [b.tolist() for b in rows["drop"].rows] == [[0, 1]]
    assert rows["drop"].loss.reasons == {"last of a bucket": (2, 15)}
    assert [b.tolist() for b in rows["up"].rows] == [[0, 1], [2, 3]]


# E50
def test_samples_above_the_last_boundary_need_a_bucket_of_their_own():
    with pytest.raises(InputError, match="1 of 3 samples are longer than the last boundary 16, the first is sample 1"):
        batch.bucket([3, 17, 4], [8, 16], [2, 2])
    got = batch.bucket([3, 17, 4], [8, 16], [2, 2, 1])
    assert got.rows.capacities.tolist() == [17, 4]


# E49
def test_the_set_of_shapes_is_bounded_and_can_be_listed():
    lengths = spread()
    got = batch.bucket(lengths, [128, 256, 512, 1024], [32, 16, 8, 4], pad_to="boundary", run=4)
    assert set(got.shapes()) == {(32, 128), (16, 256), (8, 512), (4, 1024)}
    budget = batch.token_budget(lengths, 4096, multiple=128)
    assert len({w for _, w in budget.shapes()}) <= 8


# E18 E19
def test_padding_to_the_longest_wastes_seventy_percent_and_buckets_save_it():
    lengths = spread()
    waste = batch.padding_share(lengths, to=1024)
    assert 0.65 < waste < 0.75
    assert batch.padding_share([300, 100], to=1024) == pytest.approx(1 - 400 / 2048)  # also where none is so long
    assert batch.padding_share([300, 100]) == pytest.approx(1 - 400 / 600)
    to_longest = len(lengths) * 1024
    for made in (
        batch.bucket(lengths, [128, 256, 512, 1024], [32, 16, 8, 4], pad_to="boundary"),
        batch.token_budget(lengths, 4096),
    ):
        assert 1 - made.padded_tokens / to_longest > 0.4
    grouped = batch.group_by_length(lengths, 8)
    assert batch.padding_share(lengths[grouped], 8) < 0.10 < batch.padding_share(lengths, 8)
    rows = pack.plan(lengths, 1024).rows
    assert len(rows) * 1024 < batch.token_budget(lengths, 4096).padded_tokens


# E21
@given(
    st.lists(st.integers(1, 40), max_size=120), st.sampled_from([None, 1, 7]), st.sampled_from([1, 8]), st.booleans()
)
@settings(max_examples=150, deadline=None)
def test_a_batch_never_exceeds_its_budget_of_padded_tokens(lengths, window, multiple, mixed):
    n = np.array(lengths, np.int64)
    got = batch.token_budget(n, 80, window=window, multiple=multiple, key=(1,) if mixed else None)
    assert np.array_equal(np.sort(got.rows.order), np.arange(len(n)))
    assert (got.sizes * got.rows.capacities <= 80).all()
    assert (got.sizes == got.rows.documents).all()
    for samples, width in zip(got.rows, got.rows.capacities, strict=True):
        assert width == -(-n[samples].max() // multiple) * multiple
    if window == 1:
        assert got.rows.order.tolist() == list(range(len(n)))


# C30
@given(st.lists(st.integers(1, 99), max_size=200), st.integers(1, 5), st.integers(1, 6), st.integers(0, 3))
@settings(max_examples=150, deadline=None)
def test_groups_permute_samples_inside_their_window_only(lengths, size, window, seed):
    n = np.array(lengths, np.int64)
    order = batch.group_by_length(n, size, window=window, key=(seed,))
    assert np.array_equal(np.sort(order), np.arange(len(n)))
    for start in range(0, len(n), size * window):
        part = order[start : start + size * window]
        assert set(part) == set(range(start, min(start + size * window, len(n))))
    assert np.array_equal(order, batch.group_by_length(n, size, window=window, key=(seed,)))


def test_wrong_words_and_sizes_name_the_right_ones():
    for more, match in (
        ({"remainder": "dropp"}, "'drop'"),
        ({"pad_to": "max"}, "pad_to"),
        ({"boundaries": [8, 8]}, "must rise"),
        ({"sizes": [1]}, "1 sizes for 2 boundaries"),
        ({"run": 0}, "at least 1"),
    ):
        with pytest.raises(ConfigError, match=match):
            batch.bucket(**{"lengths": [1], "boundaries": [4, 8], "sizes": [1, 1], **more})
    with pytest.raises(InputError, match="sample 1 has 90 tokens"):
        batch.token_budget([3, 90], 80)
