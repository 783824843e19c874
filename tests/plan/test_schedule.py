"""Which draws an epoch has: the model's segments, exactly-once over epochs, errors that do not add up."""

from collections import Counter
from fractions import Fraction
from itertools import pairwise
from math import log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planned_oracle import CAP, arguments, make_model, make_order, model
from thalweg.core.errors import ConfigError
from thalweg.plan.schedule import Schedule


@settings(max_examples=150, deadline=None)
@given(arguments())
def test_segments_are_those_of_the_model(given_arguments):
    lengths, more = given_arguments
    order = make_order(lengths, **more)
    oracle = make_model(model(), lengths, order, **more)
    for epoch in range(3):
        ours = [(s.length, list(s.before), s.entry) for s in order.schedule.segments(epoch)]
        theirs = [(n, before, entry) for n, _, before, entry in oracle.segments(epoch) if n]
        assert ours == theirs
        source, draw = order.draws(epoch, 0, order.num_draws(epoch))
        assert list(zip(source.tolist(), draw.tolist(), strict=True)) == [d[1:] for d in oracle.draws(epoch)]


@settings(max_examples=100, deadline=None)
@given(arguments())
def test_draws_of_a_source_are_consecutive_over_epochs_and_each_epoch_is_whole(given_arguments):  # E42
    lengths, more = given_arguments
    order, seen = make_order(lengths, **more), Counter()
    for epoch in range(3):
        start = Counter(seen)
        source, draw = order.draws(epoch, 0, order.num_draws(epoch))
        for s, k in zip(source.tolist(), draw.tolist(), strict=True):
            assert k == seen[s]
            seen[s] += 1
        drawn = [seen[s] - start[s] for s in range(len(lengths))]
        sizes = [t.n for t in order.sources]
        rule = more.get("on_exhausted", "without_repeat")
        if rule == "without_repeat":
            assert drawn == sizes
        elif rule == "stop_first":
            assert all(d <= n for d, n in zip(drawn, sizes, strict=True))
            assert any(d == n for d, n in zip(drawn, sizes, strict=True))
        else:
            assert all(d >= n for d, n in zip(drawn, sizes, strict=True))
    for s, table in enumerate(order.sources):
        for own in range(seen[s] // table.n if table.n else 0):
            samples = table.samples(np.arange(own * table.n, (own + 1) * table.n))
            assert sorted(samples.tolist()) == [i for i, n in enumerate(lengths["abc"[s]]) if n <= CAP]


def test_epochs_far_away_need_no_walk():
    schedule = Schedule(
        ["a", "b"], [10, 30], entries=[(0, (Fraction(1), Fraction(1))), (25, (Fraction(1), Fraction(3)))]
    )
    near = [schedule.mark(e).draws for e in range(6)]
    assert [y[0] - x[0] for x, y in pairwise(near[2:])] == [10, 10, 10]
    far = schedule.mark(10**9)
    step = [y - x for x, y in zip(near[4], near[5], strict=True)]
    assert list(far.draws) == [d + (10**9 - 5) * k for d, k in zip(near[5], step, strict=True)]


def test_errors_do_not_add_up_over_changes_of_the_weights():
    sizes = [1 + i * i % 97 for i in range(40)]
    names = [str(i) for i in range(40)]
    schedule = Schedule(names, sizes, entries=[(0, (Fraction(1),) * 40)], rule="without_repeat")
    due, done = [Fraction(0)] * 40, [0] * 40
    for segment in schedule.segments(0):  # a segment ends when a source is used up
        counts = segment.mix.counts(segment.length)
        for s, r in enumerate(segment.mix.rates):
            due[s] += Fraction(segment.length * r, sum(segment.mix.rates))
            done[s] += counts[s]
            assert not r or abs(done[s] - due[s]) < 2 + log(40)
    assert done == sizes


def test_expected_tokens_place_a_breakpoint():
    lengths = {"a": [2, 4] * 50, "b": [10] * 100}
    weights = [(0, {"a": 1, "b": 1}), (90, {"a": 1, "b": 3})]
    order = make_order(lengths, weights=weights, by="tokens", at="tokens", on_exhausted="repeat")
    first = order.schedule.segments(0)[0]
    assert first.length == 20  # 15 of a (mean 3) and 5 of b: 4.5 tokens a draw


@settings(deadline=None)
@given(st.integers(1, 5))
def test_a_repeated_source_is_used_up_after_all_its_passes(times):
    schedule = Schedule(["a", "b"], [4, 1000], entries=[(0, (Fraction(1), Fraction(1)))], repeats=[times, 1])
    segment = schedule.segments(0)[-1]
    assert segment.mix.counts(segment.length)[0] == 4 * times


def test_a_source_with_a_weight_and_nothing_to_deliver_is_named():
    with pytest.raises(ConfigError, match="'b'"):
        Schedule(["a", "b"], [4, 0], entries=[(0, (Fraction(1), Fraction(1)))])


def test_three_hundred_sources_of_one_sample():
    names = [str(i) for i in range(300)]
    schedule = Schedule(names, [1] * 300, entries=[(0, (Fraction(1),) * 300)], rule="without_repeat")
    total = Counter()
    for s in schedule.segments(0):
        total.update({i: c for i, c in enumerate(s.mix.counts(s.length)) if c})
    assert total == dict.fromkeys(range(300), 1)
