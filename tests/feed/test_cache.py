"""A cache: epoch 2 calls the function zero times, nothing stale is ever given, nothing random is ever frozen."""

import random
from pathlib import Path

import numpy as np
import pytest

import thalweg as tw
from thalweg.core.errors import AgreementError, ConfigError, StateError
from thalweg.feed.loader import FeedLoader

CALLS = []  # not captured by the functions below: what a function captures is part of a cache's key
ROWS = [{"text": "ab" * (1 + n % 7), "id": str(n)} for n in range(50)]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("THALWEG_CACHE", str(tmp_path / "cache"))
    CALLS.clear()


def encode(row):
    CALLS.append(row["id"])
    ids = [ord(c) for c in row["text"]]
    return {"input_ids": ids, "labels": [-100, *ids[1:]]}


def encoded(rows=ROWS, fn=encode, **cache):
    return tw.from_dataset(list(rows), id="id").map(fn, remove_columns="all").cache(**cache)


def epochs(feed, n=2, rank=0, world=1, **more):
    loader = FeedLoader(feed, topology=tw.Topology(rank, world), **more)
    out = []
    for _ in range(n):
        out.append([i for b in loader for ids in b.info.ids for i in ids])
    loader.close()
    return out


WAYS = {"disk": {}, "memory": {"max_bytes": "1MB"}, "shared": {"scope": "shared", "path": "kept"}}


