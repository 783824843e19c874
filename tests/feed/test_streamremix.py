"""Weights of a mix of streams that change at a checkpoint: nothing lost or twice, the same again from any state."""

import json
from collections import Counter

import numpy as np
import pytest

import thalweg as tw
from thalweg.core.errors import ConfigError, StateError
from thalweg.core.topology import Topology
from thalweg.feed.ledger import verify_ledger
from thalweg.feed.loader import FeedLoader
from thalweg.feed.remix import read, written
from thalweg.feed.streamstate import merge_states
from thalweg.testing import assert_resumes_everywhere

N = 900


def part(name, shards):
    rows = [{"input_ids": np.full(1 + i % 5, 7, np.int32), "n": i, "of": name} for i in range(N)]
    return tw.from_stream(rows, shards=shards)


def twice(sample):
    return [sample, {**sample, "n": sample["n"] + N}]


def tokens(sample):
    return {"input_ids": sample["input_ids"]}


def mixed(shards):
    return tw.mix({"a": part("a", shards), "b": part("b", shards)}, on_exhausted="stop_first")


FEEDS = {
    "plain": lambda shards=2: mixed(shards).batch(2, collate="raw"),
    "window": lambda shards=2: mixed(shards).shuffle(buffer_size=12).batch(2, collate="raw"),
    "filter and window": lambda shards=2: (
        mixed(shards).filter(lambda s: s["n"] % 3 > 0).shuffle(buffer_size=7).batch(2, collate="raw")
    ),
    "expansion": lambda shards=2: mixed(shards).map(twice).shuffle(buffer_size=5).batch(2, collate="raw"),
    "packed": lambda shards=2: (
        mixed(shards)
        .map(tokens, remove_columns="all")
        .shuffle(buffer_size=8)
        .pack(16, policy="fill", overlong="drop")
        .batch(1)
    ),
}
each_feed = pytest.mark.parametrize("name", FEEDS)


def loader(feed, rank=0, world=1, **words):
    return FeedLoader(feed, topology=Topology(rank, world), epochs=None, workers=0, **words)


def take(run, steps):
    """Give (source, id) of what comes."""
    out = []
    for batch in (next(run) for _ in range(steps)):
        for ids, sources in zip(batch.info.ids, batch.info.sources, strict=True):
            out += zip(sources, ids, strict=True)
    return out


# C31 K30
@each_feed
@pytest.mark.parametrize("steps", [1, 14, 33])
def test_new_weights_hold_behind_what_was_read_and_every_sample_comes_once(name, steps):
    run = loader(FEEDS[name]())
    it = iter(run)
    head = take(it, steps)
    state = json.loads(json.dumps(run.state_dict()))
    assert state["changes"] == ""
    whole = head + take(it, 60)
    changed = loader(FEEDS[name]())
    changed.load_state_dict(state, mix={"a": 1, "b": 7})
    it = iter(changed)
    tail = take(it, 120)
    seen = head + tail
    assert len(seen) == len(set(seen))
    assert tail != whole[len(head) :][: len(tail)]
    share = Counter(source for source, _ in tail[-120:])
    assert share["b"] / 120 == pytest.approx(7 / 8, abs=0.07)
    if name == "plain":  # nothing is held: at once, and each source goes on where it was
        assert Counter(s for s, _ in tail)["b"] / len(tail) == pytest.approx(7 / 8, abs=4 / len(tail))
        for source in "ab":
            for sub in range(2):
                mine = [int(i) for s, i in seen if s == source and int(i) % 2 == sub]
                assert mine == list(range(sub, 2 * len(mine), 2))
    second = changed.state_dict()
    rest = take(it, 30)
    again = loader(FEEDS[name]())
    again.load_state_dict(json.loads(json.dumps(second)))  # the state brings the weights
    assert take(iter(again), 30) == rest


# A51
@each_feed
def test_a_changed_run_goes_on_from_every_position(name):
    run = loader(FEEDS[name]())
    take(iter(run), 9)
    state = run.state_dict()

    def make():
        made = loader(FEEDS[name](), max_steps=60)
        made.load_state_dict(state, mix={"a": 5, "b": 1})
        return made

    assert_resumes_everywhere(make, limit=24, positions=range(0, 24, 3))


