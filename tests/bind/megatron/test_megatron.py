"""The real megatron-core on our iterators: killed, continued by its count of consumed samples, the same losses."""

from itertools import islice
from pathlib import Path

import numpy as np
import pytest

import thalweg as tw
from thalweg.core.errors import ConfigError

torch = pytest.importorskip("torch")
JOB = Path(__file__).with_name("megatron_job.py")


def rows(n=60):
    rng = np.random.default_rng(0)
    return [
        {"input_ids": (3 + rng.zipf(1.5, rng.integers(5, 50)) % 120).astype(np.int32), "id": f"d{i}"} for i in range(n)
    ]


def feed(n=60):
    return tw.from_dataset(rows(n), id="id").shuffle().pack(64, overlong="drop")


def ids(batches):
    return [row for b in batches for row in b.info.ids]


@pytest.mark.parametrize("consumed", [0, 3, 8, 41, 300])
def test_consumed_samples_are_rows_of_the_run_on_any_number_of_ranks(consumed):  # K32
    whole = ids(islice(tw.bind.megatron.iterators(feed(), micro_batch_size=1)[0], 340))
    ranks = [
        tw.bind.megatron.iterators(
            feed(), micro_batch_size=1, consumed_samples=consumed, topology=tw.Topology(rank=r, world=2)
        )[0]
        for r in range(2)
    ]
    got = [row for _ in range(10) for it in ranks for row in next(it).info.ids]
    assert got == whole[consumed : consumed + 20]


def test_batches_have_the_keys_that_its_loop_takes_and_none_without_a_value():  # F10
    train, valid, test = tw.bind.megatron.iterators(feed().batch(1), valid=tw.from_dataset(rows(5), id="id").batch(1))
    batch = next(train)
    assert set(batch) == {"tokens", "labels", "loss_mask", "position_ids", "cu_seqlens", "max_seqlen"}
    assert batch["cu_seqlens"].dtype == torch.int32
    assert batch["cu_seqlens"].shape[0] == 1
    assert batch["max_seqlen"].shape == (1,)
    assert batch["loss_mask"].dtype == torch.float32
    shifted = batch["labels"][0, :-1] == batch["tokens"][0, 1:]
    assert shifted[batch["loss_mask"][0, :-1].bool()].all()
    assert batch.info.labels_shifted
    assert test is None
    twice = [row[0] for row in ids(islice(valid, 10))]
    assert sorted(twice[:5]) == sorted(twice[5:]) == [f"d{i}" for i in range(5)]
    assert iter(train) is train  # a `for` in Megatron's loop goes on, it begins nothing anew
    assert train.loader.node.step == 1
    train.close()


def test_context_parallel_ranks_get_whole_rows_or_slices_that_make_the_row():
    def first(rank, layout):
        place = tw.Topology(cp_rank=rank, cp_size=2)
        packed = tw.from_dataset(rows(), id="id").shuffle().pack(64, overlong="drop", align=4)
        return next(tw.bind.megatron.iterators(packed, micro_batch_size=1, topology=place, cp_layout=layout)[0])

    whole = [first(r, None) for r in range(2)]
    assert whole[0]["tokens"].equal(whole[1]["tokens"])
    parts = [first(r, "zigzag_row") for r in range(2)]
    quarters = [whole[0]["tokens"][0, 16 * i : 16 * i + 16] for i in range(4)]
    assert parts[0]["tokens"][0].equal(torch.cat([quarters[0], quarters[3]]))
    assert parts[1]["tokens"][0].equal(torch.cat([quarters[1], quarters[2]]))
    assert sum(p["loss_mask"].sum() for p in parts) == whole[0]["loss_mask"].sum()


