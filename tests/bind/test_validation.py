"""Validation beside training: each sample once, training untouched, a broken-off evaluation begun anew."""

from itertools import islice

import numpy as np
import pytest

import thalweg as tw


def data(n=120):
    rng = np.random.default_rng(3)
    return [{"input_ids": rng.integers(1, 90, rng.integers(3, 30)).astype(np.int32), "id": f"d{i}"} for i in range(n)]


def parts(n=120):
    return tw.from_dataset(data(n), id="id").split({"train": 0.8, "val": 0.2})


def ids(batches):
    return [i for b in batches for row in b.info.ids for i in row]


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("packed", [False, True])
def test_every_sample_of_a_validation_comes_once_on_equal_steps(world, packed):  # A44
    val = parts()["val"]
    feed = (val.pack(64, overlong="drop") if packed else val).batch(4)
    ranks = [
        list(tw.Loader(feed, tail="pad", topology=tw.Topology(rank=r, world=world), return_tensors="np"))
        for r in range(world)
    ]
    assert len({len(r) for r in ranks}) == 1
    seen = [i for r in ranks for i in ids(r)]
    assert sorted(seen) == sorted(ids(tw.Loader(val.batch(1), return_tensors="np")))
    rows = sum(b.info.weight.sum() for r in ranks for b in r)
    assert rows == (val.pack(64, overlong="drop") if packed else val).num_rows
    filler = [b for r in ranks for b in r if not b.info.weight.all()]
    for b in filler:
        assert (b["labels"][b.info.weight == 0] == -100).all()


@pytest.mark.parametrize("kind", ["planned", "stream"])
def test_an_evaluation_in_the_middle_of_an_epoch_moves_no_training(kind):  # K32
    train = parts()["train"].shuffle().pack(64, overlong="drop").batch(1)
    if kind == "stream":
        train = tw.from_stream(data()).shuffle(buffer_size=11).pack(64, policy="fill", overlong="drop").batch(1)
    val = tw.Loader(parts()["val"].batch(4), tail="pad", return_tensors="np")
    plain = ids(tw.Loader(train, epochs=2, return_tensors="np"))
    loader, got = tw.Loader(train, epochs=2, return_tensors="np"), []
    for n, batch in enumerate(loader):
        got += ids([batch])
        if n % 5 == 3:
            before = loader.state_dict()
            list(islice(val, 2))  # broken off
            assert len(ids(val)) > 8
            assert loader.state_dict() == before
    assert got == plain


def test_a_broken_off_evaluation_starts_anew_and_a_finished_one_gives_the_same_samples_again():
    val = tw.Loader(parts()["val"].batch(4), tail="pad", return_tensors="np")
    whole = ids(val)
    for stop in (1, 3):
        list(islice(val, stop))
        assert ids(val) == whole


def test_a_sample_stays_on_its_side_when_data_is_appended():
    before = {name: set(ids(tw.Loader(f.batch(1), return_tensors="np"))) for name, f in parts(120).items()}
    after = {name: set(ids(tw.Loader(f.batch(1), return_tensors="np"))) for name, f in parts(200).items()}
    for name, side in before.items():
        assert side == {i for i in after[name] if int(i[1:]) < 120}
