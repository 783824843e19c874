"""The loader on planned feeds: one order on any layout, places that can be saved, ends that are equal on all ranks."""

import json
import os
import subprocess
import sys
from itertools import islice

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import thalweg as tw
from planned_oracle import CAP, arguments, layouts
from thalweg.core.errors import ConfigError, StateError
from thalweg.testing import assert_resumes_everywhere


def source(lengths, name=""):
    rows = [{"input_ids": np.full(n, i % 90 + 1, np.int32), "id": f"{name}{i}"} for i, n in enumerate(lengths)]
    return tw.from_dataset(rows, id="id", fingerprint=f"{name}:{lengths}")


def build(lengths, size=1, **given):
    """A packed feed from the oracle's arguments."""
    parts = {name: source(v, name) for name, v in lengths.items()}
    if "weights" in given:
        feed = tw.mix(
            parts,
            weights=sorted(given["weights"], key=lambda x: x[0]),
            by=given["by"],
            at=given["at"],
            on_exhausted=given["on_exhausted"],
        )
    else:
        feed = next(iter(parts.values()))
    return feed.shuffle().pack(CAP, overlong="drop").batch(size)


def loader(feed, layout=(1, 1, 1), rank=0, **more):
    world, _, accumulation = layout
    topology = tw.Topology(rank=rank, world=world)
    return tw.Loader(feed, topology=topology, gradient_accumulation_steps=accumulation, return_tensors="np", **more)


def rows(batches):
    return [tuple(r) for b in batches for r in b.info.ids]


def step_rows(ranks, layout, count):
    """Rows of `count` steps in the order of the plan, out of the loaders of all ranks."""
    got = []
    iterators = [iter(r) for r in ranks]
    for _ in range(count):
        for m in range(layout[2]):
            batches = [next(i, None) for i in iterators]
            if batches[0] is None:
                assert batches == [None] * len(ranks)
                return got
            assert {b.info.micro for b in batches} == {m}
            assert {b.info.last for b in batches} == {m == layout[2] - 1}
            got += rows(batches)
    return got


@settings(max_examples=60, deadline=None)
@given(arguments(), st.lists(st.tuples(layouts, st.integers(0, 4)), min_size=1, max_size=4), layouts)
def test_legs_on_changing_layouts_equal_the_uninterrupted_order(given_arguments, legs, last):  # C18 E42 E47
    lengths, more = given_arguments
    assume(any(n <= CAP for v in lengths.values() for n in v))
    got, state = [], None
    for layout, count in [*legs, (last, 6)]:
        ranks = [loader(build(lengths, layout[1], **more), layout, r, epochs=None) for r in range(layout[0])]
        for r in ranks:
            if state is not None:
                r.load_state_dict(json.loads(state))
        got += step_rows(ranks, layout, count)
        states = {json.dumps(r.state_dict()) for r in ranks}
        assert len(states) == 1  # the same on all ranks
        state = states.pop()
        assert len(state) < 1000
    assert got == rows(islice(loader(build(lengths, **more), epochs=None), len(got)))


