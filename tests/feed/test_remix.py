"""Weights that change at a checkpoint: nothing lost, nothing twice, written down, and the same again from any state."""

from collections import Counter
from itertools import islice

import numpy as np
import pytest

import thalweg as tw
from thalweg.core.errors import ConfigError, StateError
from thalweg.feed import compile as planning
from thalweg.feed import remix
from thalweg.feed.ledger import verify_ledger

SIZES = {"a": 400, "b": 300, "c": 200}


def source(name):
    rows = [{"input_ids": np.arange(1 + i % 9, dtype=np.int32), "id": f"{name}{i}"} for i in range(SIZES[name])]
    return tw.from_dataset(rows, id="id")


def feed(names="ab", *, packed=False, by="samples", **words):
    mixed = tw.mix({n: source(n) for n in names}, weights=dict.fromkeys(names, 1), by=by, **words).shuffle()
    return mixed.pack(16, overlong="drop").batch(1) if packed else mixed.batch(2)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    class Small(planning.Order):
        def __init__(self, *args, **words):
            super().__init__(*args, **{**words, "block": 40})

    monkeypatch.setattr(planning, "Order", Small)


def loader(of, world=1, rank=0, **words):
    return tw.Loader(
        of, topology=tw.Topology(rank=rank, world=world), epochs=None, seed=3, return_tensors="np", **words
    )


def read(run, steps):
    return [i for batch in islice(run, steps) for row in batch.info.ids for i in row]


def shares(ids):
    counts = Counter(i[0] for i in ids)
    return {n: counts[n] / len(ids) for n in sorted(counts)}


# E44 E45 K38
@pytest.mark.parametrize("packed", [False, True])
def test_new_weights_hold_from_the_change_on_and_every_draw_comes_once(packed):
    run = loader(feed(packed=packed))
    head = read(run, 23)
    run = loader(feed(packed=packed))
    read(run, 23)
    state = run.state_dict()
    assert state["changes"] == ""
    after = loader(feed(packed=packed))
    after.load_state_dict(state, mix={"a": 3, "b": 1})
    tail = read(after, 60)
    seen = head + tail
    for name in "ab":  # over the run the draws of a source are 0, 1, 2, ... of its own permutation
        mine = [i for i in seen if i[0] == name]
        assert len(mine) == len(set(mine))
        plain = [i for i in read(loader(feed(packed=False)), 150) if i[0] == name]
        if not packed:
            assert mine == plain[: len(mine)]
    assert shares(tail[60:])["a"] == pytest.approx(0.75, abs=0.06)
    assert shares(head)["a"] == pytest.approx(0.5, abs=0.12)
    if not packed:
        assert shares(tail)["a"] == pytest.approx(0.75, abs=2.7 / len(tail))  # at once


# C31 C33 E47
@pytest.mark.parametrize("packed", [False, True])
def test_states_behind_a_change_go_on_at_any_layout_and_say_what_changed(packed, tmp_path):
    run = loader(feed(packed=packed), ledger=tmp_path)
    steps = iter(run)
    read(steps, 11)
    state = run.state_dict()
    read(steps, 5)  # rolled back
    run.close()
    changed = loader(feed(packed=packed), ledger=tmp_path)
    changed.load_state_dict(state, mix={"a": 1, "b": 4})
    steps = iter(changed)
    middle = read(steps, 9)
    second = changed.state_dict()
    assert second["changes"]
    assert second["fingerprint"] != state["fingerprint"]
    assert sum(len(k) + len(v) for k, v in second.items()) < 1000
    rest = read(steps, 20)
    changed.close()
    two = [loader(feed(packed=packed), world=2, rank=r, ledger=tmp_path) for r in range(2)]
    for rank in two:
        rank.load_state_dict(second)  # the state brings the weights
    parts = [list(islice(rank, 10)) for rank in two]
    again = [i for pair in zip(*parts, strict=True) for b in pair for row in b.info.ids for i in row]
    assert again == rest
    for rank in two:
        rank.close()
    whole = loader(feed(packed=packed))
    whole.load_state_dict(state, mix={"a": 1, "b": 4})
    assert read(whole, 29) == middle + again  # the same change, the same order
    verdict = verify_ledger(tmp_path, feed(packed=packed))
    assert verdict.problems == []
    assert verdict.steps == 11 + 9 + 10
    assert verdict.superseded > 0


def test_the_state_stays_small_with_hundreds_of_sources_whose_weights_changed():
    names, draw = [f"crawl-2026-{i:03d}" for i in range(300)], np.random.default_rng(5)

    def many(weights):
        rows = {n: tw.from_dataset([{"input_ids": [k + 1] * 4, "id": f"{n}/{k}"} for k in range(4)]) for n in names}
        return tw.mix(rows, weights=weights, on_exhausted="repeat").shuffle().batch(2)

    first = dict.fromkeys(names, 1)
    run = loader(many(first))
    read(run, 9)
    new = {n: round(float(w), 4) for n, w in zip(names, draw.uniform(0.0001, 0.02, 300), strict=True)}
    state = run.state_dict()
    run = loader(many(first))
    run.load_state_dict(state, mix=new)
    steps = iter(run)
    read(steps, 5)
    small = run.state_dict()
    assert sum(len(k) + len(v) for k, v in small.items()) < 1000
    again = loader(many(first))
    again.load_state_dict(small)
    assert read(again, 20) == read(steps, 20)
    assert again.state_dict()["changes"] == small["changes"]
    with pytest.raises(StateError, match="'changes' of the state cannot be read"):
        loader(many(first)).load_state_dict({**small, "changes": small["changes"][:-8]})


