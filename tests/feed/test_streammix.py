"""Promises of streams put together: concat and mix, their shares, their ends, and exact resume."""

import json
import math
from collections import Counter

import numpy as np
import pytest

import thalweg as tw
from thalweg.core.errors import ConfigError, StateError
from thalweg.core.topology import Topology
from thalweg.feed.loader import FeedLoader
from thalweg.feed.streamstate import merge_states
from thalweg.testing import assert_resumes_everywhere


def part(name, n, shards=None, **words):
    rows = [{"input_ids": np.full(1 + i % 4, i, np.int32), "n": i, "of": name} for i in range(n)]
    return tw.from_stream(rows, shards=shards, **words)


def loader(feed, rank=0, world=1, **more):
    return FeedLoader(feed, topology=Topology(rank, world), **more)


def read(feed, rank=0, world=1, epochs=1, **more):
    run = loader(feed.batch(1, collate="raw"), rank, world, tail="pad", **more)
    out = [[(b["samples"][0]["of"], b["samples"][0]["n"]) for b in run] for _ in range(epochs)]
    run.close()
    return out[0] if epochs == 1 else out


def odd(sample):
    return sample["n"] % 2 == 1


def thirds(sample):
    return sample["n"] % 3 != 1


def twice(sample):
    return [sample, {**sample, "n": sample["n"] + 1000}]


def three(shards, **words):
    parts = {
        "a": part("a", 40, shards).shuffle(buffer_size=6),
        "b": part("b", 40, shards).filter(thirds),
        "c": part("c", 16, shards).map(twice, mode="threads", workers=2),
    }
    return tw.mix(parts, weights={"a": 0.5, "b": 0.3, "c": 0.2}, **words)


def test_concat_reads_each_part_to_its_end_and_each_sample_once():
    feed = tw.concat({"a": part("a", 7), "b": part("b", 5).repeat(2), "c": part("c", 3).filter(odd)})
    assert feed.kind == "stream"
    assert "source 'a' is one" in feed.why
    whole = [("a", i) for i in range(7)] + [("b", i) for i in range(5)] * 2 + [("c", 1)]
    assert read(feed) == whole
    assert read(feed, epochs=2) == [whole, whole]
    assert read(feed, workers=0) == whole


@pytest.mark.parametrize("world", [1, 2, 4])
def test_ranks_share_every_part_of_a_concat_by_sample(world):
    # A34 A35
    feed = tw.concat({"a": part("a", 21, 4), "b": part("b", 10, 4)})
    parts = [read(feed, r, world) for r in range(world)]
    for rank, got in enumerate(parts):
        assert got == [("a", i) for i in range(21) if i % world == rank] + [
            ("b", i) for i in range(10) if i % world == rank
        ]


