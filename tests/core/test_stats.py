"""Statistics add up in any order, and zero counts."""

import math
from functools import reduce
from random import Random
from statistics import fmean, variance

from hypothesis import given
from hypothesis import strategies as st

from thalweg.core.stats import Metric, PipelineStats, StepStats, merge
from thalweg.core.tally import Tally

numbers = st.one_of(st.integers(-(10**6), 10**6), st.floats(-1e6, 1e6, allow_nan=False))


def of(values):
    metric = Metric()
    for value in values:
        metric.update(value)
    return metric


# D27 K43
@given(st.lists(st.lists(numbers, max_size=20), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_merged_mean_and_variance_equal_one_run_in_any_order(ranks, random):
    everything = [x for rank in ranks for x in rank]
    parts = [of(rank) for rank in ranks]
    random.shuffle(parts)
    merged = reduce(lambda a, b: a + b, parts, Metric())
    assert merged.n == len(everything)
    if everything:
        scale = max(1.0, *map(abs, everything))
        assert math.isclose(merged.mean, fmean(everything), rel_tol=1e-9, abs_tol=1e-9 * scale)
        assert merged.min == min(everything)
        assert merged.max == max(everything)
    if len(everything) > 1:
        spread = max(abs(x - fmean(everything)) for x in everything) ** 2
        assert math.isclose(merged.variance, variance(everything), rel_tol=1e-9, abs_tol=1e-9 * max(spread, 1e-12))


@given(st.lists(st.integers(0, 10**7), max_size=300))
def test_many_whole_numbers_at_once_equal_one_update_each(values):
    one, many = of(values), Metric()
    many.update_many(values)
    assert (many.n, many.total, many.min, many.max) == (one.n, one.total, one.min, one.max)
    assert math.isclose(many.m2, one.m2, rel_tol=1e-9, abs_tol=1e-3)


# D29
def test_zero_valued_updates_keep_their_count():
    ranks = [of([0, 0, 0]), of([3]), of([0] * 5 + [6])]
    back = [Metric.from_dict(m.to_dict()) for m in ranks]
    merged = reduce(lambda a, b: a + b, back)
    assert merged.n == 10
    assert merged.mean == 0.9


# D29
def test_two_steps_of_one_class_are_told_apart_when_merged():
    def rank(first, second):
        return PipelineStats(
            [
                StepStats("Lambda", "1:LambdaFilter", Tally(taken=first)),
                StepStats("Lambda", "2:LambdaFilter", Tally(taken=second)),
            ],
            ranks=1,
        )

    merged = merge([rank(10, 7), rank(5, 1)])
    assert [(s.id, s.tally.taken) for s in merged] == [("1:LambdaFilter", 15), ("2:LambdaFilter", 8)]
    assert merged.ranks == 2


# D26
def test_one_schema_holds_for_a_rank_and_for_a_merge():
    step = StepStats("Reader", "0:JsonlReader", Tally(made=3, out=2))
    step.tally.drop("no_text")
    step["doc_len"].update_many([5, 7])
    rank = PipelineStats([step], ranks=1)
    rank.seconds.update(0.5)
    merged = merge([rank, rank])

    def shape(value):
        return {k: shape(v) for k, v in value.items()} if isinstance(value, dict) else type(value).__name__

    one, both = rank.to_dict(), merged.to_dict()
    assert shape(one["steps"][0]) == shape(both["steps"][0])
    assert PipelineStats.from_dict(both).to_dict() == both
    assert both["steps"][0]["tally"]["dropped"] == {"no_text": 2}


def test_a_merge_of_nothing_is_empty_and_adds_nothing():
    rank = PipelineStats([StepStats("a", "0:a", Tally(made=1, out=1))], ranks=1)
    shuffled = [rank, PipelineStats(), rank]
    Random(0).shuffle(shuffled)
    assert merge(shuffled).to_dict() == merge([rank, rank]).to_dict()
    assert merge([]).ranks == 0