# E31
@pytest.mark.parametrize("way", WAYS)
def test_epoch_2_and_a_second_loader_call_the_function_zero_times(way, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    feed = encoded(**WAYS[way]).shuffle(seed=1).pack(64, overlong="drop").batch(2)
    first, second = epochs(feed)
    assert sorted(CALLS, key=int) == [r["id"] for r in ROWS]
    assert first != second
    CALLS.clear()
    assert epochs(feed) == [first, second]
    assert [b.info.num_label_tokens for b in FeedLoader(feed, topology=tw.Topology())]
    assert CALLS == []


def test_memory_gives_the_same_batches_as_disk_and_no_cache(tmp_path):
    def batches(feed):
        loader = FeedLoader(feed.shuffle(seed=4).batch(4), topology=tw.Topology())
        return [{k: np.asarray(v).tolist() for k, v in b.items()} for b in loader]

    plain = tw.from_dataset(ROWS, id="id").map(encode, remove_columns="all")
    assert batches(plain) == batches(encoded()) == batches(encoded(max_bytes=100_000))


def test_a_cache_in_memory_ends_with_its_feed_and_leaves_no_file(tmp_path):
    epochs(encoded(max_bytes="1MB").batch(2))
    assert not list((tmp_path / "cache").rglob("*.arrow"))
    CALLS.clear()
    epochs(encoded(max_bytes="1MB").batch(2))  # another feed: nothing is shared
    assert len(CALLS) == 50


def test_what_does_not_fit_into_memory_is_said_with_both_numbers():
    with pytest.raises(ConfigError, match=r"50 of 50 samples take [\d,]+ bytes.*allows 500") as caught:
        epochs(encoded(max_bytes=500).batch(2))
    assert "leave max_bytes out" in caught.value.fix


def other(row):
    return {**encode(row), "extra": 1} | {"input_ids": [1, 2, 3], "labels": [-100, 2, 3]}


class Tokenizer:
    """A function with a captured value, as an encoder has its tokenizer."""

    def __init__(self, step):
        self.step = step

    def __call__(self, row):
        CALLS.append(row["id"])
        return {"input_ids": [ord(c) + self.step for c in row["text"]]}


# E33
@pytest.mark.parametrize("way", ["disk", "memory"])
@pytest.mark.parametrize(
    "changed",
    [
        lambda more: encoded(fn=lambda row: {"input_ids": [len(row["text"])]}, **more),
        lambda more: encoded([*ROWS[:-1], {"text": "other", "id": "49"}], **more),
        lambda more: encoded(fn=Tokenizer(1), **more),
    ],
)
def test_a_change_of_function_tokenizer_or_data_is_never_answered_from_before(way, changed):
    def ids(feed):
        return [np.asarray(b["input_ids"]).tolist() for b in FeedLoader(feed.batch(1), topology=tw.Topology())]

    before = ids(encoded(fn=Tokenizer(0), **WAYS[way]))
    again = ids(changed(WAYS[way]))
    assert again != before
    assert ids(encoded(fn=Tokenizer(0), **WAYS[way])) == before


def drawing(row):
    return {"input_ids": [random.randint(0, 9)]}


def drawing_numpy(row):
    return {"input_ids": [int(np.random.rand() * 9)]}  # noqa: NPY002


# E32
@pytest.mark.parametrize("fn", [drawing, drawing_numpy])
def test_a_cache_behind_random_numbers_is_refused(fn):
    with pytest.raises(ConfigError, match="would freeze"):
        encoded(fn=fn)
    with pytest.raises(ConfigError, match="would freeze"):
        tw.from_dataset(ROWS).map(lambda row, info: row, with_info=True).cache(max_bytes="1MB")


def test_random_numbers_behind_a_cache_are_new_in_each_epoch():  # E32
    def noise(sample, info):
        return {"input_ids": [int(i) + int(info.rng.integers(0, 100)) for i in sample["input_ids"]]}

    feed = encoded(max_bytes="1MB").map(noise, with_info=True, output_columns=["input_ids"]).batch(1)
    loader = FeedLoader(feed, topology=tw.Topology())
    first, second = ([np.asarray(b["input_ids"]).tolist() for b in loader] for _ in range(2))
    assert first != second
    assert len(CALLS) == 50


# E34 C42
@pytest.mark.parametrize("memory", [{}, {"max_bytes": "1MB"}])
def test_each_rank_keeps_its_share_and_calls_for_no_other(memory, tmp_path):
    feed = encoded(scope="rank", **memory).shuffle(seed=2).batch(3)
    seen = []
    for rank in range(4):
        CALLS.clear()
        with pytest.warns(UserWarning, match="2 of 50 samples are left out"):
            first, second = epochs(feed, rank=rank, world=4)
        assert len(CALLS) == 12
        assert sorted(first) == sorted(second) == sorted(CALLS)
        assert first != second
        seen.append(set(first))
    assert len(set.union(*seen)) == 48
    assert sum(map(len, seen)) == 48


@pytest.mark.filterwarnings("ignore:2 of 50 samples")
def test_ranks_with_shares_of_their_own_agree_take_equal_steps_and_resume():
    feed = encoded(scope="rank").shuffle(seed=2).batch(3)
    loaders = [FeedLoader(feed, topology=tw.Topology(r, 4), epochs=2) for r in range(4)]
    assert len({str(x.describe()) for x in loaders}) == 1
    assert len({len(x) for x in loaders}) == 1
    whole = [[b.info.ids for b in x] for x in loaders]
    assert {len(w) for w in whole} == {8}
    for rank in range(4):
        loader = FeedLoader(feed, topology=tw.Topology(rank, 4), epochs=2)
        got = [b.info.ids for _, b in zip(range(5), loader, strict=False)]
        state = loader.state_dict()
        again = FeedLoader(feed, topology=tw.Topology(rank, 4), epochs=2)
        again.load_state_dict(state)
        assert got + [b.info.ids for b in again] == whole[rank]
    other = FeedLoader(feed, topology=tw.Topology(0, 2), epochs=2)
    with pytest.raises(StateError, match="data"):
        other.load_state_dict(state)
    assert all(b.info.step_label_tokens is None for b in loaders[0])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: encoded(scope="rank").pack(64, overlong="drop").batch(1), "pack needs one plan"),
        (lambda: encoded(scope="shared"), "needs a place"),
        (lambda: encoded(max_bytes=5, path="x"), "no path"),
        (lambda: encoded(scope="machine"), "unknown"),
    ],
)
def test_a_cache_that_cannot_be_right_is_refused_with_the_reason(make, words):
    with pytest.raises(ConfigError, match=words):
        FeedLoader(make(), topology=tw.Topology(0, 2))


def test_one_rank_of_scope_rank_is_the_whole():
    assert sorted(epochs(encoded(scope="rank").batch(1), n=1)[0], key=int) == [r["id"] for r in ROWS]


def test_ranks_that_were_told_different_code_stop(tmp_path):
    feeds = [encoded(fn=Tokenizer(k), scope="rank").batch(1) for k in range(2)]
    texts = [FeedLoader(f, topology=tw.Topology(r, 2)).describe() for r, f in enumerate(feeds)]
    assert texts[0] != texts[1]

    def agree(text):
        return [" ".join(f"{k}={v}" for k, v in t.items()) for t in texts]

    loader = FeedLoader(feeds[0], topology=tw.Topology(0, 2), agree=agree)
    with pytest.raises(AgreementError, match="ranks 0 and 1 differ"):
        next(iter(loader))
    assert Path(tmp_path / "cache").exists()


def test_bytes_of_a_sample_are_those_of_its_arrays_text_and_lists():
    from thalweg.feed.held import bytes_of

    assert bytes_of("äbc") == 3
    assert bytes_of({"a": np.zeros(4, np.int64), "b": "xyz", "c": [1, 2]}) == 32 + 3 + 2 * 8 + 2 * 8
