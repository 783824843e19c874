"""Promises of the way from settings to a loader: what streaming and async_preprocess mean together."""

import json

import pytest

from thalweg.bind.mindspeed.asynchronous import AsyncPreprocessIterableDataset
from thalweg.bind.mindspeed.streaming import preprocessed, stream_loader
from thalweg.core.errors import ConfigError

datasets = pytest.importorskip("datasets")
pytestmark = pytest.mark.filterwarnings("ignore:.set_vital. is deprecated")
N = 60


def hub(n=N, parts=1):
    return datasets.Dataset.from_dict({"text": [f"t{i}" for i in range(n)]}).to_iterable_dataset(num_shards=parts)


def align(dataset):
    return dataset.map(lambda s: {"n": int(s["text"][1:])}, remove_columns=["text"])


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
    return preprocessed(
        hub() if data is None else data, fn or Preprocess(), align=align, num_dp=world, dp_rank=rank, **words
    )


def test_it_is_asynchronous_only_where_both_settings_say_so():
    # A43
    both = run(streaming=True, async_preprocess=True, preprocessing_num_workers=3)
    assert type(both) is AsyncPreprocessIterableDataset
    assert (both.buffer_size, both.num_workers) == (3, 3)
    assert type(run(streaming=True)) is not AsyncPreprocessIterableDataset
    whole = datasets.Dataset.from_dict({"text": [f"t{i}" for i in range(N)]})
    given = [
        run(data=whole, streaming=False, async_preprocess=on, async_preprocess_buffer_size=4) for on in (True, False)
    ]
    assert [type(g) for g in given] == [datasets.Dataset] * 2
    assert given[0]["m"] == given[1]["m"] == expected()
    assert given[0].column_names == ["m"]


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_both_ways_of_a_stream_give_the_same_samples_in_the_same_order_per_rank(size, world):
    # A44 A36: shard first, then map: a rank sees only its own samples, in calls of up to preprocessing_batch_size
    for rank in range(world):
        fn = Preprocess()
        sync = run(rank, world, fn, streaming=True, preprocessing_batch_size=size)
        at_once = run(rank, world, streaming=True, async_preprocess=True, preprocessing_batch_size=size)
        assert [s["m"] for s in sync] == [s["m"] for s in at_once] == expected(rank, world)
        mine = len(range(rank, N, world))
        assert fn.sizes == [size] * (mine // size) + [mine % size] * bool(mine % size)
        assert sorted(fn.seen) == list(range(rank, N, world))


def test_the_batch_size_of_the_map_changes_no_call_of_the_asynchronous_way():
    # A26 A27
    for size in (1, 8, 1000):
        fn = Preprocess()
        list(run(fn=fn, streaming=True, async_preprocess=True, preprocessing_batch_size=size))
        assert fn.sizes == [1] * N


@pytest.mark.parametrize("words", [{}, {"async_preprocess": True}, {"async_preprocess": True, "shuffle_buffer": 8}])
def test_training_and_validation_data_are_treated_alike(words):
    # A45: one call with one set of words for both
    out = [list(run(data=hub(n, 2), streaming=True, **words)) for n in (N, 12)]
    for got, n in zip(out, (N, 12), strict=True):
        assert sorted(s["m"] for s in got) == sorted(expected(n=n))
        assert ([s["m"] for s in got] == expected(n=n)) == ("shuffle_buffer" not in words)


@pytest.mark.parametrize(
    "words",
    [
        {"preprocessing_batch_size": 7},
        {"preprocessing_batch_size": 7, "shuffle_buffer": 9},
        {"async_preprocess": True, "async_preprocess_buffer_size": 4},
        {"async_preprocess": True, "shuffle_buffer": 9},
    ],
    ids=["batched", "batched window", "async", "async window"],
)
def test_every_way_goes_on_after_any_sample(words):
    # A51 A49
    def make():
        return run(1, 2, streaming=True, **words)

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
        ds = run(streaming=True, async_preprocess=True, shuffle_buffer=16, seed=seed)
        out = []
        for epoch in range(3):
            ds.set_epoch(epoch)
            out.append([s["m"] for s in ds])
        return out

    one = epochs(1)
    assert one == epochs(1)
    assert len({tuple(e) for e in [*one, *epochs(2)]}) == 6
    assert all(sorted(e) == sorted(expected()) for e in one)


@pytest.mark.parametrize("words", [{}, {"async_preprocess": True}])
def test_from_load_dataset_to_batches_in_the_documents_order(words):
    # A42 A46
    dl = stream_loader(
        run(1, 2, streaming=True, **words), batch_size=4, collate_fn=lambda b: [s["m"] for s in b], drop_last=True
    )
    want = expected(1, 2)
    assert list(dl) == [want[i : i + 4] for i in range(0, len(want) - 3, 4)]
    assert hasattr(dl, "state_dict")


def test_what_a_stream_cannot_have_is_refused_with_what_to_say():
    # A47 A48 A54: the original failed late, or ignored it
    ds = run(streaming=True, async_preprocess=True)
    with pytest.raises(ConfigError, match="dataloader_mode: base"):
        stream_loader(ds, batch_size=2, dataloader_mode="sampler")
    with pytest.raises(ConfigError, match="shuffle_buffer"):
        stream_loader(ds, batch_size=2, shuffle=True)
    with pytest.raises(ConfigError, match="base"):
        stream_loader(ds, batch_size=2, dataloader_mode="bas")
    with pytest.raises(ConfigError, match="streaming: true"):
        preprocessed([{"n": 1}], Preprocess(), streaming=False)
    whole = run(data=datasets.Dataset.from_dict({"text": ["t1", "t2"]}), streaming=False)
    assert len(list(stream_loader(whole, batch_size=1, dataloader_mode="sampler", shuffle=True))) == 2
