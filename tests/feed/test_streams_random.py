"""Streams at random: latencies, expansions, filters, faults, windows, stop points and workers, beside a plain loop."""

import contextlib
import json
import threading
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import thalweg as tw
from thalweg.core.topology import Topology
from thalweg.feed.loader import FeedLoader

KINDS = ("one", "none", "nothing", "three", "fails", "fails late", "lazy")


class Act:
    """Does to each item what its kind says, after giving the interpreter away some times."""

    def __init__(self, kinds, seed):
        self.kinds, self.seed = kinds, seed

    def __call__(self, sample):
        i = sample["n"]
        for _ in range((i * 7919 + self.seed) % 3):
            threading.Event().wait(0)
        kind = self.kinds[i]
        if kind == "fails":
            raise ValueError(i)
        if kind == "nothing":
            return None
        if kind in {"fails late", "lazy"}:
            return self.parts(i, fails=kind == "fails late")
        return [{"n": i, "k": k} for k in range({"one": 1, "none": 0, "three": 3}[kind])]

    @staticmethod
    def parts(i, *, fails):
        yield {"n": i, "k": 0}
        if fails:
            raise ValueError(i)
        yield {"n": i, "k": 1}


def expected(kinds):
    outputs = {"one": 1, "none": 0, "nothing": 0, "three": 3, "fails": 0, "fails late": 1, "lazy": 2}
    return [(i, k) for i, kind in enumerate(kinds) for k in range(outputs[kind]) if (i + k) % 5]


def loader(kinds, seed, window, batch, workers, ahead):
    stream = tw.from_stream([{"n": i} for i in range(len(kinds))], shards=1)
    if window:
        stream = stream.shuffle(seed, buffer_size=window)
    stream = stream.map(
        Act(kinds, seed), on_error="skip", max_bad=len(kinds), workers=workers or "auto", mode="threads"
    )
    stream = stream.filter(lambda s: (s["n"] + s["k"]) % 5 != 0)
    more = {"workers": 0} if workers == 0 else {}
    return FeedLoader(stream.batch(batch, collate="raw"), topology=Topology(), tail="pad", prefetch=ahead, **more)


@settings(max_examples=40, deadline=None)
@given(
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=40),
    seed=st.integers(0, 99),
    window=st.sampled_from([0, 0, 1, 7]),
    batch=st.integers(1, 4),
    legs=st.lists(st.tuples(st.integers(0, 12), st.sampled_from([0, 1, 4])), min_size=1, max_size=5),
)
def test_any_chain_stopped_anywhere_and_continued_by_any_workers_gives_what_a_plain_loop_gives(
    kinds, seed, window, batch, legs
):
    # A2 A8 A9 A10 A51 K28: nothing lost, nothing twice, in place
    want = expected(kinds)
    got, state, read = [], None, len(kinds)
    for last, (steps, workers) in [*((False, leg) for leg in legs), (True, (10_000, 2))]:
        run = loader(kinds, seed, window, batch, workers, 1 + steps % 3)
        if state is not None:
            run.load_state_dict(json.loads(json.dumps(state)))
        if len(got) == len(want) and state is not None:
            run.close()
            break
        if not want:
            assert_nothing(run, read)
            return
        got += [(s["n"], s["k"]) for b in islice(run, None if last else steps) for s in b["samples"]]
        state = run.state_dict()
        run.close()
    assert sorted(got) == want
    if window <= 1:
        assert got == want


def assert_nothing(run, read):
    """Nothing comes, or, where the epoch ends with it, an error that says how much was read."""
    with contextlib.suppress(StopIteration), pytest.raises(tw.ThalwegError, match=f"no row: {read} items were read"):
        next(iter(run))
    run.close()
