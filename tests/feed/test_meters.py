"""The meters of a planned feed: always on, and what they count is what was done."""

import threading
from itertools import islice

import numpy as np
import pytest

import thalweg as tw
from thalweg.feed import planned


def records(folder, n=300):
    with tw.create_records(str(folder)) as writer:
        for i in range(n):
            writer.write({"input_ids": np.arange(1 + i % 9, dtype=np.int32)}, id=f"r{i}")
    return tw.from_records(str(folder))


@pytest.mark.parametrize("cpus", [1, 4])
def test_counts_are_those_of_the_batches_handed_over(tmp_path, monkeypatch, cpus):
    monkeypatch.setattr(planned, "usable_cpus", lambda: cpus)
    loader = tw.Loader(records(tmp_path / "r").shuffle().batch(4, pad="none"), return_tensors="np", tail="pad")
    batches = list(loader)
    stats = loader.stats()
    assert stats["counts"]["batches"] == len(batches) == 75
    assert stats["counts"]["rows"] == 300
    assert stats["counts"]["tokens"] == sum(b.info.num_tokens for b in batches)
    assert stats["counts"]["read_bytes"] == 4 * stats["counts"]["tokens"]
    arrays = [v for b in batches for v in b.values() if isinstance(v, np.ndarray)]
    assert stats["counts"]["bytes"] == sum(a.nbytes for a in arrays)
    assert stats["levels"] == {"ready": 0, "in_flight": 0}
    assert set(stats["seconds"]) >= {"plan", "read", "collate"}
    assert ("wait" in stats["seconds"]) == (cpus > 1)
    assert stats["loop"]["batches"] == 75
    loader.close()


def test_levels_say_what_is_ready_and_what_is_on_the_way(tmp_path, monkeypatch):
    monkeypatch.setattr(planned, "usable_cpus", lambda: 4)
    loader = tw.Loader(records(tmp_path / "r").batch(4, pad="none"), return_tensors="np")
    assert loader.stats()["levels"] == {"ready": 0, "in_flight": 0}
    steps = iter(loader)
    list(islice(steps, 2))  # the first alone, then one of a group of 16, and two behind it are on their way
    assert loader.stats()["levels"] == {"ready": 15, "in_flight": 2}
    loader.close()
    assert loader.stats()["levels"] == {"ready": 0, "in_flight": 0}


@pytest.mark.parametrize("how", [{"workers": 0}, {"workers": 2, "mode": "threads"}])
def test_seconds_in_functions_are_told_apart_from_reading(how):
    rows = [{"input_ids": np.arange(3, dtype=np.int32)} for _ in range(20)]

    def slow(sample):
        threading.Event().wait(0.02)
        return sample

    loader = tw.Loader(tw.from_dataset(rows).map(slow, length="same", **how).batch(2), return_tensors="np")
    list(loader)
    seconds = loader.stats()["seconds"]
    assert seconds["map"] >= 20 * 0.02
    assert 0 < seconds["read"] < seconds["map"]
