"""Promises of a feed inside torch loaders."""

import pickle
from threading import Lock

import numpy as np
import pytest
from torch.utils.data import DataLoader

from thalweg.bind.torch.iterable import IterableDataset
from thalweg.core.errors import ConfigError, StateError
from thalweg.core.topology import Topology
from thalweg.feed.open import from_dataset, from_stream

pytestmark = pytest.mark.filterwarnings("ignore:.set_vital. is deprecated")


def feeds(n=48):
    data = [{"input_ids": np.full(1 + i % 5, i, np.int32)} for i in range(n)]
    stream = from_stream(data, shards=4).map(lambda s: s, mode="threads", workers=2).batch(2)
    return {"stream": stream, "planned": from_dataset(data).shuffle().batch(2)}


def rows(dl):
    return [int(ids[0]) for batch in dl for ids in batch["input_ids"]]


@pytest.mark.parametrize("kind", ["stream", "planned"])
@pytest.mark.parametrize("workers", [0, 2])
def test_every_row_comes_once_over_ranks_and_loader_workers(kind, workers):
    # A1 A35
    got = []
    for rank in range(2):
        ds = IterableDataset(feeds()[kind], Topology(rank, 2))
        dl = DataLoader(ds, batch_size=None, num_workers=workers, multiprocessing_context="fork" if workers else None)
        got += rows(dl)
        ds.close()
    assert sorted(got) == list(range(48))


@pytest.mark.parametrize("kind", ["stream", "planned"])
@pytest.mark.parametrize("workers", [0, 2])
def test_the_stateful_loader_continues_with_the_next_batch(kind, workers):
    # A1 A51
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    def make():
        return stateful(
            IterableDataset(feeds()[kind]), batch_size=None, num_workers=workers,
            multiprocessing_context="fork" if workers else None,
        )  # fmt: skip

    whole = rows(make())
    assert sorted(whole) == list(range(48))
    for k in (1, 5, 17):
        dl = make()
        it = iter(dl)
        head = rows([next(it) for _ in range(k)])
        state = dl.state_dict()
        del it
        again = make()
        again.load_state_dict(state)
        assert head + rows(again) == whole


@pytest.mark.slow
@pytest.mark.parametrize(("context", "mode"), [("fork", "processes"), ("forkserver", "auto"), ("spawn", "processes")])
def test_it_works_inside_loader_workers_however_they_start(context, mode):
    # A1 A21 K41: lambdas and closures travel, also after tokenizer threads have run in the parent, and a worker of
    # torch's, which may have no children of multiprocessing, has worker processes of ours
    from tokenizers import Tokenizer, models

    Tokenizer(models.BPE()).encode_batch(["a", "b"] * 100)
    offset = 7
    data = [{"input_ids": np.full(2, i, np.int32)} for i in range(20)]
    feed = from_stream(data, shards=2).map(lambda s: {"input_ids": s["input_ids"] + offset}, workers=2, mode=mode)
    feed = feed.batch(2)
    dl = DataLoader(IterableDataset(feed), batch_size=None, num_workers=1, multiprocessing_context=context)
    assert sorted(rows(dl)) == list(range(offset, 20 + offset))


def test_a_feed_that_can_not_travel_is_refused_with_the_remedy():
    held = Lock()
    feed = from_stream([{"input_ids": np.zeros(1, np.int32)}]).map(lambda s: (held, s)[1]).batch(1)
    with pytest.raises(ConfigError, match=r"can't be sent.*num_workers=0"):
        pickle.dumps(IterableDataset(feed))


def test_a_state_that_was_given_and_not_used_yet_is_given_back():
    ds, again = (IterableDataset(feeds()["planned"]) for _ in range(2))
    it = iter(ds)
    seen = [next(it) for _ in range(5)]
    again.load_state_dict(ds.state_dict())
    assert again.state_dict() == ds.state_dict()
    other = IterableDataset(feeds()["planned"])
    other.load_state_dict(again.state_dict())
    assert next(iter(other))["input_ids"].tolist() == next(it)["input_ids"].tolist()
    assert len(seen) == 5


def test_what_a_torch_loader_decides_is_refused():
    with pytest.raises(ConfigError, match="device"):
        IterableDataset(feeds()["stream"], device="cpu")
    ds = IterableDataset(feeds()["stream"])
    with pytest.raises(TypeError, match="no len"):
        len(ds)
    with pytest.raises(StateError):
        ds.load_state_dict({"kind": "x"})
    with pytest.raises(StateError, match="3 DataLoader workers"):
        ds.load_state_dict({"kind": "torch_iterable", "workers": 3})
