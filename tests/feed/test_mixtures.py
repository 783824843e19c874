"""Mixtures in a feed: realised shares after packing and balance, many sources, curricula, and everything together."""

import json
import warnings
from collections import Counter
from itertools import islice
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import thalweg as tw
from thalweg.core.errors import ConfigError
from thalweg.feed.compile import compile_feed
from thalweg.feed.even import BalanceWarning, balanced_order
from thalweg.feed.feed import Feed
from thalweg.feed.stages import From
from thalweg.testing import Leg, assert_continues_anywhere

pytestmark = pytest.mark.filterwarnings("ignore:balance. steps of")  # of other layouts than the first


class Lengths:
    """A source of which only the lengths are looked at."""

    columns = ("input_ids",)
    lineage: ClassVar = {}

    def __init__(self, lengths):
        self.lengths = np.asarray(lengths, np.int32)
        self.facts, self.fingerprint = {"length": self.lengths}, f"lengths {self.lengths.sum()} {len(lengths)}"

    def __len__(self):
        return len(self.lengths)


def only_lengths(seed, n, mean):
    rng = np.random.default_rng(seed)
    return Feed((From(Lengths(np.clip(rng.gamma(2, mean / 2, n), 1, 4096).astype(int)), f"{seed}"),))


def source(name, lengths):
    rows = [{"input_ids": np.full(n, i % 90 + 1, np.int32), "id": f"{name}{i}"} for i, n in enumerate(lengths)]
    return tw.from_dataset(rows, id="id", fingerprint=f"mix:{name}:{lengths}")


def loader(feed, topology=None, accumulation=1, **more):
    topology = topology or tw.Topology()
    return tw.Loader(feed, topology=topology, gradient_accumulation_steps=accumulation, return_tensors="np", **more)


def by_tokens(weights=(1, 1), **more):
    parts = {"short": only_lengths(1, 400_000, 200), "long": only_lengths(2, 40_000, 2500)}
    return tw.mix(parts, weights=dict(zip(parts, weights, strict=True)), by="tokens", **more).shuffle()


def rows_of(order, epoch=0):
    """Give the tokens of the first source and all tokens of each row, in order."""
    first, total = [], []
    for b in range(order.num_blocks(epoch)):
        block = order.block(epoch, b)
        mine = np.where(block.source == 0, block.lengths, 0)
        for values, out in ((mine, first), (block.lengths, total)):
            out.append(np.diff(np.append(0, np.cumsum(values))[block.offsets]))
    return np.concatenate(first), np.concatenate(total)


@pytest.mark.parametrize("run", [1, 4, 16])
@pytest.mark.parametrize("weights", [(1, 1), (1, 4)])
def test_shares_stay_within_three_standard_errors_in_any_ten_million_tokens_after_packing_and_balance(run, weights):
    compiled = compile_feed(by_tokens(weights).pack(4096).balance(a=24576, b=1).batch(1), 3)
    order = balanced_order(compiled, run=run, window=None, size=run, carry=False)
    assert order.window >= run * 32 or run * 4096 * 32 >= 1 << 21
    first, total = rows_of(order)
    want = weights[0] / sum(weights)
    rows = round(10e6 / total.mean())
    spans = len(total) // rows
    assert spans >= 6
    a = first[: spans * rows].reshape(spans, rows).sum(axis=1)
    t = total[: spans * rows].reshape(spans, rows).sum(axis=1)
    error = np.sqrt(rows) * (first - want * total).std() / (rows * total.mean())
    assert np.abs(a / t - want).max() < 3 * error
    straggler = order.costs(0, 0)[: 64 * 100].reshape(-1, 16)
    assert (straggler.max(axis=1) / straggler.mean(axis=1)).mean() < 1.06 or run < 16


def test_a_step_too_large_for_the_shares_stays_in_the_order_of_the_mix_and_says_so():
    compiled = compile_feed(by_tokens().pack(4096).balance(b=1).batch(1), 3)
    with pytest.warns(BalanceWarning, match=r"1.0 M tokens sorted by cost"):
        order = balanced_order(compiled, run=256, window=None, size=256, carry=False)
    assert order.window == 256
    plain = compiled.order.block(0, 0)
    assert sorted(order.block(0, 0).index.tolist()) == sorted(plain.index.tolist())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asked = balanced_order(
            compile_feed(by_tokens().pack(4096).balance(b=1, window=1024).batch(1), 3),
            run=256, window=None, size=256, carry=False,
        )  # fmt: skip
    assert asked.window == 1024


