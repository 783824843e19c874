"""The keyed permutation: a bijection of any size, its inverse, and no order left in it."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg.plan.shuffle import CHUNK, TABLE, WINDOW, LocalPermutation, Permutation


@settings(deadline=None)
@given(st.integers(0, 3 * TABLE), st.integers(0, 5))
def test_every_value_comes_once_and_the_inverse_finds_it(n, key):  # E12 E44
    order = Permutation(n, "shuffle", key)
    values = order(np.arange(n))
    assert np.array_equal(np.sort(values), np.arange(n))
    assert np.array_equal(order.inverse(values), np.arange(n))


@settings(deadline=None)
@given(st.integers(1, 1 << 59), st.lists(st.integers(0, (1 << 59) - 1), min_size=1, max_size=50))
def test_position_to_value_to_position_is_the_identity_at_any_size(n, places):
    places = np.array([p % n for p in places])
    order = Permutation(n, "far")
    values = order(places)
    assert (values >= 0).all()
    assert (values < n).all()
    assert np.array_equal(order.inverse(values), places)


def test_chunks_and_shapes_do_not_matter():
    order = Permutation(10**7, 3)
    places = np.arange(CHUNK * 2 + 5)
    whole = order(places)
    assert np.array_equal(whole, np.concatenate([order(places[:7]), order(places[7:])]))
    assert np.array_equal(order(places[:6].reshape(2, 3)), whole[:6].reshape(2, 3))
    assert int(order(12345)) == int(whole[12345])


def test_epochs_differ_and_a_key_repeats():  # E14 C18
    a, b = Permutation(50_000, 0, "s", 0), Permutation(50_000, 0, "s", 1)
    places = np.arange(50_000)
    assert np.array_equal(a(places), Permutation(50_000, 0, "s", 0)(places))
    assert np.mean(a(places) == b(places)) < 0.001


def test_no_order_is_left():
    n = 1 << 20
    for key in range(3):
        values = Permutation(n, "quality", key)(np.arange(n))
        assert abs(np.abs(np.diff(values)).mean() / n - 1 / 3) < 0.002
        for lag in (1, 2, 64):
            assert abs(np.corrcoef(values[:-lag], values[lag:])[0, 1]) < 5 / n**0.5
        grid = np.bincount(values[:-1] * 20 // n * 20 + values[1:] * 20 // n, minlength=400)
        assert ((grid - grid.mean()) ** 2 / grid.mean()).sum() / 399 < 1.4  # chi-squared of neighbouring pairs


@settings(deadline=None)
@given(st.integers(0, 5000), st.integers(1, 300), st.integers(0, 3))
def test_a_local_permutation_is_one_too_and_neighbours_stay_near(n, block, key):
    order = LocalPermutation(n, block, "near", key)
    values = order(np.arange(n))
    assert np.array_equal(np.sort(values), np.arange(n))
    assert np.array_equal(order.inverse(values), np.arange(n))
    span = WINDOW * block
    for start in range(0, n, span):  # a window reads its own blocks, each whole
        blocks = np.unique(values[start : start + span] // block)
        assert len(blocks) <= WINDOW + 1
    assert 0 < order.randomness <= 1
