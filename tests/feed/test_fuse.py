"""Adjacent functions of a stream run as one call, and give what they give one after the other."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import thalweg as tw
from thalweg.core.errors import SampleError
from thalweg.feed.fuse import Fused, fused
from thalweg.feed.loader import FeedLoader
from thalweg.feed.merge import call


def one(sample):
    return {"input_ids": [i + 1 for i in sample["input_ids"]]}


def two(sample):
    return [{"part": k} for k in range(sample["input_ids"][0] % 3)]


def three(sample):
    return None if sample.get("part") == 1 else {"tail": len(sample)}


def four(sample):
    yield {"input_ids": sample["input_ids"]}


def maps(*fns, **more):
    feed = tw.from_stream(lambda: iter([{"input_ids": [n]} for n in range(20)]))
    for fn in fns:
        feed = feed.map(fn, **more)
    return list(enumerate(feed.stages[1:], 1))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from([one, two, three]), min_size=1, max_size=5), st.integers(0, 50))
def test_a_row_of_functions_gives_what_they_give_one_after_the_other(fns, n):  # E25 E29
    stages = maps(*fns)
    samples = [{"input_ids": [n], "kept": "x"}]
    wanted = samples
    for _, stage in stages:
        wanted = [m for s in wanted for m in call(stage, s)]
    ((number, whole),) = fused(stages)
    assert number == 1
    assert [m for s in samples for m in call(whole, s)] == wanted


# E29 E30
@pytest.mark.parametrize(
    ("stages", "left"),
    [
        (lambda: maps(one, one, three), 1),
        (lambda: maps(one, four, three), 3),  # a generator's outputs go on one by one
        (lambda: maps(one, one, batched=4), 2),
        (lambda: maps(one, one, mode="threads", workers=2), 1),
        (lambda: [*maps(one, mode="threads"), *maps(one, mode="inline")], 2),
        (lambda: [*maps(one), *maps(one, on_error="skip")], 2),
    ],
)
def test_only_functions_that_run_alike_become_one(stages, left):
    assert len(fused(stages())) == left


def test_a_stream_of_many_maps_has_one_queue_the_same_batches_and_resumes():
    def feed(together):
        made = tw.from_stream(lambda: iter([{"input_ids": [n, n]} for n in range(30)]))
        return made.map(one).map(one).map(one).batch(2) if together else made.map(Fused([s for _, s in maps(one, one, one)]), remove_columns="all").batch(2)  # fmt: skip  # noqa: E501

    def walk(made, state=None, n=99):
        loader = FeedLoader(made, topology=tw.Topology(), workers=2)
        if state is not None:
            loader.load_state_dict(state)
        got = [b["input_ids"].tolist() for _, b in zip(range(n), loader, strict=False)]
        state, stats = loader.state_dict(), loader.stats()
        loader.close()
        return got, state, stats

    whole, _, stats = walk(feed(True))
    assert whole == walk(feed(False))[0]
    assert [k for k in stats if k.endswith(" map")] == ["1 map"]
    first, state, _ = walk(feed(True), n=6)
    assert first + walk(feed(True), state)[0] == whole


def test_an_undeclared_column_is_refused_inside_a_row_too():
    stages = maps(one)
    second = maps(lambda ids: {"kept": 1}, input_columns=["input_ids"])
    ((_, whole),) = fused([*stages, *second])
    with pytest.raises(SampleError, match="replaces column 'kept'"):
        call(whole, {"input_ids": [1], "kept": "x"})