def test_states_of_older_versions_with_names_in_their_changes_still_load():
    run = loader(feed())
    read(run, 5)
    run.load_state_dict(run.state_dict(), mix={"a": 1, "b": 3})
    steps = iter(run)
    read(steps, 4)
    state = run.state_dict()
    old = remix.written(run.node.compiled.changes)
    assert '"a":' in old
    again = loader(feed())
    again.load_state_dict({**state, "changes": old})
    assert read(again, 12) == read(steps, 12)


@pytest.mark.parametrize("rule", ["stop_all", "repeat", "stop_first", "without_repeat"])
@pytest.mark.parametrize("place", [20, 400])
def test_a_source_can_be_left_out_and_no_epoch_waits_for_it(rule, place):
    def run():
        return loader(feed(on_exhausted=rule))

    first = run()
    head = read(first, place)
    after = run()
    after.load_state_dict(first.state_dict(), mix={"a": 1, "b": 0})
    tail = read(steps := iter(after), 700 - place)
    assert set(shares(tail)) == {"a"}
    counts = Counter(i for i in head + tail if i[0] == "a")
    assert len(counts) == SIZES["a"]
    assert max(counts.values()) - min(counts.values()) <= 1
    again = run()
    again.load_state_dict(after.state_dict())
    assert read(again, 10) == read(steps, 10)


@pytest.mark.parametrize("rule", ["stop_all", "repeat"])
def test_a_source_can_be_added_where_the_change_begins_with_the_next_epoch(rule, monkeypatch):
    for name, size in {"a": 9, "b": 9, "c": 5}.items():
        monkeypatch.setitem(SIZES, name, size)
    run = loader(feed(packed=True, on_exhausted=rule))
    head = read(run, 3)  # inside the only block of epoch 0
    more = loader(feed("abc", packed=True, on_exhausted=rule))
    more.load_state_dict(run.state_dict(), mix={"a": 1, "b": 1, "c": 2}, new_data=["c"])
    tail = read(more, 60)
    assert len({i for i in tail if i[0] == "c"}) == 5
    first = [i for i in head + tail if i[0] != "c"][:18]
    assert len(set(first)) == 18


def test_new_weights_are_those_of_one_moment():
    run = loader(feed())
    with pytest.raises(ConfigError, match="one weight for each source"):
        run.load_state_dict(run.state_dict(), mix=[(0, {"a": 1, "b": 1}), (50, {"a": 1, "b": 2})])


def test_a_source_can_be_added_and_only_what_is_new_may_differ():
    run = loader(feed("ab"))
    head = read(run, 20)
    state = run.state_dict()
    with pytest.raises(StateError, match="data"):
        loader(feed("abc")).load_state_dict(state)
    with pytest.raises(ConfigError, match="new sources need weights"):
        loader(feed("abc")).load_state_dict(state, new_data=["c"])
    with pytest.raises(ConfigError, match="no source"):
        loader(feed("abc")).load_state_dict(state, mix={"a": 1, "b": 1, "c": 2}, new_data=["d"])
    more = loader(feed("abc"))
    more.load_state_dict(state, mix={"a": 1, "b": 1, "c": 2}, new_data=["c"])
    steps = iter(more)
    tail = read(steps, 40)
    assert "c" not in shares(head)
    assert shares(tail)["c"] == pytest.approx(0.5, abs=0.05)
    again = loader(feed("abc"))
    again.load_state_dict(more.state_dict())
    assert read(again, 10) == read(steps, 10)
    with pytest.raises(StateError):
        loader(feed("ab")).load_state_dict(more.state_dict())


def test_a_restart_of_the_epoch_goes_to_the_change():
    run = loader(feed())
    read(run, 20)
    changed = loader(feed())
    changed.load_state_dict(run.state_dict(), mix={"a": 1, "b": 1})
    first = read(changed, 6)
    assert read(changed, 6) == first  # broken off: the next `for` begins at the change, not at the epoch


@pytest.mark.parametrize(
    ("mix", "words"),
    [
        ({"a": 1}, "'b' has no weight"),
        ({"a": 1, "x": 2}, "'x'"),
        ({"a": -1, "b": 2}, "at least 0"),
        ({"a": 0, "b": 0}, "sum above 0"),
        ({"a": float("nan"), "b": 1}, "finite"),
    ],
)
def test_weights_that_mean_nothing_are_refused(mix, words):
    run = loader(feed())
    state = run.state_dict()
    with pytest.raises(ConfigError, match=words):
        run.load_state_dict(state, mix=mix)


def test_only_a_planned_mix_has_weights_to_change():
    plain = loader(source("a").batch(2))
    with pytest.raises(ConfigError, match="the feed has none"):
        plain.load_state_dict(plain.state_dict(), mix={"a": 1})
    stream = tw.Loader(tw.from_stream([{"input_ids": [1]}]).batch(1), return_tensors="np")
    with pytest.raises(ConfigError, match="the feed has none"):
        stream.load_state_dict(stream.state_dict(), mix={"a": 1})
