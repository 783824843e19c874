"""Rows of the map-style dataset: first fit, windows, every sample once, none too long, fuller than filling in turn."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as hs

from thalweg.bind.lmms.naive import packs
from thalweg.plan import pack


# C12 C21 C23 C34 C35
@settings(max_examples=40, deadline=None)
@given(hs.lists(hs.integers(1, 100), min_size=1, max_size=80), hs.integers(1, 30), hs.integers(0, 5))
def test_both_strategies_cover_every_sample_once_and_never_overfill_a_row(lengths, window, seed):
    sizes = np.array(lengths, np.int32)
    order = np.random.default_rng(seed).permutation(len(sizes))
    for w in (None, window):
        rows = packs(sizes, order, 100, w, seed)
        assert sorted(int(i) for row in rows for i in row) == list(range(len(sizes)))
        assert all(sizes[row].sum() <= 100 for row in rows)
    open_rows: list[int] = []  # first fit, by hand
    for i in order.tolist():
        at = next((k for k, used in enumerate(open_rows) if used + sizes[i] <= 100), None)
        if at is None:
            open_rows.append(int(sizes[i]))
        else:
            open_rows[at] += int(sizes[i])
    assert [int(sizes[row].sum()) for row in packs(sizes, order, 100, None, seed)] == open_rows
    ranked = np.sort(sizes)[::-1]
    groups = [set(ranked[a : a + window].tolist()) for a in range(0, len(ranked), window)]
    for row in packs(sizes, order, 100, window, seed):  # a row holds samples of one window of the sorted list
        assert any(set(sizes[row].tolist()) <= g for g in groups)


# C34
def test_first_fit_is_first_fit_and_not_next_fit():
    assert [r.tolist() for r in packs(np.array([3000, 3000, 1000, 1000]), np.arange(4), 4096, None, 0)] == [
        [0, 2],
        [1, 3],
    ]


# C35
def test_windows_keep_some_randomness_by_the_seed_and_never_reach_into_each_other():
    sizes = np.arange(1, 101, dtype=np.int32)
    rows = {seed: [r.tolist() for r in packs(sizes, np.arange(100), 100, 10, seed)] for seed in (1, 2)}
    assert rows[1] == [r.tolist() for r in packs(sizes, np.arange(100), 100, 10, 1)]
    assert rows[1] != rows[2]
    assert sorted(rows[1]) == sorted(rows[2])  # the same rows in another order
    longest = [max(r) for r in rows[1]]
    assert longest != sorted(longest, reverse=True)
    assert all(len({i // 10 for i in row}) == 1 for row in rows[1])


# C36
def test_rows_packed_ahead_hold_more_than_rows_filled_in_turn_and_those_more_than_samples_alone():
    rng = np.random.default_rng(0)
    sizes = np.clip(rng.lognormal(6, 1, 4000), 8, 4096).astype(np.int32)
    order = rng.permutation(len(sizes))
    filled = {
        "alone": len(sizes),
        "in turn": len(pack.next_fit(sizes[order], 4096)),  # as the streaming dataset does
        "first fit": len(packs(sizes, order, 4096, None, 0)),
        "window": len(packs(sizes, order, 4096, 1000, 0)),
    }
    used = {name: sizes.sum() / (4096 * rows) for name, rows in filled.items()}
    assert used["alone"] < used["in turn"] < used["first fit"]
    assert used["in turn"] + 0.1 < used["window"]
    assert used["first fit"] > 0.95
