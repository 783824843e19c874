"""Promises of streams: order, bounds and exact resume of the whole chain."""

import json
import threading

import numpy as np
import pytest

import thalweg as tw
from thalweg.core.errors import ConfigError, StateError
from thalweg.core.topology import Topology
from thalweg.feed.loader import FeedLoader
from thalweg.feed.open import from_stream
from thalweg.feed.streamstate import merge_states
from thalweg.testing.resume import assert_resumes_everywhere


@pytest.fixture(autouse=True)
def no_thread_left():
    yield
    for t in threading.enumerate():
        if t.name.startswith("thalweg-"):
            t.join(60)
    assert [t.name for t in threading.enumerate() if t.name.startswith("thalweg-")] == []


def samples(n=60, seed=0, longest=12):
    lengths = np.random.default_rng(seed).integers(1, longest, n)
    return [{"input_ids": np.full(k, i, np.int32)} for i, k in enumerate(lengths)]


def keep_some(sample):
    return None if sample["input_ids"][0] % 3 == 0 else sample


def grow(sample):
    n = int(sample["input_ids"][0]) % 5
    return [{"input_ids": sample["input_ids"][: k + 1]} for k in range(n)]


def grow_one_by_one(sample):
    yield from grow(sample)


def halves(columns):
    out = []
    for ids in columns["input_ids"]:
        if ids[0] % 7:
            out += [ids[: len(ids) // 2 + 1], ids]
    return {"input_ids": out}


def doubled_or_refused(columns):
    if any(ids[0] in (3, 10, 11) for ids in columns["input_ids"]):
        raise ValueError("refused")
    return {"input_ids": [2 * ids for ids in columns["input_ids"]]}


WORKERS = {"inline": {}, "threads": {"workers": 2}, "processes": {"workers": 1}}


def halves_or_refused(columns):
    if any(ids[0] % 5 == 2 for ids in columns["input_ids"]):
        raise ValueError("refused")
    return halves(columns)


BROKEN = set()
CHAINS = {
    "plain": lambda f: f.batch(3, collate="raw"),
    "filter": lambda f: f.filter(lambda s: s["input_ids"][0] % 4 != 1).batch(3, collate="raw"),
    "drop": lambda f: f.map(keep_some, mode="threads", workers=3).batch(3, collate="raw"),
    "grow": lambda f: f.map(grow, mode="threads", workers=3).batch(4, collate="raw"),
    "one_by_one": lambda f: f.map(grow_one_by_one, mode="threads", workers=3).batch(4, collate="raw"),
    "inline": lambda f: f.map(grow_one_by_one, mode="inline").batch(4, collate="raw"),
    "batched": lambda f: f.map(halves, batched=5, mode="threads", workers=2).batch(3, collate="raw"),
    "refused": lambda f: f.map(
        halves_or_refused, batched=4, mode="threads", workers=2, on_error="skip", max_bad=0.9
    ).batch(3, collate="raw"),
    "window": lambda f: f.shuffle(3, buffer_size=7).batch(2, collate="raw"),
    "window_behind_map": lambda f: f.map(grow).shuffle(3, buffer_size=7).batch(2, collate="raw"),
    "fill": lambda f: f.pack(16, policy="fill", overlong="drop").batch(2),
    "next_fit": lambda f: f.pack(16, policy="next_fit", overlong="truncate").batch(2),
    "window_5": lambda f: f.pack(16, policy="window_5", overlong="alone").batch(2),
    "concat_split": lambda f: f.pack(16, policy="concat_split").batch(2),
    "split": lambda f: f.pack(5, policy="fill", overlong="split").batch(3),
    "whole": lambda f: (
        f.shuffle(1, buffer_size=9)
        .map(grow, mode="threads", workers=3)
        .filter(lambda s: len(s["input_ids"]) != 2)
        .map(halves, batched=4, mode="threads", workers=2)
        .pack(16, policy="fill", overlong="drop")
        .batch(2)
    ),
}


def loader(feed, rank=0, world=1, **more):
    return FeedLoader(feed, topology=Topology(rank, world), **more)


def seen(batch):
    """What a batch holds, comparable: ids and tokens."""
    tokens = batch["samples"] if "samples" in batch else batch["input_ids"]
    return batch.info.ids, json.dumps([t["input_ids"].tolist() if isinstance(t, dict) else t.tolist() for t in tokens])


def legs(make, states, k):
    """Continue from state k and give what comes."""
    it = make()
    it.load_state_dict(json.loads(json.dumps(states[k])))
    return [seen(b) for b in it], it


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("name", CHAINS)
def test_every_stage_resumes_after_every_batch(name, shards):
    # A51 K28 K30: the next item is the next item, with nothing lost or twice, also between the outputs of one input
    def make():
        return loader(CHAINS[name](from_stream(samples(), shards=shards)), tail="pad", prefetch=3)

    whole, states = [], []
    run = make()
    states.append(run.state_dict())
    for batch in run:
        whole.append(seen(batch))
        states.append(run.state_dict())
    following = [seen(b) for b in run]
    run.close()
    assert len(whole) > 4
    for k in range(len(states)):
        rest, it = legs(make, states, k)
        assert rest == (whole[k:] or following), (name, k)  # after the last batch the place is the next epoch
        it.close()


def test_the_oracle_of_resuming_finds_nothing():
    # A51
    def make():
        return loader(CHAINS["whole"](from_stream(samples(70))), prefetch=2)

    assert len(assert_resumes_everywhere(make)) > 3


@pytest.mark.parametrize("name", CHAINS)
def test_order_is_the_same_inline_with_threads_and_twice(name):
    # A2 A50: workers decide only how long it takes
    def ids(workers):
        run = loader(CHAINS[name](from_stream(samples(), shards=2)), workers=workers)
        out = [seen(b) for b in run]
        run.close()
        return out

    first = ids("auto")
    assert first == ids(0) == ids(3) == ids("auto")


def raw_ids(feed, rank, world, **more):
    run = loader(feed, rank, world, tail="pad", **more)
    out = [i for b in run for row in b.info.ids for i in row]
    run.close()
    return out


@pytest.mark.parametrize("world", range(1, 9))
def test_a_rank_reads_every_world_th_item_and_maps_no_other(world):
    # A34 A35 A36 A37 A41
    calls = []

    def fn(sample):
        calls.append(int(sample["input_ids"][0]))
        return None if sample["input_ids"][0] % 11 == 0 else sample

    feed = from_stream(samples(50)).map(fn, mode="threads", workers=2).batch(1, collate="raw")
    parts = [raw_ids(feed, r, world) for r in range(world)]
    for r, part in enumerate(parts):
        assert part == [str(i) for i in range(50) if i % world == r and i % 11]
    assert sorted(calls) == list(range(50))


def test_the_worked_example_of_two_ranks():
    # A40: s2 is done long before s0, and waits for it
    late = threading.Event()

    def fn(sample):
        i = int(sample["value"][1])
        if i == 0:
            assert late.wait(20)
        if i == 2:
            late.set()
        return {"value": sample["value"].upper()}

    feed = from_stream([f"s{i}" for i in range(6)]).map(fn, mode="threads", workers=2).batch(1, collate="raw")
    first = loader(feed, 0, 2)
    assert [b["samples"][0]["value"] for b in first] == ["S0", "S2", "S4"]
    first.close()
    late.set()
    second = loader(feed, 1, 2)
    assert [b["samples"][0]["value"] for b in second] == ["S1", "S3", "S5"]
    second.close()


@pytest.mark.parametrize("name", ["plain", "drop", "grow", "window", "fill", "whole"])
@pytest.mark.parametrize("worlds", [(4, 1, 2), (1, 4), (2, 4, 1)])
def test_any_number_of_ranks_that_divides_the_sub_streams_continues(name, worlds):
    # A51 A41: sub-stream by sub-stream, the legs give what one uninterrupted run gives
    feed = CHAINS[name](from_stream(samples(80), shards=4)).stages
    feed = tw.feed.feed.Feed((*feed[:-1],)).batch(1, collate="raw")

    def by_sub(run, steps, out):
        batches = iter(run)
        for _ in range(steps):
            batch = next(batches, None)
            if batch is None:
                return
            for row in batch.info.ids:
                out.setdefault(int(row[0].partition(":")[0]) % 4, []).append(row)

    whole, state = {}, None
    by_sub(loader(feed), 10_000, whole)
    legs_ = {}
    for world in worlds:
        states = []
        for rank in range(world):
            run = loader(feed, rank, world)
            if state is not None:
                run.load_state_dict(state)
            by_sub(run, 3 if world != worlds[-1] else 10_000, legs_)
            states.append(run.state_dict())
            run.close()
        if world != worlds[-1]:
            state = merge_states(states)
    assert legs_ == whole


def test_a_state_that_lacks_a_sub_stream_is_refused_with_both_numbers():
    feed = from_stream(samples(), shards=4).batch(1, collate="raw")
    half = loader(feed, 0, 2).state_dict()
    with pytest.raises(StateError, match=r"sub-streams 0, 2 of 4, and this rank needs 0, 1, 2, 3"):
        loader(feed).load_state_dict(half)
    other = from_stream(samples(), shards=2).batch(1, collate="raw")
    with pytest.raises(StateError, match="4 sub-streams and this feed 2"):
        loader(other).load_state_dict(half)
    with pytest.raises(ConfigError, match="3 ranks do not divide 4"):
        loader(feed, 0, 3)


def test_a_state_of_another_feed_is_refused_and_of_other_code_warned():
    def feed(size=7, fn=keep_some):
        return from_stream(samples()).shuffle(buffer_size=size).map(fn).batch(1, collate="raw")

    state = loader(feed()).state_dict()
    with pytest.raises(StateError, match="stages"):
        loader(feed(8)).load_state_dict(state)
    with pytest.raises(StateError, match="seed"):
        loader(feed(), seed=1).load_state_dict(state)
    with pytest.warns(UserWarning, match="code of a map"):
        loader(feed(fn=grow)).load_state_dict(state)


@pytest.mark.parametrize("workers", [0, 2])
def test_each_epoch_has_its_own_order_and_the_same_samples(workers):
    # A23 A49 C27 K49
    feed = from_stream(samples(64), shards=2).shuffle(buffer_size=16).map(lambda s: s).batch(1, collate="raw")
    run = loader(feed, workers=workers, seed=1)
    epochs = [[i for b in run for row in b.info.ids for i in row] for _ in range(3)]
    run.close()
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(epochs[2]) == sorted(map(str, range(64)))
    assert len({tuple(e) for e in epochs}) == 3
    again = loader(feed, workers=0, seed=1)
    again.set_epoch(2)
    assert [i for b in again for row in b.info.ids for i in row] == epochs[2]
    again.close()


def test_peek_gives_the_next_batch_and_moves_nothing():
    feed = CHAINS["whole"](from_stream(samples(70), shards=2))
    run = loader(feed)
    whole = [seen(b) for b in run]
    again = loader(feed)
    state = again.state_dict()
    assert seen(again.peek()) == seen(again.peek()) == whole[0]
    assert again.state_dict() == state
    got = []
    for batch in again:
        got.append(seen(batch))
        if len(got) < len(whole):
            assert seen(again.peek()) == whole[len(got)]
        if len(got) == 2:
            state = again.state_dict()
    assert got == whole
    third = loader(feed)
    third.load_state_dict(state)
    assert seen(third.peek()) == whole[2]
    assert [seen(b) for b in third] == whole[2:]
    for r in (run, again, third):
        r.close()


@pytest.mark.parametrize("size", [60, 600])
def test_a_printed_stream_says_what_its_window_holds_and_how_far_it_moves_samples(size):
    # A49 E13: more is more random, and costs as much more memory
    read = []

    def source():
        for i in range(3000):
            read.append(i)
            yield i

    feed = from_stream(source).shuffle(5, buffer_size=size).batch(1, collate="raw")
    assert f"blocks of {size} samples, held in memory" in str(feed)
    assert f"moves by {size // 3} places" in str(feed)
    run = loader(feed, workers=0, tail="pad")
    order = []
    for batch in run:
        order += [int(i) for row in batch.info.ids for i in row]
        assert len(read) - len(order) < size
    run.close()
    moved = np.abs(np.array(order) - np.arange(3000)).mean()
    assert abs(moved - size / 3) < size / 30
    assert all(abs(i - j) < size for j, i in enumerate(order))
    assert "blocks of 10,000 samples" in str(from_stream(source).shuffle())


def test_random_numbers_of_a_sample_are_the_same_on_any_worker_rank_and_resume():
    # K49
    def fn(sample, info):
        return {"value": float(info.rng.random())}

    feed = from_stream(list(range(24)), shards=4).map(fn, with_info=True, mode="threads", workers=3)
    feed = feed.batch(1, collate="raw")

    def drawn(rank=0, world=1, workers="auto", epoch=0):
        run = loader(feed, rank, world, workers=workers)
        run.set_epoch(epoch)
        out = {b.info.ids[0][0]: b["samples"][0]["value"] for b in run}
        run.close()
        return out

    whole = drawn()
    assert len(set(whole.values())) == 24
    assert drawn(workers=0) == whole
    assert {k: v for r in range(4) for k, v in drawn(r, 4).items()} == whole
    assert not set(drawn(epoch=1).values()) & set(whole.values())


def test_the_packer_example_of_eight_documents_keeps_its_order_after_each_pack():
    # K30: capacity 10, lengths 6, 3, 4, 5, 1, 10, 2, 9
    lengths = [6, 3, 4, 5, 1, 10, 2, 9]
    data = [{"input_ids": np.full(n, i, np.int32)} for i, n in enumerate(lengths)]

    def make():
        return loader(from_stream(data).pack(10, policy="next_fit", overlong="error").batch(1), epochs=1, tail="pad")

    run = make()
    for _epoch in range(3):
        states, packs = [run.state_dict()], []
        for batch in run:
            packs.append(batch.info.ids[0])
            states.append(run.state_dict())
        assert packs[0] == ["0", "1"]
        assert packs[1][0] == "2"
        assert sorted(i for p in packs for i in p) == sorted(map(str, range(8)))
        for k, state in enumerate(states):
            again = make()
            again.load_state_dict(state)
            assert [b.info.ids[0] for b in again] == (packs[k:] or packs)  # after the last: the next epoch
            again.close()
    run.close()


def test_fewer_samples_than_ranks_is_an_end_not_a_wait():
    # K33
    feed = from_stream(samples(3)).batch(1, collate="raw")
    counts = [len(raw_ids(feed, r, 7)) for r in range(7)]
    assert counts == [1, 1, 1, 0, 0, 0, 0]


def test_a_stream_that_leaves_everything_out_raises_within_one_pass():
    read = []

    def source():
        for s in samples(30):
            read.append(1)
            yield s

    feed = from_stream(source).filter(lambda s: False).batch(1, collate="raw")
    run = loader(feed, epochs=None)
    with pytest.raises(tw.ThalwegError, match="gave no row: 30 items were read"):
        next(iter(run))
    assert len(read) == 30
    run.close()


def test_an_error_arrives_after_all_earlier_rows_and_the_state_stands_before_it():
    # A18 A20
    BROKEN.add(1)

    def fn(sample):
        if BROKEN and sample["input_ids"][0] == 17:
            raise LookupError("17")
        return sample

    feed = from_stream(samples()).map(fn, mode="threads", workers=4).batch(1, collate="raw")
    run = loader(feed)
    got = []
    with pytest.raises(LookupError) as caught:
        [got.append(b.info.ids[0][0]) for b in run]
    assert got == [str(i) for i in range(17)]
    assert caught.value.__notes__ == ["while mapping sample '17'"]
    state = run.state_dict()
    run.close()
    BROKEN.clear()
    again = loader(feed)
    with pytest.warns(UserWarning, match="code of a map"):  # the function sees another value: said, not refused
        again.load_state_dict(state)
    assert next(iter(again)).info.ids == [["17"]]
    again.close()


def test_bad_samples_are_counted_kept_aside_and_limited(tmp_path):
    def fn(sample):
        if sample["input_ids"][0] % 7 == 0:
            raise ValueError("seven")
        return sample

    def run(**more):
        feed = from_stream(samples(100)).map(fn, mode="threads", workers=3, **more).batch(1, collate="raw")
        made = loader(feed)
        ids = [b.info.ids[0][0] for b in made]
        stats = made.stats()["1 map"]
        made.close()
        return ids, stats

    ids, stats = run(on_error="skip", max_bad=20)
    assert ids == [str(i) for i in range(100) if i % 7]
    assert stats["dropped"] == {"failed": 15}
    assert stats["in"] == stats["out"] + 15
    ids, stats = run(on_error="quarantine", quarantine=str(tmp_path / "bad"), max_bad=0.2)
    assert stats["quarantined"] == 15
    lines = [json.loads(x) for p in (tmp_path / "bad").iterdir() for x in p.read_text().splitlines()]
    assert [x["id"] for x in lines] == [str(i) for i in range(0, 100, 7)]
    assert "seven" in lines[0]["traceback"]
    assert lines[3]["sample"]["input_ids"][0] == 21
    with pytest.raises(tw.ThalwegError, match=r"6 of 36 samples failed .*max_bad=5"):
        run(on_error="skip", max_bad=5)


@pytest.mark.parametrize("ahead", [8, None])
def test_memory_is_bounded_while_the_first_sample_is_slow(ahead):
    # A24
    hold, read = threading.Event(), []

    def source():
        for i in range(100_000):
            read.append(i)
            yield i

    def fn(sample):
        if sample["value"] == 0:
            hold.wait(20)
        return sample

    words = {} if ahead is None else {"ahead": ahead}
    run = loader(from_stream(source).map(fn, mode="threads", workers=8, **words).batch(1, collate="raw"))
    first, bound = [], ahead or 128
    consumer = threading.Thread(target=lambda: first.append(next(iter(run))))
    consumer.start()
    while len(read) < bound:
        threading.Event().wait(0.001)
    threading.Event().wait(0.05)
    assert len(read) == bound
    hold.set()
    consumer.join(20)
    assert first[0].info.ids == [["0"]]
    run.close()


def test_a_batched_function_gets_every_column_that_any_of_its_samples_has():
    # nothing is lost without a word: the first sample of a call need not have the columns of the others
    data = [{"a": 1}, {"a": 2, "b": 5}, {"b": 6}, {"a": 3}]
    seen = []

    def fn(columns):
        seen.append(columns)
        return {"c": [0 if b is None else b for b in columns["b"]]}

    run = loader(from_stream(data).map(fn, batched=3, mode="inline").batch(1, collate="raw"), tail="pad")
    with pytest.raises(KeyError):  # the last call has no sample with this column
        out = []
        [out.append(b["samples"][0]) for b in run]
    assert seen[0] == {"a": [1, 2, None], "b": [None, 5, 6]}
    assert out == [{"a": 1, "b": None, "c": 0}, {"a": 2, "b": 5, "c": 5}, {"a": None, "b": 6, "c": 6}]
    run.close()


@pytest.mark.parametrize("mode", ["inline", "threads", "processes"])
def test_of_a_group_that_fails_only_the_bad_samples_are_left_out(tmp_path, mode):
    data = [{"input_ids": np.array([k, k], np.int32)} for k in range(20)]
    aside = tmp_path / "bad"
    for rule, words in (("skip", {}), ("quarantine", {"quarantine": str(aside)})):
        feed = from_stream(data).map(
            doubled_or_refused, batched=8, mode=mode, on_error=rule, max_bad=3, **words, **WORKERS[mode]
        )
        run = loader(feed.batch(1, collate="raw"), tail="pad")
        ids = [(i, int(b["samples"][0]["input_ids"][0])) for b in run for i in b.info.ids[0]]
        assert ids == [(str(k), 2 * k) for k in range(20) if k not in {3, 10, 11}]
        tally = next(v for v in run.stats().values() if isinstance(v, dict) and v.get("out") == 17)
        assert tally["in"] == 20
        assert (tally["quarantined"] if rule == "quarantine" else tally["dropped"]["failed"]) == 3
        run.close()
    assert sum(len(p.read_text().splitlines()) for p in aside.rglob("*.jsonl")) == 3


def test_a_window_larger_than_what_may_be_ahead_does_not_stop_the_map():
    # model `holding`: a stage that holds samples never holds the map's room
    feed = from_stream(samples(300)).map(lambda s: s, mode="threads", workers=2).shuffle(buffer_size=200)
    assert len(raw_ids(feed.batch(1, collate="raw"), 0, 1)) == 300


def test_little_room_in_bytes_changes_nothing_but_speed():
    # model `head_free`
    feed = CHAINS["whole"](from_stream(samples()))
    runs = [loader(feed, max_bytes=size) for size in (1, 2000, "1GB")]
    out = [[seen(b) for b in run] for run in runs]
    assert out[0] == out[1] == out[2]
    for run in runs:
        run.close()


def test_the_books_of_a_function_balance_whenever_they_are_looked_at():
    rows = [{"input_ids": [n]} for n in range(30)]
    keep = from_stream(rows).map(lambda s: s if s["input_ids"][0] % 3 else None, mode="inline")
    loader = FeedLoader(keep.batch(1), topology=Topology(), workers=0)
    for _ in loader:
        books = loader.stats()["1 map"]
        assert books["in"] + books["made"] == books["out"] + sum(books["dropped"].values()) + books["quarantined"]