def test_blocks_of_a_balanced_feed_hold_a_hundred_runs():
    feed = Feed((From(Lengths(np.full(3_000_000, 300)), "a"),)).shuffle().pack(4096).balance(b=1).batch(1)
    compiled = compile_feed(feed, 0)
    order = balanced_order(compiled, run=1024, window=None, size=1024, carry=False)
    assert order.num_rows(0, 0) >= 100 * 1024


def test_the_shares_of_the_tokens_handed_over_are_in_the_stats():
    rng = np.random.default_rng(0)
    parts = {
        "web": source("w", rng.integers(1, 60, 900).tolist()),
        "code": source("c", rng.integers(20, 64, 500).tolist()),
    }
    feed = tw.mix(parts, weights={"web": 0.7, "code": 0.3}, by="tokens").shuffle().pack(64).batch(2)
    ranks = [loader(feed, tw.Topology(r, 2)) for r in range(2)]
    assert "proportions" not in ranks[0].stats()
    seen = Counter()
    for step in islice(zip(*ranks, strict=True), 60):
        for batch in step:
            for row in batch.info.sources:
                seen.update(row)
    told = ranks[0].stats()["proportions"]
    assert told == ranks[1].stats()["proportions"]
    assert told["web"] == pytest.approx(0.7, abs=0.08)
    assert sum(told.values()) == pytest.approx(1)
    assert set(seen) == {"web", "code"}
    assert f"shares so far: web {told['web']:.1%}, code {told['code']:.1%}" in str(ranks[0])


# K38
@given(st.integers(100, 400), st.integers(0, 5))
@settings(max_examples=10, deadline=None)
def test_hundreds_of_sources_of_one_row_each_come_once(n, seed):
    feed = tw.mix({f"s{i}": source(f"s{i}_", [3]) for i in range(n)}, on_exhausted="without_repeat").shuffle()
    ids = [i for b in loader(feed.batch(1), seed=seed) for row in b.info.ids for i in row]
    assert sorted(ids) == sorted(f"s{i}_0" for i in range(n))
    packed = [i for b in loader(feed.pack(16).batch(1), seed=seed) for row in b.info.ids for i in row]
    assert sorted(packed) == sorted(ids)


# K38 C33 E48
@pytest.mark.parametrize("workers", [0, 4])
def test_a_source_of_one_row_beside_one_of_a_hundred_on_four_ranks(workers):
    parts = {"one": source("a", [5]), "many": source("b", [4] * 100)}
    feed = tw.mix(parts, weights={"one": 1, "many": 100}, on_exhausted="stop_all").shuffle()
    feed = feed.map(lambda s: s, length="same", workers=workers, mode="threads").batch(1)
    ranks = [list(loader(feed, tw.Topology(r, 4), tail="pad", workers=workers)) for r in range(4)]
    assert len({len(r) for r in ranks}) == 1
    seen = Counter(i for r in ranks for b in r for row in b.info.ids for i in row)
    assert seen["a0"] >= 1
    assert sorted(k for k in seen if k[0] == "b") == sorted(f"b{i}" for i in range(100))
    assert all(n == 1 for k, n in seen.items() if k[0] == "b")


# K38
@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ({"a": -0.1, "b": 1.1}, "at least 0"),
        ({"a": 0, "b": 0}, "sum above 0"),
        ({"a": float("nan"), "b": 1}, "'a' is not a finite number"),
        ({"a": float("inf"), "b": 1}, "'a' is not a finite number"),
        ({"a": 1e-9, "b": 1}, "below one in a million"),
        ({"a": 1}, "'b' has no weight"),
        ({"a": 1, "b": 1, "c": 1}, "'c', which is no source"),
        ([(5, {"a": 1, "b": 1})], "rise from 0"),
        ([(0, {"a": 1, "b": 1}), (0, {"a": 2, "b": 1})], "rise from 0"),
    ],
)
def test_weights_that_mean_nothing_are_refused_by_name(weights, said):
    with pytest.raises(ConfigError, match=said):
        tw.mix({"a": source("a", [3]), "b": source("b", [4])}, weights=weights)


