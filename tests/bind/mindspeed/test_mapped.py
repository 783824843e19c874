"""Promises of a rank's preprocessed stream: in groups as it is read or in the background, the same samples in order."""

import json

import pytest

from thalweg.bind.mindspeed.asynchronous import AsyncPreprocessIterableDataset
from thalweg.bind.mindspeed.distributed import DistributedIterableDataset
from thalweg.bind.mindspeed.mapped import AlignedIterable, preprocessed
from thalweg.core.errors import StateError

datasets = pytest.importorskip("datasets")
pytestmark = pytest.mark.filterwarnings("ignore:.set_vital. is deprecated")
N = 60


def hub(n=N, parts=1):
    return datasets.Dataset.from_dict({"text": [f"t{i}" for i in range(n)]}).to_iterable_dataset(num_shards=parts)


def align(record):
    return {"n": int(record["text"][1:])}


class Preprocess:
    """Batched: drops every fifth, doubles every seventh; notes how many samples each call saw."""

    def __init__(self):
        self.sizes, self.seen = [], []

    def __call__(self, batch):
        self.sizes.append(len(batch["n"]))
        self.seen += batch["n"]
        kept = [n for n in batch["n"] if n % 5]
        return {"m": [n * 10 + k for n in kept for k in range(2 if n % 7 == 0 else 1)]}


def expected(rank=0, world=1, n=N):
    out = []
    for i in range(rank, n, world):
        if i % 5:
            out += [i * 10 + k for k in range(2 if i % 7 == 0 else 1)]
    return out


def run(rank=0, world=1, fn=None, data=None, **words):
    aligned = AlignedIterable(hub() if data is None else data, align)
    shard = DistributedIterableDataset(aligned, num_dp=world, dp_rank=rank)
    return preprocessed(shard, fn or Preprocess(), **words)


def test_it_is_asynchronous_only_where_the_settings_say_so():
    # A43
    both = run(async_preprocess=True, num_workers=3)
    assert type(both) is AsyncPreprocessIterableDataset
    assert (both.buffer_size, both.num_workers) == (3, 3)
    assert type(run()) is not AsyncPreprocessIterableDataset


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_both_ways_of_a_stream_give_the_same_samples_in_the_same_order_per_rank(size, world):
    # A44 A36: shard first, then map: a rank sees only its own samples, in calls of up to batch_size
    for rank in range(world):
        fn = Preprocess()
        sync = run(rank, world, fn, batch_size=size)
        at_once = run(rank, world, async_preprocess=True, batch_size=size)
        assert [s["m"] for s in sync] == [s["m"] for s in at_once] == expected(rank, world)
        mine = len(range(rank, N, world))
        assert fn.sizes == [size] * (mine // size) + [mine % size] * bool(mine % size)
        assert sorted(fn.seen) == list(range(rank, N, world))


def test_the_batch_size_of_the_map_changes_no_call_of_the_asynchronous_way():
    # A26 A27
    for size in (1, 8, 1000):
        fn = Preprocess()
        list(run(fn=fn, async_preprocess=True, batch_size=size))
        assert fn.sizes == [1] * N


@pytest.mark.parametrize("words", [{}, {"async_preprocess": True}, {"async_preprocess": True, "shuffle_buffer": 8}])
def test_training_and_validation_data_are_treated_alike(words):
    # A45: one call with one set of words for both
    out = [list(run(data=hub(n, 2), **words)) for n in (N, 12)]
    for got, n in zip(out, (N, 12), strict=True):
        assert sorted(s["m"] for s in got) == sorted(expected(n=n))
        assert ([s["m"] for s in got] == expected(n=n)) == ("shuffle_buffer" not in words)


@pytest.mark.parametrize(
    "words",
    [
        {"batch_size": 7},
        {"batch_size": 7, "shuffle_buffer": 9},
        {"async_preprocess": True, "buffer_size": 4},
        {"async_preprocess": True, "shuffle_buffer": 9},
    ],
    ids=["batched", "batched window", "async", "async window"],
)
def test_every_way_goes_on_after_any_sample(words):
    # A51 A49
    def make():
        return run(1, 2, **words)

    ds, whole, states = make(), [], []
    states.append(ds.state_dict())
    for sample in ds:
        whole.append(sample)
        states.append(json.loads(json.dumps(ds.state_dict())))
    assert sorted(s["m"] for s in whole) == sorted(expected(1, 2))
    for k, state in enumerate(states):
        again = make()
        again.load_state_dict(state)
        assert list(again) == whole[k:], k


def test_windows_are_seeded_and_new_in_each_epoch():
    # A49 A50
    def epochs(seed):
        ds = run(async_preprocess=True, shuffle_buffer=16, seed=seed)
        out = []
        for epoch in range(3):
            ds.set_epoch(epoch)
            out.append([s["m"] for s in ds])
        return out

    one = epochs(1)
    assert one == epochs(1)
    assert len({tuple(e) for e in [*one, *epochs(2)]}) == 6
    assert all(sorted(e) == sorted(expected()) for e in one)


def test_a_state_of_other_groups_is_refused():
    # A51
    ds = run(batch_size=7)
    next(iter(ds))
    state = ds.state_dict()
    with pytest.raises(StateError, match="groups of 7"):
        run(batch_size=8).load_state_dict(state)
    with pytest.raises(StateError, match="groups of 7"):
        run(async_preprocess=True).load_state_dict(state)
    with pytest.raises(StateError, match="groups of None"):
        ds.load_state_dict(run(async_preprocess=True).state_dict())
