"""Balance: no row added or lost, runs of equal cost, and the least loaded rank first."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg.core.errors import ConfigError
from thalweg.plan import balance, pack


def slow_order(costs, before, window, run, runs):
    """Oracle: the rules of the windows, row by row; `runs` gives the order of runs of a window."""
    rows = list(range(len(costs)))
    head = min(-before % run, len(rows))
    out, i, w = rows[:head], head, 0
    while len(rows) - i >= run:
        size = min(window, len(rows) - i) // run * run
        part = sorted(rows[i : i + size], key=lambda r: (costs[r], r))
        for j in runs(w, size // run):
            out += part[j * run : (j + 1) * run]
        i, w = i + size, w + 1
    return out + rows[i:]


@given(
    st.lists(st.integers(0, 20), max_size=80),
    st.integers(0, 30),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(0, 9),
)
@settings(max_examples=200, deadline=None)
def test_rows_of_a_block_are_permuted_in_windows_that_end_with_the_runs(costs, before, run, runs, seed):
    got = balance.order_rows(costs, before, run * runs, run, seed, "epoch", 3)
    want = slow_order(costs, before, run * runs, run, lambda w, n: balance.spread(n, "balance", w, seed, "epoch", 3))
    assert got.tolist() == want
    assert sorted(got) == list(range(len(costs)))


def test_order_depends_on_the_key_alone():
    costs = np.random.default_rng(0).random(100)
    a, b, c = (balance.order_rows(costs, 0, 20, 4, seed).tolist() for seed in (1, 1, 2))
    assert a == b != c


@given(st.integers(1, 6), st.integers(1, 3), st.integers(1, 3), st.integers(0, 99))
@settings(max_examples=150, deadline=None)
def test_a_step_is_dealt_longest_first_to_the_least_loaded_rank_with_a_free_place(world, micro, accumulation, seed):
    costs = np.random.default_rng(seed).integers(0, 5, world * micro * accumulation)
    got = balance.deal(costs, world, micro, accumulation)
    load = [0] * world
    for m in range(accumulation):
        part = range(m * world * micro, (m + 1) * world * micro)
        places = [[] for _ in range(world)]
        for i in sorted(part, key=lambda i: (-costs[i], i)):
            w = min((w for w in range(world) if len(places[w]) < micro), key=lambda w: (load[w], w))
            places[w].append(i)
            load[w] += costs[i]
        assert got[m].tolist() == places
    assert np.array_equal(np.sort(got, axis=None), np.arange(len(costs)))
    assert balance.straggler(costs, got) == pytest.approx(max(load) / np.mean(load) if sum(load) else 1.0)


def test_balanced_steps_have_no_straggler_at_long_context():
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(np.log(4000) - 1.5**2 / 2, 1.5, 120_000), 1, 131_072).astype(np.int64)
    made = pack.plan(lengths, 131_072).rows
    rows = made.take(rng.permutation(len(made)))
    cost = balance.Cost(24576, 1).rows(rows.piece_lengths(lengths), rows.offsets)
    in_order = balance.stragglers(cost, 64).mean()
    balanced = balance.stragglers(cost[balance.order_rows(cost, 0, balance.WINDOW_RUNS * 64, 64, 0)], 64).mean()
    assert in_order > 2
    assert balanced <= 1.06


def test_the_cost_of_a_row_is_the_sum_over_its_documents():
    cost = balance.Cost(2, 1)
    assert cost.rows([3, 1, 4], np.array([0, 2, 2, 3])).tolist() == [2 * 4 + 9 + 1, 0, 8 + 16]
    assert balance.Cost().rows([3, 1, 4], np.array([0, 2, 3])).tolist() == [4, 4]


def test_coefficients_come_from_a_models_configuration():
    config = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    got = balance.Cost.of_model({**config, "intermediate_size": 128, "vocab_size": 1000})
    per_layer = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128
    assert got.a == 2 * (2 * per_layer + 64 * 1000)
    assert got.b == 2 * 64 * 2
    experts = balance.Cost.of_model({**config, "num_experts_per_tok": 2, "moe_intermediate_size": 32})
    assert experts.a == 2 * 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 64)
    with pytest.raises(ConfigError, match="num_hidden_layers"):
        balance.Cost.of_model({"hidden_size": 1})


def test_a_window_that_cuts_runs_is_refused():
    for window, run in ((10, 4), (2, 4), (4, 0)):
        with pytest.raises(ConfigError, match="multiple"):
            balance.order_rows([1.0], 0, window, run)


@given(st.integers(0, 300), st.integers(0, 50))
@settings(deadline=None)
def test_any_stretch_of_a_spread_order_covers_the_whole_range(n, seed):
    got = balance.spread(n, seed)
    assert np.array_equal(np.sort(got), np.arange(n))
    for size in (8, 21, 55):
        for a in range(0, n - size, 3):
            below = (got[a : a + size] < n / 2).sum()
            assert abs(below - size / 2) <= 2 + np.log2(size) / 2


def test_balance_does_not_sort_a_mix_by_source():
    """Shares of two sources of unlike length stay near their weights in any stretch, whatever the window."""
    rng = np.random.default_rng(0)
    which = rng.integers(0, 2, 6400)
    costs = np.where(which == 1, 100.0, 1.0) + rng.random(6400)
    for window in (16 * 4, 16 * 32, 16 * 128):
        ordered = which[balance.order_rows(costs, 0, window, 16, 7)]
        total = np.append(0, np.cumsum(ordered))
        share = (total[2400:] - total[:-2400]) / 2400
        assert np.abs(share - which.mean()).max() < 0.04  # 4 standard errors