def test_a_stream_goes_on_from_its_saved_state_and_never_from_a_count():
    stream = tw.from_stream(rows()).pack(64, policy="fill", overlong="drop")
    with pytest.raises(ConfigError, match="stream can't go to 4 consumed samples"):
        tw.bind.megatron.iterators(stream, micro_batch_size=1, consumed_samples=4)
    train = tw.bind.megatron.iterators(stream, micro_batch_size=1)[0]
    head = ids(islice(train, 5))
    rest = ids(islice(tw.bind.megatron.iterators(stream, micro_batch_size=1, state=train.save_state())[0], 7))
    assert head + rest == ids(islice(tw.bind.megatron.iterators(stream, micro_batch_size=1)[0], 12))
    with pytest.raises(ConfigError, match="micro_batch_size=2 in Megatron"):
        tw.bind.megatron.iterators(feed().batch(1), micro_batch_size=2)
    with pytest.raises(ConfigError, match="neither the feed nor Megatron"):
        tw.bind.megatron.iterators(feed())


NEEDS = (
    "megatron.core.models.gpt.gpt_layer_specs", "megatron.core.pipeline_parallel.schedules",
    "megatron.core.rerun_state_machine", "megatron.core.models.gpt", "thalweg",
)  # fmt: skip


def leg(warm, tmp_path, name, world, folder, kill=-1, peers=(1, 1)):
    """Run a job of `world` ranks, of which `peers` are tensor- and pipeline-parallel: losses, and how rank 0 ended."""
    folder.mkdir(exist_ok=True)
    store = tmp_path / f"store-{name}"
    ranks = [warm.start(JOB, store, r, world, folder, kill, *peers, needs=NEEDS) for r in range(world)]
    ended = ranks[0].wait()
    for rank in ranks[1:]:
        if kill >= 0:
            rank.kill()
        rank.wait()
    told = ranks[0].told()
    assert told, ranks[0].err[-3000:]
    return {t["step"]: t["loss"] for t in told if "step" in t}, ended


@pytest.fixture
def corpus(tmp_path):
    """Documents as .bin and .idx, written by Megatron's own builder."""
    pytest.importorskip("megatron.core")
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    builder = IndexedDatasetBuilder(str(tmp_path / "corpus.bin"), dtype=np.int32)
    for row in rows(200):
        builder.add_document(row["input_ids"], [len(row["input_ids"])])
    builder.finalize(str(tmp_path / "corpus.idx"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_story_9_megatron_core_a_killed_job_goes_on_with_the_same_losses_on_another_number_of_ranks(
    tmp_path, warm, corpus
):
    whole, _ = leg(warm, tmp_path, "whole", 1, tmp_path / "unused")
    assert sorted(whole) == list(range(8))
    first, ended = leg(warm, tmp_path, "first", 2, tmp_path / "run", kill=4)
    assert ended == -9
    rest, ended = leg(warm, tmp_path, "rest", 1, tmp_path / "run")
    assert ended == 0
    assert sorted(rest) == [3, 4, 5, 6, 7]
    for step, loss in {**first, **rest}.items():
        assert loss == pytest.approx(whole[step], abs=1e-4)
    assert whole[7] < whole[0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("peers", [(2, 1), (1, 2)], ids=["tensor", "pipeline"])
def test_peers_of_a_data_parallel_rank_train_on_the_same_rows_and_go_on_with_the_same_losses(
    tmp_path, warm, corpus, peers
):
    """Two halves of one model: layers cut in two, or a layer each. Context-parallel attention needs its GPU kernels."""
    whole, _ = leg(warm, tmp_path, "whole", 2, tmp_path / "unused", peers=peers)
    assert sorted(whole) == list(range(8))
    first, ended = leg(warm, tmp_path, "first", 2, tmp_path / "run", kill=4, peers=peers)
    assert ended == -9
    rest, ended = leg(warm, tmp_path, "rest", 2, tmp_path / "run", peers=peers)
    assert ended == 0
    assert sorted(rest) == [3, 4, 5, 6, 7]
    assert {**first, **rest} == pytest.approx(whole, abs=1e-4)
    if peers == (2, 1):  # parts of one and the same model: what one rank alone gets
        alone, _ = leg(warm, tmp_path, "alone", 1, tmp_path / "alone")
        assert whole == pytest.approx(alone, abs=1e-4)