@settings(max_examples=60, deadline=None)
@given(arguments(), layouts, st.sampled_from([1, 2]), st.sampled_from(["drop", "carry", "pad", "repeat"]))
def test_all_ranks_take_equal_steps_and_len_says_how_many(given_arguments, layout, epochs, tail):  # C19 C33 E48 K33
    lengths, more = given_arguments
    if more.get("on_exhausted") == "repeat":
        return
    counts, weights = [], 0.0
    for r in range(layout[0]):
        one = loader(build(lengths, layout[1], **more), layout, r, epochs=epochs, tail=tail)
        expected = len(one)
        batches = list(one)
        assert len(batches) == expected
        assert expected % layout[2] == 0
        assert [b.info.step for b in batches] == [i // layout[2] for i in range(expected)]
        counts.append(len(batches))
        weights += sum(float(b.info.weight.sum()) for b in batches)
    assert len(set(counts)) == 1
    feed = build(lengths, **more)
    real = sum(len(loader(feed, epochs=e, tail="drop")) for e in [epochs])
    if tail in {"pad", "repeat"}:
        assert weights == real  # each real row once, filler and repeated rows weigh nothing


def plain(n=100, size=4):
    return source([1 + i % 7 for i in range(n)]).shuffle().batch(size)


def test_resumes_everywhere_packed_mixed_and_padded():  # K26
    lengths = {"a": [3, 5, 7, 9, 11, 2, 4] * 3, "b": [1, 8, 16, 5] * 4}
    mixed = {"weights": [(0, {"a": 2, "b": 1})], "by": "tokens", "at": "samples", "on_exhausted": "stop_first"}
    feeds = [build(lengths, 2, **mixed), build({"a": lengths["a"]}), plain(23, 4), plain(9, 2)]
    for feed in feeds:
        assert_resumes_everywhere(lambda feed=feed: loader(feed, epochs=2))


@pytest.mark.parametrize("size", [1, 8])
def test_states_at_the_boundaries_go_on_to_the_same_three_epochs(size):  # K26
    feed = source([1 + i % 5 for i in range(100)]).shuffle(1).batch(size)

    class Counted:
        def __init__(self, state=None):
            self.loader = loader(feed)
            if state is not None:
                self.loader.load_state_dict(json.loads(json.dumps(state)))
                assert self.loader.state_dict() == state  # save(load(s)) == s

        def to_the_end(self):
            out = []
            while int(self.loader.state_dict()["epoch"]) < 3:
                out += [(b.info.epoch, b.info.step, *rows([b])) for b in self.loader]
            return out

    whole = Counted().to_the_end()
    assert [len({e for e, *_ in whole}), len(whole)] == [3, 3 * (100 // size)]
    states, before = [(loader(feed).state_dict(), 0)], []
    one = loader(feed)
    for epoch in range(2):
        iterator = iter(one)
        states.append((one.state_dict(), len(before)))
        for b in iterator:
            before.append((b.info.epoch, b.info.step, *rows([b])))
            states.append((one.state_dict(), len(before)))
        states.append((one.state_dict(), len(before)))
        assert one.epoch == epoch
    for state, count in states[:3] + states[-15:] + states[len(states) // 2 - 2 : len(states) // 2 + 2]:
        assert before[:count] + Counted(state).to_the_end() == whole


def test_breaking_off_every_epoch_starts_the_next_one_at_its_beginning():  # K32
    feed = source([1] * 16).shuffle().batch(4)
    one = loader(feed)
    uninterrupted = [rows(one) for _ in range(4)]
    two = loader(feed)
    list(two)
    list(islice(two, 2))
    resumed = loader(feed)
    resumed.load_state_dict(two.state_dict())
    assert rows(resumed) == uninterrupted[1][8:]
    assert [rows(resumed), rows(resumed)] == uninterrupted[2:]
    broken = loader(feed)
    for _ in range(3):  # always three of four batches: the same epoch anew
        assert rows(islice(broken, 3)) == uninterrupted[0][:12]
    broken.set_epoch(1)
    assert rows(islice(broken, 3)) == uninterrupted[1][:12]


def test_new_epochs_reach_every_layer():  # K49 E12 E14 E45 E46
    lengths = {"a": [3, 5, 7, 9] * 8, "b": [4, 6] * 16}
    more = {"weights": [(0, {"a": 1, "b": 1})], "by": "samples", "at": "samples", "on_exhausted": "stop_all"}

    def fn(sample, info):
        return {"input_ids": sample["input_ids"] * 0 + int(info.rng.integers(1000))}

    def values(epoch=None, state=None, world=1, rank=0):
        feed = build(lengths, 2, **more)
        parts = {n: f.map(fn, with_info=True, length="same") for n, f in feed.stages[0].feeds}
        mapped = (
            tw.mix(parts, weights=more["weights"], on_exhausted="stop_all")
            .shuffle(1)
            .pack(CAP, overlong="drop")
            .batch(2)
        )
        one = loader(mapped, (world, 2, 1), rank)
        if epoch is not None:
            one.set_epoch(epoch)
        return [[(b.info.ids, b["input_ids"].tolist()) for b in one] for _ in range(3 if epoch is None else 1)]

    first = values()
    assert first == values()  # the same again, random numbers too
    assert first[0] != first[1] != first[2]
    assert values(epoch=2) == first[2:]
    for epoch in range(3):
        ranks = [values(epoch, world=2, rank=r)[0] for r in range(2)]
        got = [row for a, b in zip(*ranks, strict=True) for ids, _ in (a, b) for row in ids]
        assert got == [row for ids, _ in first[epoch] for row in ids][: len(got)]


def test_fewer_samples_than_ranks():  # K33
    feed = source([4, 4, 4]).shuffle().batch(1)
    assert [len(list(loader(feed, (7, 1, 1), r))) for r in range(7)] == [0] * 7
    for tail in ("pad", "repeat", "carry"):
        batches = [list(loader(feed, (7, 1, 1), r, tail=tail)) for r in range(7)]
        assert [len(b) for b in batches] == [1] * 7
    padded = [next(iter(loader(feed, (7, 1, 1), r, tail="pad"))) for r in range(7)]
    assert [float(b.info.weight.sum()) for b in padded] == [1, 1, 1, 0, 0, 0, 0]
    assert all((b["labels"] == -100).all() for b in padded[3:])
    with pytest.raises(ConfigError, match=r"3 rows and a step takes 7.*carry, pad or repeat"):
        next(iter(loader(feed, (7, 1, 1), epochs=None, tail="drop")))
    with pytest.raises(ConfigError, match="no row"):
        next(iter(loader(source([]).batch(1), epochs=None)))
    one = tw.mix({"A": source([5], "A"), "B": source([5] * 100, "B")}, on_exhausted="stop_all").shuffle().batch(1)
    whole = rows(loader(one))
    ranks = [loader(one, (4, 1, 1), r) for r in range(4)]
    head = step_rows(ranks, (4, 1, 1), 3)
    state = ranks[0].state_dict()
    again = [loader(one, (4, 1, 1), r) for r in range(4)]
    for r in again:
        r.load_state_dict(state)
    got = head + step_rows(again, (4, 1, 1), 10**6)
    assert got == whole[: len(got)]  # A stays A
    assert len(whole) - len(got) < 4


def test_another_feed_is_refused_with_the_first_difference_named():
    state = loader(plain(40)).state_dict()
    others = {
        "data": plain(41),
        "seed": source([1 + i % 7 for i in range(40)]).shuffle(5).batch(4),
        "pack": source([1 + i % 7 for i in range(40)]).shuffle().pack(16).batch(4),
    }
    for part, other in others.items():
        with pytest.raises(StateError, match=f"part '{part}'"):
            loader(other).load_state_dict(state)
    with pytest.raises(StateError, match="part 'seed'"):
        loader(plain(40), seed=1).load_state_dict(state)


def test_micro_batch_and_accumulation_may_change_on_resume_and_the_code_of_a_map_warns():
    from thalweg.feed.identity import StateWarning

    state = loader(source([3] * 40).shuffle().map(lambda s: s).batch(4)).state_dict()
    with pytest.warns(StateWarning, match="code of a map"):
        loader(source([3] * 40).shuffle().map(lambda s: {**s}).batch(2)).load_state_dict(state)


def test_global_batch_size_decides_the_accumulation_or_is_refused():
    one = tw.Loader(plain(64, 4), topology=tw.Topology(rank=0, world=2), global_batch_size=32, return_tensors="np")
    assert one.options.accumulation == 4
    with pytest.raises(ConfigError, match="a multiple of 8"):
        tw.Loader(plain(64, 4), topology=tw.Topology(rank=0, world=2), global_batch_size=12)
    with pytest.raises(ConfigError, match="one of the two"):
        tw.Loader(plain(64, 4), gradient_accumulation_steps=3, global_batch_size=16)


def test_endless_and_streams_have_no_len():
    with pytest.raises(TypeError, match="max_steps"):
        len(loader(plain(), epochs=None))
    with pytest.raises(ConfigError, match="never ends an epoch"):
        loader(tw.mix({"a": source([1])}, on_exhausted="repeat").batch(1))
    with pytest.raises(ConfigError, match=r"stream.*cache"):
        loader(source([1]).map(lambda s: s).pack(8, overlong="drop").batch(1), require="planned")


def test_max_steps_ends_the_run():
    one = loader(plain(), epochs=None, max_steps=30)
    assert len(list(one)) == 30
    assert list(one) == []
    assert one.step == 30


def test_peek_moves_nothing():
    one = loader(plain(20, 4))
    ahead = one.peek().info.ids
    assert next(b.info.ids for b in one) == ahead
    iterator = iter(one)
    next(iterator)
    state, ahead = one.state_dict(), one.peek().info.ids
    assert one.state_dict() == state
    assert next(iterator).info.ids == ahead


def test_set_epoch_of_the_running_epoch_changes_nothing():
    one = loader(plain(20, 4))
    iterator = iter(one)
    next(iterator)
    state = one.state_dict()
    one.set_epoch(0)
    assert one.state_dict() == state
    assert len(list(iterator)) == 4


def test_an_evaluation_beside_training_leaves_it_alone():
    train, whole = loader(plain(40, 4)), [b.info.ids for b in loader(plain(40, 4))]
    got = []
    for i, b in enumerate(train):
        got.append(b.info.ids)
        if i in {2, 5}:
            val = loader(plain(12, 4), tail="pad")
            list(islice(val, 1))
            assert sum(float(v.info.weight.sum()) for v in val) == 12  # a broken-off evaluation starts anew
    assert got == whole


def test_step_label_tokens_are_those_of_all_ranks_and_micro_batches():
    lengths = {"a": [3, 5, 7, 9, 2, 16, 4] * 6}
    layout = (2, 1, 2)
    batches = [list(loader(build(lengths), layout, r)) for r in range(2)]
    for s in range(len(batches[0]) // 2):
        step = [b for part in batches for b in part[2 * s : 2 * s + 2]]
        assert {b.info.step_label_tokens for b in step} == {sum(b.info.num_label_tokens for b in step)}


def test_a_closed_loader_says_so_and_closing_twice_is_fine():
    one = loader(plain())
    next(iter(one))
    one.close()
    one.close()
    with pytest.raises(ConfigError, match="closed"):
        iter(one)


HUGE = """
import resource, sys
import numpy as np
from thalweg.core.sample import Ragged
from thalweg.core.topology import Topology
from thalweg.feed.feed import Feed
from thalweg.feed.loader import FeedLoader
from thalweg.feed.stages import From

class Faked:
    fingerprint, columns, lineage = "faked", ("input_ids",), {}
    def __init__(self, n):
        self.n, self.lengths = n, np.broadcast_to(np.int32(7), (n,))
        self.facts = {"length": self.lengths}
    def __len__(self):
        return self.n
    def read(self, indices, _columns=None):
        return {"input_ids": Ragged(np.repeat(indices, 7).astype(np.int32), np.arange(len(indices) + 1) * 7)}
    def ids(self, indices):
        return [str(i) for i in indices.tolist()]
    def id_hashes(self, indices):
        return indices.astype(np.uint64)

n = int(sys.argv[1])
plain = Feed((From(Faked(n), "faked"),)).shuffle()
for feed in (plain.batch(2), plain.pack(64).batch(2)):
    loader = FeedLoader(feed, topology=Topology(rank=3, world=8), epochs=None)
    state = loader.state_dict()
    block = loader.node.compiled.order.num_blocks(2) // 2  # in the middle of the third epoch
    first = loader.node.compiled.order.bounds(2, block)[0]
    place = {"epoch": "2", "block": str(block), "row": "1", "row_in_epoch": str(first), "rows_before": "0", "step": "9"}
    loader.load_state_dict({**state, **place})
    batches = iter(loader)
    ids = [next(batches)["input_ids"].max() for _ in range(3)]
    assert len(set(map(int, ids))) == 3
    loader.close()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.slow
def test_the_middle_of_a_plan_of_a_hundred_million_takes_no_more_memory_than_that_of_a_million(tmp_path):  # E37
    used = [
        int(
            subprocess.run(
                [sys.executable, "-c", HUGE, str(n)], capture_output=True, text=True, check=True,
                env={**os.environ, "THALWEG_CACHE": str(tmp_path)},
            ).stdout
        )
        for n in (10**6, 10**8)
    ]  # fmt: skip
    assert used[1] <= used[0] + 64