# A41 C31
@each_feed
def test_any_number_of_ranks_goes_on_behind_a_change(name, tmp_path):
    run = loader(FEEDS[name](4), ledger=tmp_path)
    take(iter(run), 12)
    state = run.state_dict()
    run.close()
    changed = loader(FEEDS[name](4), ledger=tmp_path)
    changed.load_state_dict(state, mix={"a": 1, "b": 3})
    it = iter(changed)
    take(it, 10)
    second = changed.state_dict()
    assert second["fingerprint"] != state["fingerprint"]
    assert json.loads(second["changes"])[0][-1] == state["fingerprint"]  # the old one is recorded
    changed.close()
    assert verify_ledger(tmp_path).problems == []
    alone = loader(FEEDS[name](4))
    alone.load_state_dict(second)
    steps, want = iter(alone), {}
    for source, i in take(steps, 80):
        want.setdefault((source, int(str(i).partition(":")[0]) % 4), []).append(i)
    two = [loader(FEEDS[name](4), r, 2) for r in range(2)]
    got = {}
    for rank in two:
        rank.load_state_dict(json.loads(json.dumps(second)))
        for source, i in take(iter(rank), 30):
            got.setdefault((source, int(str(i).partition(":")[0]) % 4), []).append(i)
    assert len(got) == 8
    for key, mine in got.items():
        n = min(len(mine), len(want[key]))
        assert mine[:n] == want[key][:n]
    merged = merge_states([r.state_dict() for r in two])
    last = loader(FEEDS[name](4))
    last.load_state_dict(merged)
    assert take(iter(last), 3)


def test_changes_follow_each_other_and_curricula_end_with_the_first():
    schedule = [(0, {"a": 1, "b": 1}), (100, {"a": 0, "b": 1})]
    feed = tw.mix({"a": part("a", 1), "b": part("b", 1)}, weights=schedule).batch(1, collate="raw")
    run = loader(feed)
    take(iter(run), 40)
    run.load_state_dict(run.state_dict(), mix={"a": 3, "b": 1})
    it = iter(run)
    assert Counter(s for s, _ in take(it, 80))["a"] in range(58, 63)  # past 100 too
    run.load_state_dict(run.state_dict(), mix={"a": 0, "b": 1})
    assert {s for s, _ in take(iter(run), 30)} == {"b"}


def test_what_cannot_be_meant_is_refused_and_a_state_of_other_weights_too():
    run = loader(FEEDS["plain"]())
    take(iter(run), 5)
    state = run.state_dict()
    for weights, said in (({"a": 1}, "'b' has no weight"), ({"a": 0, "b": 0}, "sum above 0")):
        with pytest.raises(ConfigError, match=said):
            loader(FEEDS["plain"]()).load_state_dict(state, mix=weights)
    with pytest.raises(ConfigError, match="planned feeds only"):
        loader(FEEDS["plain"]()).load_state_dict(state, mix={"a": 1, "b": 1}, new_data=["b"])
    run.load_state_dict(state, mix={"a": 1, "b": 2})
    with pytest.raises(StateError, match="changes"):
        run.load_state_dict({**run.state_dict(), "changes": ""})


# E44 K38
def test_a_source_that_waits_with_weight_0_joins_at_a_checkpoint():
    def feed():
        return tw.mix({n: part(n, 2) for n in "abc"}, weights={"a": 1, "b": 1, "c": 0}).batch(2, collate="raw")

    run = loader(feed())
    head = take(iter(run), 20)
    assert {s for s, _ in head} == {"a", "b"}
    joined = loader(feed())
    joined.load_state_dict(run.state_dict(), mix={"a": 1, "b": 1, "c": 2})
    it = iter(joined)
    tail = take(it, 40)
    assert Counter(s for s, _ in tail)["c"] == pytest.approx(40, abs=4)
    assert len(set(head + tail)) == len(head + tail)
    again = loader(feed())
    again.load_state_dict(json.loads(json.dumps(joined.state_dict())))
    assert take(iter(again), 20) == take(it, 20)


def test_changes_of_hundreds_of_sources_are_written_short_and_older_states_with_names_load():
    names = [f"crawl-2026-{i:03d}" for i in range(300)]

    def feed():
        rows = {n: tw.from_stream([{"input_ids": [k]} for k in range(4)], shards=1) for n in names}
        return tw.mix(rows, on_exhausted="stop_all").batch(1, collate="raw")

    run = loader(feed())
    take(iter(run), 3)
    run.load_state_dict(run.state_dict(), mix={n: 1 + k % 7 for k, n in enumerate(names)})
    it = iter(run)
    take(it, 3)
    state = run.state_dict()
    assert len(state["changes"]) < 400
    older = written(read(state["changes"], names))
    assert "crawl-2026-299" in older
    rest = take(it, 20)
    for changes in (state["changes"], older):
        again = loader(feed())
        again.load_state_dict({**state, "changes": changes})
        assert take(iter(again), 20) == rest