@pytest.mark.parametrize("shards", [1, 3])
def test_shares_follow_the_weights_at_every_position_of_a_sub_stream(shards):
    # SEMANTICS 2.2: within 2 + ln(sources)
    weights = {"a": 0.7, "b": 0.2, "c": 0.1}
    feed = tw.mix({k: part(k, 3000, shards) for k in weights}, weights=weights)
    for rank in range(shards):
        counts = Counter()
        for position, (name, n) in enumerate(read(feed, rank, shards)[: 2000 // shards], 1):
            assert n == counts[name] * shards + rank  # each source in its own order
            counts[name] += 1
            for k, w in weights.items():
                assert abs(counts[k] - w * position) <= 2 + math.log(3)


def test_another_seed_is_another_interleave_and_the_same_seed_the_same():
    weights = {"a": 0.6, "b": 0.3, "c": 0.1}
    feeds = [tw.mix({k: part(k, 60) for k in weights}, weights=weights, seed=seed) for seed in (1, 1, 2)]
    assert read(feeds[0]) == read(feeds[1]) != read(feeds[2])


RULES = ["stop_first", "stop_all", "without_repeat"]


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("rule", RULES)
def test_a_mix_resumes_after_every_batch(rule, shards):
    # A51 K28 K30: windows, filters and expansions in the parts, several epochs
    feed = three(shards, on_exhausted=rule).batch(1, collate="raw")
    items = assert_resumes_everywhere(
        lambda: loader(feed, epochs=2, tail="pad", workers=0), limit=120, positions=range(0, 120, 17)
    )
    assert {b.info.sources[0][0] for b in items} == {"a", "b", "c"}


@pytest.mark.parametrize("shards", [1, 2])
def test_a_concat_resumes_after_every_batch(shards):
    # A51
    feed = tw.concat({"a": part("a", 9, shards).map(twice), "b": part("b", 8, shards).shuffle(buffer_size=3).repeat(2)})
    feed = (
        feed.map(lambda s: {"input_ids": s["input_ids"]}, remove_columns="all")
        .shuffle(buffer_size=5)
        .pack(8, policy="fill", overlong="drop")
        .batch(1)
    )
    assert_resumes_everywhere(lambda: loader(feed, epochs=2, tail="pad"), limit=60, positions=range(0, 60, 7))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("worlds", [(4, 1, 2), (1, 4)])
def test_any_number_of_ranks_continues_a_mix(rule, worlds):
    # A51 A41
    feed = three(4, on_exhausted=rule).batch(1, collate="raw")

    def by_sub(run, steps, out):
        for _ in range(steps):
            batch = next(run, None)
            if batch is None:
                return
            for row, sources in zip(batch.info.ids, batch.info.sources, strict=True):
                out.setdefault(int(row[0].partition(":")[0]) % 4, []).append((sources[0], row[0]))

    whole, got, state = {}, {}, None
    by_sub(iter(loader(feed)), 10_000, whole)
    for leg, world in enumerate(worlds):
        states = []
        for rank in range(world):
            run = loader(feed, rank, world)
            if state is not None:
                run.load_state_dict(json.loads(json.dumps(state)))
            by_sub(iter(run), 3 if leg + 1 < len(worlds) else 10_000, got)
            states.append(run.state_dict())
            run.close()
        if leg + 1 < len(worlds):
            state = merge_states(states)
    assert got == whole


def test_stop_first_ends_with_the_first_source_used_up_and_the_next_epoch_goes_on_from_there():
    # SEMANTICS 2.4: draw k of a source is element k mod n of its own epoch k div n
    feed = tw.mix({"a": part("a", 10), "b": part("b", 100)}, weights={"a": 1, "b": 3})
    epochs = read(feed, epochs=4)
    drawn = {"a": [], "b": []}
    for got in epochs:
        for name, n in got:
            drawn[name].append(n)
        assert sum(name == "a" for name, _ in got) == 10
    assert drawn["a"] == [*range(10)] * 4
    assert drawn["b"] == [k % 100 for k in range(len(drawn["b"]))]
    assert 110 < len(drawn["b"]) < 130


def test_stop_all_goes_on_until_each_source_was_read_once_and_without_repeat_reads_none_twice():
    feeds = {"a": part("a", 10), "b": part("b", 40), "c": part("c", 4)}
    got = Counter(name for name, _ in read(tw.mix(feeds, on_exhausted="stop_all")))
    assert got["b"] == 40
    assert all(38 <= got[k] <= 44 for k in "ac")
    once = read(tw.mix(feeds, on_exhausted="without_repeat"))
    assert Counter(once) == Counter(
        [("a", i) for i in range(10)] + [("b", i) for i in range(40)] + [("c", i) for i in range(4)]
    )
    assert once[-20:] == [("b", i) for i in range(20, 40)]


def test_a_repeated_part_is_used_up_after_that_many_passes():
    got = read(tw.mix({"a": part("a", 5).repeat(3), "b": part("b", 100)}))
    assert [n for name, n in got if name == "a"] == [*range(5)] * 3


@pytest.mark.slow
def test_weights_change_at_a_break_point_counted_over_all_sub_streams():
    # a curriculum; both sub-streams change where 60 samples were given in all
    schedule = [(0, {"a": 1, "b": 0}), (60, {"a": 1, "b": 3})]
    feed = tw.mix({"a": part("a", 400, 2), "b": part("b", 400, 2)}, weights=schedule)
    for rank in range(2):
        names = [name for name, _ in read(feed, rank, 2)]
        assert set(names[:30]) == {"a"}
        assert 58 <= names[30:110].count("b") <= 62
    assert_resumes_everywhere(
        lambda: loader(feed.batch(1, collate="raw"), workers=0), limit=70, positions=(29, 30, 58, 59, 60, 61)
    )


def test_planned_parts_and_streams_go_together():
    planned = tw.from_dataset([{"of": "p", "n": i} for i in range(20)]).shuffle(3)
    feed = tw.mix({"p": planned, "s": part("s", 20)}, on_exhausted="without_repeat")
    got = read(feed)
    assert Counter(got) == Counter([("p", i) for i in range(20)] + [("s", i) for i in range(20)])
    assert [n for name, n in got if name == "p"] != list(range(20))


def test_fewer_samples_than_sub_streams_hang_nobody():
    # K33: a source with nothing for a sub-stream is left out there, or ends its epoch
    feeds = {"a": part("a", 2, 4), "b": part("b", 9, 4)}
    for rule in ("stop_all", "without_repeat"):
        got = [read(tw.mix(feeds, on_exhausted=rule), r, 4) for r in range(4)]
        assert {s for part_ in got for s in part_} == {("a", 0), ("a", 1), *(("b", i) for i in range(9))}
        assert [x for x in got[3] if x[0] == "a"] == []
    assert [len([s for s in read(tw.mix(feeds), r, 4) if s[0] == "a"]) for r in range(4)] == [1, 1, 0, 0]


def test_a_sub_stream_that_filters_everything_starves_nobody():
    # SEMANTICS 5.1: rank 0 holds both sub-streams; that of the even numbers gives nothing from a
    feed = tw.mix({"a": part("a", 4000, 2).filter(odd), "b": part("b", 4000, 2)})
    got = read(feed)
    first = got[:400]
    assert sum(name == "a" for name, _ in first) > 90
    assert all(n % 2 for name, n in got if name == "a")


def test_an_error_in_a_part_comes_at_its_place_and_names_the_source():
    # A18
    def fail(sample):
        if sample["n"] == 6:
            raise LookupError("six")
        return sample

    feed = tw.mix({"a": part("a", 20).map(fail, mode="threads", workers=3), "b": part("b", 20)})
    run, got = loader(feed.batch(1, collate="raw")), []
    with pytest.raises(LookupError, match="six") as caught:
        got.extend((b["samples"][0]["of"], b["samples"][0]["n"]) for b in run)
    assert [n for name, n in got if name == "a"] == list(range(6))
    assert "while mapping sample '6' of source 'a'" in caught.value.__notes__
    run.close()


def test_batches_and_counters_name_the_sources_and_random_numbers_differ_by_source():
    # K49
    def draw(sample, info):
        return {"of": info.source, "n": int(info.rng.integers(1 << 40))}

    feed = tw.mix({"a": part("a", 30), "b": part("b", 30)}, weights={"a": 2, "b": 1}).map(draw, with_info=True)
    got = read(feed)
    assert Counter(name for name, _ in got)["a"] == 30
    assert len({n for _, n in got}) == len(got)
    run = loader(tw.mix({"a": part("a", 30), "b": part("b", 30)}).batch(3, collate="raw"))
    for batch in run:
        assert [[s["of"] for s in batch["samples"]][i] for i in range(3)] == [s[0] for s in batch.info.sources]
    assert run.stats()["proportions"] == pytest.approx({"a": 0.5, "b": 0.5}, abs=0.05)
    run.close()


def test_a_restart_goes_to_where_the_epoch_began():
    feed = tw.mix({"a": part("a", 10), "b": part("b", 100)}, weights={"a": 1, "b": 3}).batch(1, collate="raw")
    run = loader(feed)
    first, second = ([(b["samples"][0]["of"], b["samples"][0]["n"]) for b in run] for _ in range(2))
    run.close()
    again = loader(feed)
    assert [(b["samples"][0]["of"], b["samples"][0]["n"]) for b in again] == first
    it = iter(again)
    for _ in range(7):
        next(it)
    assert [(b["samples"][0]["of"], b["samples"][0]["n"]) for b in again] == second
    again.close()


@pytest.mark.slow
def test_a_hub_stream_in_a_mix_goes_on_from_its_own_place():
    # A51 K28
    datasets = pytest.importorskip("datasets")
    read_rows = []

    def hub(name, n):
        base = datasets.Dataset.from_dict({"n": list(range(n)), "of": [name] * n}).to_iterable_dataset(num_shards=2)
        return tw.from_stream(base.map(lambda s: read_rows.append(s["n"]) or s), shards=1)

    def make():
        feed = tw.mix({"a": hub("a", 2000), "b": hub("b", 2000)}, weights={"a": 3, "b": 1})
        return loader(feed.batch(4, collate="raw"), tail="pad")

    whole = make()
    it = iter(whole)
    got = [[s["n"] for s in next(it)["samples"]] for _ in range(300)]
    whole.close()
    run = make()
    it = iter(run)
    for _ in range(200):
        next(it)
    state = json.loads(json.dumps(run.state_dict()))
    run.close()
    again = make()
    again.load_state_dict(state)
    read_rows.clear()
    it = iter(again)
    assert [[s["n"] for s in next(it)["samples"]] for _ in range(100)] == got[200:]
    again.close()
    assert min(read_rows) > 100  # of 200 and 600 read before: neither began anew


def test_what_cannot_be_put_together_is_refused():
    with pytest.raises(ConfigError, match="different numbers of sub-streams"):
        loader(tw.mix({"a": part("a", 5, 2), "b": part("b", 5, 4)}).batch(1, collate="raw"))
    with pytest.raises(ConfigError, match="need lengths"):
        tw.mix({"a": part("a", 5), "b": part("b", 5)}, by="tokens")
    feeds = [tw.mix({"a": part("a", 9), "b": part("b", 9)}, weights={"a": w, "b": 1}) for w in (1, 2)]
    one, other = (loader(f.batch(1, collate="raw")) for f in feeds)
    with pytest.raises(StateError, match="stages"):
        other.load_state_dict(one.state_dict())
