"""Balance, buckets and token budgets in a feed: equal work and equal shapes on all ranks, one order on any layout."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import thalweg as tw
from thalweg.core.errors import ConfigError, StateError
from thalweg.feed.even import BalanceWarning
from thalweg.testing import Leg, assert_continues_anywhere

pytestmark = pytest.mark.filterwarnings("ignore:balance. steps of")  # of other layouts than the first


def source(lengths):
    rows = [{"input_ids": np.full(n, i % 90 + 1, np.int32), "id": str(i)} for i, n in enumerate(lengths)]
    return tw.from_dataset(rows, id="id", fingerprint=f"even:{list(lengths)}")


def loader(feed, topology=None, accumulation=1, **more):
    topology = topology or tw.Topology()
    return tw.Loader(feed, topology=topology, gradient_accumulation_steps=accumulation, return_tensors="np", **more)


def spread(n=600, seed=0):
    return np.clip(np.random.default_rng(seed).lognormal(3, 1.2, n), 1, 400).astype(int).tolist()


def legs():
    layout = st.builds(Leg, st.integers(1, 3), st.integers(1, 3), st.integers(1, 2))
    return st.lists(layout, min_size=2, max_size=4)


@given(st.lists(st.integers(1, 20), min_size=12, max_size=60), st.integers(1, 3), st.integers(1, 3), legs())
@settings(max_examples=60, deadline=None)
def test_any_layout_continues_a_balanced_order(lengths, run, runs, layouts):
    feed = source(lengths).shuffle().pack(20).balance(a=1, b=0.1, window=run * runs, run=run).batch(1)
    assert_continues_anywhere(lambda t, a: loader(feed, t, a, epochs=None), layouts)


# C41
def test_ranks_of_a_step_have_about_equal_work_and_the_factor_is_reported():
    feed = source(spread(4000)).shuffle().pack(400)
    factors = {}
    for name, even in (("in order", feed), ("balanced", feed.balance(a=0, b=1))):
        loads = []
        ranks = [iter(loader(even.batch(1), tw.Topology(r, 8))) for r in range(8)]
        for step in zip(*ranks, strict=True):
            loads.append([int((np.diff(b["cu_seq_lens_q"]).astype(np.int64) ** 2).sum()) for b in step])
        factors[name] = np.mean([max(x) / np.mean(x) for x in loads])
    assert factors["balanced"] < 1.2
    assert factors["in order"] > 1.5
    one = loader(feed.balance(a=0, b=1).batch(1), tw.Topology(3, 8))
    rows = [r for b in one for r in b.info.ids]
    assert one.stats()["straggler"] == pytest.approx(factors["balanced"], abs=0.1)
    assert one.stats()["run"] == 8
    assert len(rows) == len(set(map(tuple, rows)))


# C41
def test_each_step_tells_its_straggler_factor_on_every_rank_and_the_stats_tell_the_last():
    feed = source(spread(1500)).shuffle().pack(400).balance(a=0, b=1).batch(1)
    ranks = [loader(feed, tw.Topology(r, 4), 2) for r in range(4)]
    factors = []
    for step in zip(*ranks, strict=True):
        work = [int((np.diff(b["cu_seq_lens_q"]).astype(np.int64) ** 2).sum()) for b in step]
        if step[0].info.micro == 0:
            loads = np.zeros(4)
        padding = [(b["input_ids"].size - b.info.num_tokens) ** 2 for b in step]  # a segment of its own, not counted
        loads += np.subtract(work, padding)
        assert len({b.info.straggler for b in step}) == 1
        if step[0].info.last:
            factors.append(loads.max() / loads.mean())
            assert step[0].info.straggler == pytest.approx(factors[-1])
            assert ranks[3].stats()["straggler_step"] == step[0].info.straggler
    assert ranks[0].stats()["straggler"] == pytest.approx(np.mean(factors))
    assert ranks[0].stats()["straggler_worst"] == pytest.approx(max(factors))
    plain = loader(source(spread()).pack(400).batch(1))
    assert next(iter(plain)).info.straggler is None
    assert "straggler_step" not in plain.stats()


def test_balance_adds_and_loses_no_row():
    feed = source(spread()).shuffle().pack(400)
    plain = sorted(tuple(r) for b in loader(feed.batch(1)) for r in b.info.ids)
    even = sorted(tuple(r) for b in loader(feed.balance(b=1).batch(1)) for r in b.info.ids)
    assert plain == even


def test_run_and_window_are_fixed_at_the_first_start():
    feed = source(spread()).shuffle().pack(400)
    first = loader(feed.balance().batch(2), tw.Topology(0, 2), 2)
    next(iter(first))
    state = json.loads(json.dumps(first.state_dict()))
    other = loader(feed.balance().batch(2), tw.Topology(0, 4))
    other.load_state_dict(state)
    assert other.stats()["run"] == 8  # of the first global batch
    third = loader(feed.balance().batch(2), tw.Topology(0, 3))
    with pytest.warns(BalanceWarning, match="steps of 6 rows do not divide runs of 8"):
        third.load_state_dict(state)
    with pytest.raises(StateError, match="run=8"):
        loader(feed.balance(run=4, window=8).batch(2)).load_state_dict(state)


BOUNDARIES, SIZES = [8, 16, 64], [8, 4, 2, 1]


# E20 E21 E42
@given(st.lists(st.integers(1, 80), min_size=4, max_size=80), st.sampled_from(["pad", "keep", "up"]), legs())
@settings(max_examples=60, deadline=None)
def test_any_layout_continues_the_same_batches_of_buckets(lengths, remainder, layouts):
    feed = source(lengths).shuffle().bucket(BOUNDARIES, SIZES, remainder=remainder)
    assert_batches_continue(feed, layouts)
    got = [i for b in loader(feed, tail="pad") for r in b.info.ids for i in r]
    assert sorted(got, key=int) == [str(i) for i in range(len(lengths))]


# E21
@given(st.lists(st.integers(1, 80), min_size=4, max_size=80), legs())
@settings(max_examples=40, deadline=None)
def test_any_layout_continues_the_same_batches_of_a_budget(lengths, layouts):
    feed = source(lengths).shuffle().token_budget(100)
    assert_batches_continue(feed, layouts)
    for batch in loader(feed, tail="pad"):
        assert batch["input_ids"].size <= 100


def assert_batches_continue(feed, layouts):
    """The unit of the order is the batch: legs on any ranks read the batches that one rank reads."""

    def batches(items):
        return [frozenset(i for r in b.info.ids for i in r) for b in items]

    runs, state, got = 6, None, []
    first = loader(feed, epochs=None)
    first.load_state_dict({**first.state_dict(), "run": str(runs), "window": str(32 * runs)})
    want = iter(first)
    for leg in layouts:
        ranks = [loader(feed, tw.Topology(r, leg.world), leg.accumulation, epochs=None) for r in range(leg.world)]
        for r in ranks:
            r.load_state_dict(state or {**r.state_dict(), "run": str(runs), "window": str(32 * runs)})
        its = [iter(r) for r in ranks]
        for _ in range(leg.steps):
            for _ in range(leg.accumulation):
                step = [next(i) for i in its]
                assert len({b["input_ids"].shape for b in step}) == 1  # all ranks of a step have one shape
                got += batches(step)
        states = {json.dumps(r.state_dict()) for r in ranks}
        assert len(states) == 1
        state = json.loads(states.pop())
    assert got == batches(next(want) for _ in got)


# E19 E49 C40
def test_buckets_save_padding_and_have_few_shapes():
    lengths = spread(3000)
    feed = source(lengths).shuffle().bucket([16, 64, 128, 400], [32, 16, 8, 4, 1], pad_to="boundary")
    ranks = [list(loader(feed, tw.Topology(r, 4))) for r in range(4)]
    shapes = {b["input_ids"].shape for rank in ranks for b in rank}
    assert shapes <= {
        (32, 16),
        (16, 64),
        (8, 128),
        (4, 400),
        (32, 64),
        (16, 128),
        (8, 400),
        (32, 128),
        (32, 400),
        (16, 400),
    }
    computed = sum(b["input_ids"].size for rank in ranks for b in rank)
    samples = sum(int(b.info.weight.sum()) for rank in ranks for b in rank)
    assert computed < 0.6 * samples * 400  # against padding to the longest
    for step in zip(*ranks, strict=True):
        assert len({b["input_ids"].shape for b in step}) == 1


def test_a_padded_batch_has_weight_zero_on_its_filler():
    feed = source([3, 3, 3, 12]).shuffle(seed=0).bucket([8, 16], [2, 2, 2])
    made = list(loader(feed, tail="pad"))
    assert sorted(float(b.info.weight.sum()) for b in made) == [1.0, 1.0, 2.0]
    assert all(b["input_ids"].shape[0] == 2 for b in made)
    assert all(int((b["labels"] != -100).sum()) == b.info.num_label_tokens == b.info.step_label_tokens for b in made)


# C30 E19
def test_grouping_by_length_saves_padding_and_continues_anywhere():
    lengths = spread(2000)
    plain = source(lengths).shuffle()
    shares = {}
    for name, feed in (("in order", plain), ("grouped", plain.group_by_length())):
        ranks = [list(loader(feed.batch(8), tw.Topology(r, 2))) for r in range(2)]
        computed = sum(b["input_ids"].size for rank in ranks for b in rank)
        shares[name] = 1 - sum(b.info.num_tokens for rank in ranks for b in rank) / computed
        ids = [i for rank in ranks for b in rank for r in b.info.ids for i in r]
        assert len(ids) == len(set(ids)) == 2000
    assert shares["grouped"] < 0.2
    assert shares["in order"] > 0.5
    feed = plain.balance("tokens", window=64, run=8).batch(2)
    assert_continues_anywhere(lambda t, a: loader(feed, t, a, epochs=None), [Leg(5, 2, 2), Leg(7, 3), Leg(4, 1, 4)])


# C21 C23 E49 C40
@given(st.lists(st.integers(1, 64), min_size=8, max_size=80), st.sampled_from([1, 4]), st.booleans(), legs())
@settings(max_examples=60, deadline=None)
def test_rows_of_several_lengths_have_one_shape_a_step_and_continue_on_any_layout(lengths, align, balanced, layouts):
    capacities = (16, 32, 64)
    feed = source(lengths).shuffle().pack(capacities, align=align)
    feed = (feed.balance(a=1, b=0.1) if balanced else feed).batch(2)
    assert_continues_anywhere(lambda t, a: loader(feed, t, a, epochs=None), layouts)
    ranks = [list(loader(feed, tw.Topology(r, 3), tail="pad")) for r in range(3)]
    seen = []
    for step in zip(*ranks, strict=True):
        assert len({b["input_ids"].shape for b in step}) == 1
        assert step[0]["input_ids"].shape in {(2, c) for c in capacities}
        seen += [i for b in step for row in b.info.ids for i in row]
        for b in step:
            assert np.diff(b["cu_seq_lens_q"]).sum() == b["input_ids"].size
    assert sorted(seen, key=int) == [str(i) for i in range(len(lengths))]


def test_several_row_lengths_compute_on_less_padding_than_one():
    lengths = [int(n) for n in np.random.default_rng(0).choice([700, 90, 60], 400, p=[0.1, 0.5, 0.4])]

    def computed(capacity):
        feed = source(lengths).shuffle().pack(capacity, max_docs=4).batch(1)
        return sum(b["input_ids"].size for r in range(4) for b in loader(feed, tw.Topology(r, 4), tail="pad"))

    assert computed((256, 1024)) < 0.8 * computed(1024)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"capacity": (64, 32), "policy": "fill"}, "best_fit only"),
        ({"capacity": (64, 30), "align": 4}, "rows of 28"),
        ({"capacity": ()}, "needs a length"),
        ({"capacity": (64, 0)}, "at least 1"),
    ],
)
def test_row_lengths_that_can_not_be_planned_are_refused_when_the_feed_is_built(words, said):
    with pytest.raises(ConfigError, match=said):
        source([3]).pack(**words)


def test_several_row_lengths_on_a_stream_are_refused():
    with pytest.raises(ConfigError, match=r"one shape.*cache"):
        source([3]).map(lambda s: s).pack((32, 64), overlong="drop")


def test_buckets_without_a_size_for_longer_samples_are_refused_with_the_number_of_sizes():
    with pytest.raises(ConfigError, match=r"4 boundaries make 5 buckets, and there are 4 sizes.*Try: 5 sizes"):
        source([3]).bucket([128, 256, 512, 1024], [32, 16, 8, 4])
    with pytest.raises(ConfigError, match=r"do not rise.*Try: \.bucket\(\[8, 16\]"):
        source([3]).bucket([16, 8], [4, 2, 1])


def test_the_tail_of_a_state_is_compared_where_it_decides_the_order():
    feed = source([3, 9, 14] * 9).shuffle().bucket([8], [2, 2])
    state = loader(feed, tail="carry").state_dict()
    with pytest.raises(StateError, match="carry"):
        loader(feed, tail="pad").load_state_dict(state)