# K38
@pytest.mark.parametrize("position", [0, 1, 2])
def test_an_empty_source_is_refused_by_name_wherever_it_stands(position):
    names = ["x", "y", "z"]
    parts = {n: source(n, [] if i == position else [3, 4]) for i, n in enumerate(names)}
    with pytest.raises(ConfigError, match=f"'{names[position]}' has a weight and no sample"):
        list(loader(tw.mix(parts).shuffle().batch(1)))
    weights = {n: float(i != position) for i, n in enumerate(names)}
    made = list(loader(tw.mix(parts, weights=weights, on_exhausted="without_repeat").batch(1)))
    assert len(made) == 4


# K38
@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("rule", ["stop_first", "stop_all", "without_repeat"])
def test_no_row_comes_from_a_source_that_it_does_not_belong_to(rule, shuffled):
    parts = {"a": source("a", [2] * 3), "b": source("b", [2] * 4), "c": source("c", [2] * 3)}
    feed = tw.mix(parts, weights={"a": 0.5, "b": 0.3, "c": 0.2}, on_exhausted=rule)
    batches = list(loader((feed.shuffle() if shuffled else feed).batch(1)))
    pairs = [(i, s) for b in batches for ids, names in zip(b.info.ids, b.info.sources, strict=True) for i, s in
             zip(ids, names, strict=True)]  # fmt: skip
    assert all(i[0] == s for i, s in pairs)
    seen = Counter(i for i, _ in pairs)
    if rule == "without_repeat":
        assert sorted(seen.elements()) == sorted([*(f"a{i}" for i in range(3)), *(f"b{i}" for i in range(4)),
                                                  *(f"c{i}" for i in range(3))])  # fmt: skip
    elif rule == "stop_all":
        assert len(seen) == 10
    else:
        assert max(seen.values()) == 1


def legs():
    layout = st.builds(Leg, st.integers(1, 3), st.integers(1, 3), st.integers(1, 2))
    return st.lists(layout, min_size=2, max_size=4)


# C29 C31 K38
@given(
    st.lists(st.integers(1, 40), min_size=6, max_size=30),
    st.lists(st.integers(1, 40), min_size=6, max_size=30),
    st.sampled_from(["stop_first", "stop_all", "without_repeat"]),
    st.sampled_from(["drop", "truncate", "split"]),
    legs(),
)
@settings(max_examples=40, deadline=None)
def test_balance_tokens_schedule_split_and_carry_together_continue_on_any_layout(a, b, rule, overlong, layouts):
    weights = [(0, {"a": 3, "b": 1}), (150, {"a": 1, "b": 2})]
    parts = {"a": source("a", [*a, 2]), "b": source("b", [*b, 3])}
    mix = tw.mix(parts, weights=weights, by="tokens", at="tokens", on_exhausted=rule)
    feed = mix.shuffle().pack(32, overlong=overlong).balance(a=1, b=0.1).batch(1)
    assert_continues_anywhere(lambda t, n: loader(feed, t, n, epochs=None), layouts)  # epochs=None: carried
    if rule == "stop_all":
        return
    held = tw.mix({k: p.split({"train": 0.7, "val": 0.3})["train"] for k, p in parts.items()}, weights=weights)
    try:
        compile_feed(held.shuffle().pack(32, overlong=overlong), 0)
    except ConfigError:  # nothing of a source fell on this side
        return
    side = held.shuffle().pack(32, overlong=overlong).balance(a=1, b=0.1).batch(1)
    if compile_feed(side, 0).order.rows(0):
        assert_continues_anywhere(lambda t, n: loader(side, t, n, epochs=None), layouts[:2])


# K38 K30
def test_a_run_resumed_in_the_middle_of_a_mix_reads_the_same():
    parts = {"a": source("a", [3] * 40), "b": source("b", [5] * 25), "c": source("c", [7] * 9)}
    feed = tw.mix(parts, weights={"a": 0.6, "b": 0.3, "c": 0.1}, on_exhausted="repeat").shuffle().pack(16).batch(2)
    whole = [b.info.ids for b in islice(loader(feed, epochs=None), 40)]
    for stop in (1, 13, 29):
        first = loader(feed, epochs=None)
        it = iter(first)
        for _ in range(stop):
            next(it)
        again = loader(feed, epochs=None)
        again.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert [b.info.ids for b in islice(again, 40 - stop)] == whole[stop:]
