"""The interleave: exact at any position, near its share everywhere, reversible in closed form."""

from collections import Counter
from fractions import Fraction
from math import log

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg.plan.mix import PHASE, Interleave
from thalweg.plan.table import picked

rates = st.lists(st.integers(0, 50), min_size=1, max_size=12).filter(sum)
huge = st.lists(st.fractions(0, 1, max_denominator=10**30), min_size=1, max_size=6).filter(any)


def phases(n, seed):
    return [(seed * 7919 + i * 104729) * 65537 % (1 << PHASE) for i in range(n)]


@settings(deadline=None)
@given(rates, st.integers(0, 99))
def test_closed_form_is_the_sequential_rule_and_keeps_to_its_share(given_rates, seed):
    mix = Interleave([Fraction(r) for r in given_rates], phases(len(given_rates), seed))
    error = [Fraction(p, 1 << PHASE) for p in mix.phases]
    seen, live = Counter(), sum(1 for r in given_rates if r)
    for p in range(200):
        left = Fraction(sum(mix.rates))
        for s in mix.live:  # one pointer walks down the sources, an error term at each
            error[s] += mix.rates[s] / left
            if error[s] >= 1 or mix.rates[s] == left:
                error[s] -= 1
                break
            left -= mix.rates[s]
        assert mix.at(p) == (s, seen[s])
        seen[s] += 1
        for i, r in enumerate(given_rates):
            assert abs(seen[i] - Fraction((p + 1) * r, sum(given_rates))) < 2 + log(live)


@settings(deadline=None)
@given(st.one_of(rates.map(lambda r: [Fraction(x) for x in r]), huge), st.integers(0, 10**12), st.integers(0, 9))
def test_a_span_is_its_positions_one_by_one_at_any_place(given_rates, start, seed):
    mix = Interleave(given_rates, phases(len(given_rates), seed))
    source, draw = mix.span(start, start + 70)
    for i in range(70):
        assert mix.at(start + i) == (source[i], draw[i])
    a, b = mix.counts(start), mix.counts(start + 70)
    assert [int((source == s).sum()) for s in range(len(given_rates))] == [y - x for x, y in zip(a, b, strict=True)]


def test_a_long_span_beyond_64_bit_arithmetic_is_exact():
    given_rates = [Fraction(1, 2) + Fraction(1, 10**40), Fraction(1, 3), Fraction(1, 6) - Fraction(1, 10**40)]
    mix = Interleave(given_rates, [0, 0, 0])  # no phase: many floats lie on an integer
    start = 10**12
    source, draw = mix.span(start, start + 60_000)
    for i in np.random.default_rng(0).integers(0, 60_000, 300):
        assert mix.at(start + int(i)) == (source[i], draw[i])


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), max_size=40), st.integers(1, 10))
def test_values_of_several_sources_are_picked_as_one_by_one(source, width):
    columns = [np.arange(width, dtype=np.uint16) * 100 + s for s in range(10)]
    index = np.arange(len(source)) % width
    got = picked(columns, np.array(source, np.int32), index)
    assert got.dtype == np.int64
    assert got.tolist() == [columns[s][i] for s, i in zip(source, index, strict=True)]
    assert picked(columns[:1], np.zeros(len(source), np.int32), index).tolist() == columns[0][index].tolist()


@settings(deadline=None)
@given(rates, st.integers(0, 99), st.lists(st.integers(0, 40), min_size=12, max_size=12), st.booleans())
def test_the_end_is_the_first_position_where_the_test_holds(given_rates, seed, need, every):
    mix = Interleave([Fraction(r) for r in given_rates], phases(len(given_rates), seed))
    need = need[: len(given_rates)]

    def test(counts):
        return (
            all(c >= n for c, n in zip(counts, need, strict=True))
            if every
            else any(counts[s] >= need[s] for s in mix.live)
        )

    end = mix.first(test, need, every=every)
    if end is None:
        assert every
        assert any(n and not r for n, r in zip(need, given_rates, strict=True))
        return
    assert test(mix.counts(end))
    assert end == 0 or not test(mix.counts(end - 1))
