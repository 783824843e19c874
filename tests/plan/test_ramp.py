"""Batch-size ramps: the steps of a run are those of a model that walks row by row, at any layout and tail."""

from itertools import islice

from hypothesis import given, settings
from hypothesis import strategies as st

from plan_rows import Rows
from thalweg.plan.ramp import Ramp
from thalweg.plan.steps import Place, Walk

TAILS = ["drop", "carry", "pad", "repeat"]


@st.composite
def ramps(draw):
    starts = sorted({0, *draw(st.lists(st.integers(1, 60), max_size=3))})
    return tuple((start, draw(st.integers(1, 9))) for start in starts)


def size_at(entries, row):
    size = None
    for start, n in entries:
        if row >= start:
            size = n
    return size


def slowly(entries, before, rows, whole):
    """Walk a range of rows step by step: (first row, rows) of each step that begins in it."""
    out, at = [], 0
    while at < rows:
        n = size_at(entries, before + at)
        if whole and at + n > rows:
            break
        out.append((at, n))
        at += n
    return out


# C33 E48
@given(ramps(), st.integers(0, 80), st.integers(0, 120), st.booleans())
def test_counts_and_stretches_are_those_of_a_walk_step_by_step(entries, before, rows, whole):
    ramp, steps = Ramp(entries), slowly(entries, before, rows, whole)
    assert ramp.steps(before, rows, whole=whole) == len(steps)
    told = [
        (first + k * n, n)
        for first, count, n in ramp.stretches(before, rows, whole=whole)
        for k in range(count)
    ]  # fmt: skip
    assert told == steps
    assert ramp.rows(before, len(steps)) == sum(n for _, n in steps)
    assert ramp.largest == max(n for _, n in entries)


def walked(entries, blocks, tail, epochs):
    """What each step of a run takes, (epoch, row) of each of its rows, by the slowest possible walk."""
    per_epoch, out, seen = sum(blocks), [], 0
    if tail == "carry":
        most = max(n for _, n in entries)  # rows that the last step may take from epochs behind the run's
        order = [(e, i) for e in range(epochs + most) for i in range(per_epoch)]
        while seen < epochs * per_epoch:
            n = size_at(entries, seen)
            out.append(order[seen : seen + n])
            seen += n
        return out
    for epoch in range(epochs):
        for at, n in slowly(entries, epoch * per_epoch, per_epoch, tail == "drop"):
            real = [(epoch, i) for i in range(at, min(at + n, per_epoch))]
            fill = n - len(real)
            out.append(real + ([None] * fill if tail == "pad" else [(epoch, i % per_epoch) for i in range(fill)]))
    return out


def rows_of(step):
    rows = [(s.epoch, i) for s in step.spans for i in range(s.first, s.first + s.stop - s.start)]
    return rows + [None] * step.filler


# C33 E48 K33
@settings(max_examples=150, deadline=None)
@given(
    ramps(), st.integers(1, 3), st.lists(st.integers(0, 30), min_size=1, max_size=4), st.sampled_from(TAILS),
    st.integers(1, 3),
)  # fmt: skip
def test_steps_of_a_ramp_are_those_of_a_slow_walk_and_their_number_is_known(entries, ranks, blocks, tail, epochs):
    ramp = Ramp.of(entries, ranks)
    scaled = tuple((start, n * ranks) for start, n in entries)
    want = walked(scaled, blocks, tail, epochs)
    walk = Walk(Rows(*blocks), ramp, tail, epochs)
    got = list(walk.steps(Place()))
    assert [rows_of(s) for s in got] == want
    assert [s.size for s in got] == [len(rows) for rows in want]
    for k in range(0, len(got), max(len(got) // 5, 1)):  # from any place, by a walk that has seen nothing
        place = Place() if not k else got[k - 1].after
        fresh = Walk(Rows(*blocks), ramp, tail, epochs)
        if place.epoch < epochs:
            assert fresh.count(place) == len(got) - k
            assert rows_of(next(fresh.steps(place))) == want[k]


# C29 C33
@settings(max_examples=80, deadline=None)
@given(
    ramps(), st.lists(st.integers(1, 30), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5)), min_size=1, max_size=4),
)  # fmt: skip
def test_legs_on_changing_layouts_inside_a_ramp_read_the_uninterrupted_order(entries, blocks, legs):
    counts, place, got, seen = Rows(*blocks), Place(), [], 0
    for ranks, steps in legs:
        for step in islice(Walk(counts, Ramp.of(entries, ranks), "carry", None).steps(place), steps):
            assert step.size == size_at(entries, seen) * ranks  # as far along the ramp as the rows say
            got, seen, place = got + rows_of(step), seen + step.size, step.after
    want = [(i // sum(blocks), i % sum(blocks)) for i in range(len(got))]
    assert got == want
