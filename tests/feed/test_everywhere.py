"""The loader under the public oracles: restored from every position, continued on any number of ranks."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import thalweg as tw
from thalweg.feed import stages
from thalweg.feed.compile import compile_feed
from thalweg.feed.feed import Feed
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
PARTS = {
    "a part": lambda: source(15).skip(3).take(9).shuffle().batch(2),
    "chosen": lambda: source(12).select([3, 3, 9, 0, 7]).shuffle().batch(2),
    "a side of a split": lambda: source(20).split({"train": 0.6, "val": 0.4})["train"].shuffle().batch(2),
    "neighbours of like length": lambda: source(24).shuffle().group_by_length(window=6).batch(1),
    "kept in memory": lambda: (
        source(11).map(lambda s: {"input_ids": s["input_ids"][:3]}).cache(max_bytes="1MB").shuffle().pack(8).batch(1)
    ),
}
each_feed = pytest.mark.parametrize("name", FEEDS)


def kinds(feed):
    """Give the kinds of all stages of a feed, those of its parts included."""
    return {type(s) for s in feed.stages}.union(*(kinds(f) for s in feed.stages for _, f in getattr(s, "feeds", ())))


def test_every_public_stage_is_among_the_feeds_that_are_restored_from_every_position():
    restored = set().union(*(kinds(make()) for make in [*FEEDS.values(), *PARTS.values()]))
    every = set(stages.Stage.__subclasses__())
    assert every - restored == {stages.FromStream}  # its feeds are in test_streams_everywhere
    verbs = [
        name
        for name, verb in vars(Feed).items()
        if not name.startswith("_") and "Feed" in str(getattr(verb, "__annotations__", {}).get("return"))
    ]
    assert len(verbs) >= 15
    text = Path(__file__).read_text(encoding="utf-8")
    assert [verb for verb in verbs if f".{verb}(" not in text] == []


@pytest.mark.parametrize("name", PARTS)
def test_a_loader_of_a_part_goes_on_from_every_position(name):
    assert assert_resumes_everywhere(lambda: tw.Loader(PARTS[name](), return_tensors="np", epochs=2))


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
