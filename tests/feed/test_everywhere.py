"""The loader under the public oracles: restored from every position, continued on any number of ranks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import thalweg as tw
from thalweg.feed.compile import compile_feed
from thalweg.feed.node import RunOptions
from thalweg.feed.planned import PlannedNode
from thalweg.testing import Leg, assert_continues_anywhere, assert_resumes_everywhere

pytestmark = pytest.mark.filterwarnings("ignore:balance. steps of")  # of other layouts than the first


def samples(n, seed=0, longest=20):
    lengths = np.random.default_rng(seed).integers(1, longest + 1, n).tolist()
    return [{"input_ids": np.full(k, i % 1000, np.int32), "id": f"{seed}/{i}"} for i, k in enumerate(lengths)]


def source(n, seed=0, longest=20):
    return tw.from_dataset(samples(n, seed, longest), id="id")


def mixed():
    return tw.mix({"a": source(20, 1), "b": source(35, 2)}, weights={"a": 0.3, "b": 0.7})


FEEDS = {
    "padded": lambda: source(23).shuffle().batch(2),
    "in order": lambda: source(17).batch(3),
    "packed": lambda: source(60).shuffle().pack(32).batch(2),
    "never repacked": lambda: source(40).shuffle().pack(32, repack="never").batch(1),
    "cut": lambda: source(30, longest=70).shuffle().pack(32, policy="concat_split").batch(2),
    "split documents": lambda: source(30, longest=70).shuffle().pack(32, overlong="split").batch(2),
    "dropped": lambda: source(30, longest=70).shuffle().pack(32, overlong="drop").batch(2),
    "mixed": lambda: mixed().shuffle().batch(2),
    "mixed by tokens, packed": lambda: (
        tw.mix({"a": source(20, 1), "b": source(35, 2)}, weights={"a": 1, "b": 2}, by="tokens")
        .shuffle()
        .pack(32)
        .batch(2)
    ),
    "curriculum": lambda: (
        tw.mix({"a": source(20, 1), "b": source(35, 2)}, weights=[(0, {"a": 1, "b": 1}), (15, {"a": 0, "b": 1})])
        .shuffle()
        .batch(2)
    ),
    "concat": lambda: tw.concat({"a": source(9, 1), "b": source(5, 2).repeat(2)}).shuffle().batch(2),
    "filtered": lambda: source(40).filter(lambda s: len(s["input_ids"]) % 2 == 0).shuffle().batch(2),
    "mapped": lambda: source(23).map(lambda s: {"input_ids": s["input_ids"] + 1}, length="same").shuffle().batch(2),
    "mapped at random": lambda: (
        source(23)
        .map(lambda s, info: {"input_ids": s["input_ids"] + info.rng.integers(5)}, with_info=True, length="same")
        .shuffle()
        .batch(2)
    ),
    "balanced": lambda: source(80).shuffle().pack(32).balance(window=8, run=4).batch(2),
    "token budget": lambda: source(40).shuffle().token_budget(64),
    "buckets": lambda: source(40).shuffle().bucket([8, 16], [4, 2, 1]),
}
each_feed = pytest.mark.parametrize("name", FEEDS)


# A51 C48 K26 K30 K32
@each_feed
@pytest.mark.parametrize("words", [{"epochs": None, "max_steps": 20}, {"tail": "pad", "epochs": 2}])
def test_a_loader_goes_on_from_every_position(name, words):
    assert_resumes_everywhere(lambda: tw.Loader(FEEDS[name](), return_tensors="np", **words), limit=40)


@pytest.mark.parametrize("tail", ["drop", "carry", "pad", "repeat"])
def test_the_node_below_it_too(tail):
    def node():
        return PlannedNode(compile_feed(FEEDS["packed"](), 3), RunOptions(epochs=2, tail=tail))

    assert len(assert_resumes_everywhere(node)) > 10


# C29 C31 C33 K33
@each_feed
@settings(max_examples=8, deadline=None)
@given(
    legs=st.lists(st.builds(Leg, st.integers(0, 4), st.sampled_from([1, 2, 3, 8]), st.integers(1, 3)), max_size=3),
    seed=st.integers(0, 3),
)
def test_legs_on_any_ranks_read_what_one_rank_would_have_read(name, legs, seed):
    feed = FEEDS[name]()

    def make(topology, accumulation):
        return tw.Loader(
            feed,
            topology=topology,
            gradient_accumulation_steps=accumulation,
            epochs=None,
            seed=seed,
            return_tensors="np",
        )

    assert_continues_anywhere(make, legs)
