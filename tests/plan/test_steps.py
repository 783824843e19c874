"""Steps, tails and the cut per rank: the model's steps, and the same number on every rank."""

from collections import Counter
from itertools import islice

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from plan_rows import Rows
from planned_oracle import arguments, layouts, make_model, make_order, model
from thalweg.core.errors import ConfigError
from thalweg.plan.epoch import Order
from thalweg.plan.schedule import Schedule
from thalweg.plan.steps import Place, Walk, cut, shares
from thalweg.plan.table import SourceTable

TAILS = ["drop", "carry", "pad", "repeat"]


def flat(step):
    rows = [(s.epoch, i, s.mark) for s in step.spans for i in range(s.first, s.first + s.stop - s.start)]
    return rows + [(None, None, "filler")] * step.filler


@settings(max_examples=150, deadline=None)
@given(arguments(), layouts, st.sampled_from([1, 2, 3]), st.sampled_from(TAILS))
def test_steps_are_those_of_the_model(given_arguments, layout, epochs, tail):  # K33
    lengths, more = given_arguments
    order = make_order(lengths, **more)
    planned_model = model()
    oracle = planned_model.Loader(make_model(planned_model, lengths, order, **more), *layout, epochs=epochs, tail=tail)
    walk = Walk(order, oracle.size, tail, epochs)
    place, ours = Place(), []
    for theirs in oracle:
        step = next(walk.steps(place))
        ours.append(step)
        assert flat(step) == [(e, i, mark) for e, i, _, mark in theirs["rows"]]
        assert step.epoch == theirs["epoch"]
        place = step.after
        state = oracle.state_dict()
        if state["block"] != "-1":
            assert (place.epoch, place.block, place.row) == (
                int(state["epoch"]),
                int(state["block"]),
                int(state["row"]),
            )
    assert walk.count(Place()) == len(ours) == len(list(walk.steps(Place())))


@settings(max_examples=80, deadline=None)
@given(arguments(), st.lists(st.tuples(layouts, st.integers(0, 4)), min_size=1, max_size=4), layouts)
def test_legs_on_changing_layouts_equal_the_uninterrupted_order_under_carry(given_arguments, legs, last):
    lengths, more = given_arguments
    order = make_order(lengths, **more)
    assume(order.rows(0))
    place, got = Place(), []
    for (world, micro, accumulation), count in [*legs, (last, 6)]:
        for step in islice(Walk(order, world * micro * accumulation, "carry", None).steps(place), count):
            got += flat(step)
            place = step.after
    whole = [r for s in islice(Walk(order, 1, "carry", None).steps(Place()), len(got)) for r in flat(s)]
    assert got == whole


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), max_size=5), layouts, st.sampled_from(TAILS), st.integers(1, 3))
def test_every_rank_takes_equal_steps_and_rows_are_cut_without_overlap(
    blocks, layout, tail, epochs
):  # E42 E43 E48 C33 K33
    world, micro, accumulation = layout
    size = world * micro * accumulation
    for step in Walk(Rows(*blocks), size, tail, epochs).steps(Place()):
        whole = flat(step)
        assert len(whole) == size
        got = []
        for i, (m, rank, spans, filler) in enumerate(shares(step, world, micro, accumulation)):
            assert (m, rank) == divmod(i, world)
            rows = [(s.epoch, j, s.mark) for s in spans for j in range(s.first, s.first + s.stop - s.start)]
            assert len(rows) + filler == micro
            got += rows + [(None, None, "filler")] * filler
        assert got == whole


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=5), st.integers(1, 12), st.integers(0, 3), st.sampled_from(TAILS)
)
def test_the_count_from_any_place_is_the_number_of_steps(blocks, size, skip, tail):  # C19 C33
    walk, place = Walk(Rows(*blocks), size, tail, 2), Place()
    for step in islice(walk.steps(place), skip):
        place = step.after
    if place.epoch < 2:
        assert walk.count(place) == len(list(walk.steps(place)))


def test_endless_epochs_without_a_step_are_refused_with_the_tails_that_work():
    for blocks, tail, works in (
        ((), "carry", "no row"),
        ((), "drop", "no row"),
        ((1,), "drop", "carry, pad or repeat"),
    ):
        with pytest.raises(ConfigError, match=works):
            next(Walk(Rows(*blocks), 2, tail, None).steps(Place()))
    assert list(Walk(Rows(1), 2, "drop", 3).steps(Place())) == []


def test_an_epoch_shorter_than_a_step_under_carry():
    steps = list(islice(Walk(Rows(1), 8, "carry", None).steps(Place()), 3))
    assert [s.epoch for s in steps] == [0, 8, 16]
    assert [sum(1 for _ in Walk(Rows(3), 8, t, 3).steps(Place())) for t in TAILS] == [0, 2, 3, 3]


def test_rows_before_a_block_go_on_under_carry_only():
    def before(tail):
        walk = Walk(Rows(3, 4), 5, tail, 2)
        return [(s.epoch, s.block, s.before) for step in walk.steps(Place()) for s in step.spans if s.mark is None]

    assert set(before("carry")) == {(0, 0, 0), (0, 1, 3), (1, 0, 7), (1, 1, 10), (2, 0, 14)}
    assert set(before("pad")) == {(0, 0, 0), (0, 1, 3), (1, 0, 0), (1, 1, 3)}


def test_repeat_fills_from_the_epochs_first_row_cyclically():
    step = next(Walk(Rows(2, 1), 8, "repeat", 1).steps(Place()))
    assert [(i, mark) for _, i, mark in flat(step)] == [(0, None), (1, None), (2, None)] + [
        (i % 3, "repeated") for i in range(5)
    ]
    assert Counter(mark for _, _, mark in flat(step))["repeated"] == 5


def test_a_cut_beyond_the_rows_is_filler():
    step = next(Walk(Rows(3), 8, "pad", 1).steps(Place()))
    assert cut(step, 6, 8) == ((), 2)


@pytest.mark.slow
def test_sixteen_thousand_ranks_hold_each_row_of_a_step_once():  # E42 E43 C29
    n, world, micro = 10**9, 16_384, 2
    table = SourceTable("a", n, None, None, 5)
    order = Order([table], Schedule(["a"], [n]), seed=5)
    rng = np.random.default_rng(0)
    positions = rng.integers(0, n, 10_000)
    back = [table.draw_of(int(v), 0) for v in table.samples(positions)]
    assert back == positions.tolist()  # position -> sample -> position
    walk = Walk(order, world * micro, "drop", 1)
    for step in rng.integers(0, n // (world * micro), 100).tolist():
        row = step * world * micro
        block = order.block_at(0, row)
        found = walk.step(Place(0, block, row - order.bounds(0, block)[0], row))
        rows = [
            r
            for _, _, spans, _ in shares(found, world, micro, 1)
            for s in spans
            for r in range(s.first, s.first + s.stop - s.start)
        ]
        assert rows == list(range(row, row + world * micro))
