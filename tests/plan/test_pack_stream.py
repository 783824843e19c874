"""Packers of single documents: rows, states, and equality with the plan of a whole list."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg.core.errors import ConfigError, InputError, StateError, ThalwegError
from thalweg.plan import pack
from thalweg.plan.pack_fill import take_fill
from thalweg.plan.pack_stream import WindowPacker, packer

POLICIES = ("fill", "next_fit", "window_1", "window_3", "window_100", "concat_split")
K30 = [6, 3, 4, 5, 1, 10, 2, 9]


def keys(rows):
    return [row.keys for row in rows]


def whole(policy, lengths, capacity, **more):
    p = packer(policy, capacity, **more)
    return p.extend(lengths, range(len(lengths))) + p.flush()


lists = st.lists(st.integers(1, 24), max_size=250)


# C20 C23
@given(lists, st.sampled_from(POLICIES), st.sampled_from([None, 2]))
@settings(max_examples=200, deadline=None)
def test_every_document_is_in_one_row_that_is_never_too_long(lengths, policy, max_docs):
    rows = whole(policy, lengths, 24, max_docs=max_docs)
    assert sorted(k for r in rows for k in r.keys) == sorted(set(range(len(lengths)))) or policy == "concat_split"
    for row in rows:
        sizes = [b - a for a, b in row.pieces] if row.pieces else [lengths[k] for k in row.keys]
        assert sum(sizes) + row.free == 24
        assert row.free >= 0
        assert row.keys
        assert max_docs is None or len(row.keys) <= max_docs
    assert sum(24 - r.free for r in rows) == sum(lengths)


# K30
@given(lists, st.sampled_from(POLICIES), st.sampled_from([1, 2, 4]), st.data())
@settings(max_examples=200, deadline=None)
def test_a_packer_restored_anywhere_gives_the_same_rows(lengths, policy, align, data):
    align = 1 if policy == "concat_split" else align
    want = whole(policy, lengths, 24, align=align)
    at = data.draw(st.integers(0, len(lengths)))
    first = packer(policy, 24, align=align)
    before = first.extend(lengths[:at], range(at))
    state = json.loads(json.dumps(first.state()))
    assert state["pushed"] == at  # counts documents, not rows
    second = packer(policy, 24, align=align)
    second.restore(state)
    assert second.state() == state
    after = [row for i in range(at, len(lengths)) for row in second.push(lengths[i], i)]
    assert before + after + second.flush() == want
    assert second.flush() == []  # the last rows come once


# K30
@pytest.mark.parametrize("at", range(len(K30) + 1))
def test_the_document_in_the_hand_of_the_packer_is_not_lost(at):
    want = [[0, 1], [2, 3, 4], [5], [6], [7]]
    assert keys(whole("next_fit", K30, 10)) == want
    first = packer("next_fit", 10)
    rows = first.extend(K30[:at], range(at))
    second = packer("next_fit", 10)
    second.restore(first.state())
    assert keys(rows + second.extend(K30[at:], range(at, 8)) + second.flush()) == want


# K30
def test_rows_that_wait_when_the_source_ends_all_come_out_once():
    p = packer("fill", 10)
    assert p.extend([5] * 40, range(40)) == []  # fewer than its window
    assert keys(p.flush()) == [[2 * i, 2 * i + 1] for i in range(20)]
    assert p.flush() == []
    assert p.state()["keys"] == []


# K30
def test_a_packer_that_chooses_nothing_raises():
    p = WindowPacker(10, take=lambda lengths, keys: ([], 10))
    with pytest.raises(ThalwegError, match="chose nothing from 64 waiting documents"):
        p.extend([5] * 64, range(64))
    p = WindowPacker(10, take=lambda lengths, keys: ([], 10))
    p.extend([5] * 3, range(3))
    with pytest.raises(ThalwegError, match="chose nothing from 3"):
        p.flush()


# C24
@given(st.lists(st.integers(1, 24), min_size=200, max_size=400), st.sampled_from(["fill", "window_20", "next_fit"]))
@settings(max_examples=50, deadline=None)
def test_what_waits_is_bounded_whatever_comes(lengths, policy):
    p = packer(policy, 24)
    for i, n in enumerate(lengths):
        p.push(n, i)
        state = p.state()
        assert len(state["keys"]) <= 64
        assert sum(state["open_lengths"]) <= 24


@given(lists, st.sampled_from(["fill", "window_7"]), st.sampled_from([1, 2]))
@settings(max_examples=100, deadline=None)
def test_the_plan_of_a_list_has_the_rows_of_the_stream(lengths, policy, align):
    rows = pack.plan(np.array(lengths, np.int64), 24, policy=policy, align=align).rows
    assert [r.tolist() for r in rows] == keys(whole(policy, lengths, 24, align=align))


def best_subset(lengths, room):
    """Oracle: all amounts that subsets of `lengths` reach, at most `room`."""
    sums = {0}
    for n in lengths:
        sums |= {s + n for s in sums if s + n <= room}
    return max(sums)


@given(st.lists(st.integers(1, 24), min_size=1, max_size=30))
@settings(max_examples=300, deadline=None)
def test_fill_takes_the_oldest_and_leaves_the_least_room(lengths):
    waiting, names = list(lengths), list(range(len(lengths)))
    row, free = take_fill(waiting, names, 24)
    assert row == sorted(row)
    assert row[0] == 0
    assert sum(lengths[k] for k in row) == 24 - free
    assert names == [k for k in range(len(lengths)) if k not in row]
    assert waiting == [lengths[k] for k in names]
    head = 1  # documents taken in order while at least a quarter of the row stays free
    while head < len(lengths) and sum(lengths[: head + 1]) <= 24 - 6:
        head += 1
    room = 24 - sum(lengths[:head])
    assert free == room - best_subset(lengths[head:], room)


# C36
@pytest.mark.parametrize(
    ("mean", "capacity"), [(299, 4096), (299, 32768), ("media", 8192)], ids=["chat", "long rows", "media"]
)
def test_fill_is_better_than_closing_rows_greedily_and_nearly_perfect(mean, capacity):
    rng = np.random.default_rng(0)
    if mean == "media":
        lengths = np.where(rng.random(40_000) < 0.8, rng.integers(50, 401, 40_000), rng.integers(1500, 6001, 40_000))
    else:
        lengths = np.clip(rng.lognormal(np.log(mean) - 0.5, 1.0, 120_000), 1, 4096).astype(np.int64)
    bound = pack.lower_bound(int(lengths.sum()), capacity)
    rows = {p: len(pack.plan(lengths, capacity, policy=p).rows) for p in ("fill", "next_fit", "window_100", "best_fit")}
    assert bound <= rows["fill"] <= bound * 1.0005 + 1
    assert rows["best_fit"] <= bound * 1.0003 + 1
    assert rows["window_100"] <= bound * 1.003 + 1
    assert rows["fill"] < rows["next_fit"]


def test_auto_keeps_the_fewer_rows_and_says_which_policy_made_them():
    rng = np.random.default_rng(0)
    for lengths in (rng.integers(2000, 8193, 3000), rng.integers(50, 400, 3000)):
        got = {p: pack.plan(lengths, 8192, policy=p) for p in ("auto", "fill", "best_fit")}
        fewest = min(len(got["fill"].rows), len(got["best_fit"].rows))
        assert len(got["auto"].rows) == fewest
        assert len(got[got["auto"].policy].rows) == fewest
    assert pack.plan(rng.integers(2000, 8193, 3000), 8192, policy="auto").policy == "best_fit"


# C35 C12
def test_a_window_takes_the_longest_that_fits_and_may_be_longer_than_the_data():
    lengths = [2, 9, 3, 8, 1, 7, 10]
    assert keys(whole("window_4", lengths, 10)) == [[0, 3], [1, 4], [2, 5], [6]]
    assert keys(whole("window_1000", [4, 5], 10)) == [[0, 1]]
    assert keys(whole("window_1", lengths, 10)) == keys(whole("next_fit", lengths, 10))


@given(
    st.lists(st.integers(1, 24), min_size=1, max_size=300), st.integers(1, 100), st.sampled_from(["best_fit", "fill"])
)
@settings(max_examples=100, deadline=None)
def test_a_plan_in_blocks_costs_less_than_a_row_a_block(lengths, block, policy):
    sizes = np.array(lengths, np.int64)
    parts = list(pack.plan_blocks(sizes, 24, block=block, policy=policy))
    order = np.concatenate([p.rows.order for p in parts])
    assert np.array_equal(np.sort(order), np.arange(len(sizes)))
    for i, p in enumerate(parts):
        inside = sizes[i * block : (i + 1) * block]
        alone = pack.plan(inside, 24, policy=policy).rows
        assert len(alone) == len(p.rows)
        assert (p.rows.tokens(sizes) <= 24).all()


@pytest.mark.parametrize("policy", ["best_fit", "fill"])
def test_a_plan_in_blocks_of_real_lengths_needs_at_most_a_row_a_block_more(policy):
    lengths = np.clip(np.random.default_rng(1).lognormal(np.log(299) - 0.5, 1.0, 60_000), 1, 4096).astype(np.int64)
    in_blocks = sum(len(p.rows) for p in pack.plan_blocks(lengths, 4096, block=8192, policy=policy))
    assert in_blocks <= len(pack.plan(lengths, 4096, policy=policy).rows) + 8


def test_refusals_name_what_would_work():
    with pytest.raises(ConfigError, match="first_fit keeps every row open"):
        packer("first_fit", 10)
    with pytest.raises(ConfigError, match="next_fit"):
        packer("nextfit", 10)
    with pytest.raises(ConfigError, match="window_100"):
        packer("window_x", 10)
    with pytest.raises(ConfigError, match="window_100"):
        pack.plan([1], 10, policy="window_0")
    for policy in ("fill", "next_fit", "window_3"):
        with pytest.raises(InputError, match="document 7 has 11 tokens"):
            packer(policy, 10).push(11, 7)
    with pytest.raises(InputError, match="document 7 has 0 tokens"):
        packer("concat_split", 10).push(0, 7)
    with pytest.raises(ConfigError, match="capacity 12"):
        packer("fill", 12).restore(packer("fill", 10).state())
    with pytest.raises(StateError):
        packer("fill", 10).restore({"kind": "window", "version": 1})
