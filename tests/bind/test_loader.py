"""`tw.Loader` in a torch job: tensors, its place, agreement of ranks, and a state that every checkpoint takes."""

import io
import json
import threading
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

import thalweg as tw
from thalweg.core.errors import ConfigError
from thalweg.feed.ledger import verify_ledger

torch = pytest.importorskip("torch")
JOB = Path(__file__).with_name("rank_job.py")


def feed(n=40):
    rows = [{"input_ids": np.full(1 + i % 5, i, np.int32), "id": f"r{i}"} for i in range(n)]
    return tw.from_dataset(rows, id="id").shuffle().pack(16, overlong="drop").batch(2)


def job(warm, store, what, world=2):
    ranks = [warm.start(JOB, store, r, world, what, needs=("torch.distributed", "thalweg")) for r in range(world)]
    for rank in ranks:
        assert rank.wait() == 0, rank.err
    return [rank.told()[-1] for rank in ranks]


@pytest.mark.slow
def test_ranks_find_their_place_and_read_the_order_between_them(warm, tmp_path):  # E42 E47
    told = job(warm, tmp_path / "store", "same")
    assert [t["rank"] for t in told] == [0, 1]
    assert [t["leg"] for t in told] == [0, 0]
    rows = [row for pair in zip(*(t["rows"] for t in told), strict=True) for row in pair]
    assert rows == [r for b in tw.Loader(feed(), return_tensors="np") for r in b.info.ids][: len(rows)]
    assert verify_ledger(f"{tmp_path}/store.ledger", feed()).ok


@pytest.mark.slow
@pytest.mark.parametrize(("what", "named"), [("seed", "seed"), ("data", "feed.data"), ("place", "epoch")])
def test_ranks_that_differ_stop_with_both_values_named(warm, tmp_path, what, named):
    told = job(warm, tmp_path / "store", what)
    for t in told:
        assert f"ranks 0 and 1 differ in {named}" in t.get("error", ""), t


def test_values_are_tensors_and_counts_stay_numbers():
    batch = next(iter(tw.Loader(feed())))
    assert batch["input_ids"].dtype == batch["labels"].dtype == batch["position_ids"].dtype == torch.int64
    assert batch["cu_seq_lens_q"].dtype == torch.int32
    assert type(batch["max_length_q"]) is int
    assert batch["use_cache"] is False
    assert "attention_mask" not in batch
    moved = batch.to("cpu")
    assert moved.info.ids == batch.info.ids
    assert isinstance(next(iter(tw.Loader(feed(), return_tensors="np")))["input_ids"], np.ndarray)
    with pytest.raises(ConfigError, match="no device"):
        tw.Loader(feed(), return_tensors="np", device="cpu")


def test_a_state_goes_through_torch_save_json_and_a_thread():
    loader = tw.Loader(feed(), epochs=None)
    list(islice(loader, 7))
    state = loader.state_dict()
    assert set(map(type, state.values())) == {str}
    assert sum(len(k) + len(v) for k, v in state.items()) < 1000
    file = io.BytesIO()
    torch.save({"loader": state}, file)
    file.seek(0)
    assert torch.load(file, weights_only=True)["loader"] == state == json.loads(json.dumps(state))
    found = []
    thread = threading.Thread(target=lambda: found.append(loader.state_dict()))
    thread.start()
    thread.join()
    assert found == [state]
    assert tw.Loader(feed(), epochs=None).state_dict().keys() == state.keys()


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
def test_a_distributed_checkpoint_brings_the_place_back(tmp_path):
    import torch.distributed.checkpoint as dcp

    loader = tw.Loader(feed(), epochs=None)
    list(islice(loader, 5))
    dcp.save({"loader": loader}, checkpoint_id=str(tmp_path / "ck"))
    fresh = tw.Loader(feed(), epochs=None)
    dcp.load({"loader": fresh}, checkpoint_id=str(tmp_path / "ck"))
    assert fresh.state_dict() == loader.state_dict()
    assert next(iter(fresh)).info.step == 5


def test_rank_and_world_come_from_the_environment_without_a_process_group(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert tw.Loader(feed()).topology == tw.Topology(rank=1, world=3)
    with pytest.raises(ConfigError, match="unknown"):
        tw.Loader(feed(), topology="slurm")
