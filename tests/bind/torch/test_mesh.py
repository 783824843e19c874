"""Places on device meshes, and distributed checkpoints between them, with real process groups."""

from itertools import product
from pathlib import Path

import pytest

pytest.importorskip("torch")
JOB = Path(__file__).with_name("mesh_job.py")
NEEDS = ("torch.distributed.checkpoint", "torch.distributed.fsdp", "torch.distributed.tensor.parallel", "thalweg")


def job(warm, tmp_path, world, what):
    """Run all ranks; give what each printed."""
    store = tmp_path / f"store-{what}-{world}"
    ranks = [warm.start(JOB, store, r, world, tmp_path / "ck", what, needs=NEEDS) for r in range(world)]
    for rank in ranks:
        assert rank.wait() == 0, rank.err[-3000:]
    return [rank.told()[0] for rank in ranks]


@pytest.fixture(scope="module")
def on_meshes(warm, tmp_path_factory):
    return job(warm, tmp_path_factory.mktemp("mesh"), 8, "mesh")


@pytest.mark.slow
def test_tensor_and_pipeline_peers_get_the_same_rows_and_data_ranks_share_the_order(on_meshes):  # A39 E42
    told = on_meshes
    for rank, t in enumerate(told):
        pp, dp, tp = rank // 4, rank // 2 % 2, rank % 2
        assert t["first"] == [dp, 2, 0, 1]
        replicate, shard, cp = pp, dp, tp
        assert t["second"] == [2 * replicate + shard, 4, cp, 2]
    for kind in ("planned", "stream"):
        by_rank = {dp: [t[kind] for t in told if t["first"][0] == dp] for dp in range(2)}
        for same in by_rank.values():
            assert same.count(same[0]) == 4
        assert not set(map(str, by_rank[0][0])) & set(map(str, by_rank[1][0]))
        assert len(by_rank[0][0]) == len(by_rank[1][0]) > 0
    pairs = {tuple(t["second"][:2]): [u["cp"] for u in told if u["second"][0] == t["second"][0]] for t in told}
    assert len(pairs) == 4
    for a, b in pairs.values():
        assert a == b


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(2, 1, 2, 2), (1, 2, 2, 2)])
def test_on_four_dimensions_at_once_peers_share_rows_and_context_ranks_their_parts(on_meshes, shape):  # A39 E42 E48
    told = [t["x".join(map(str, shape))] for t in on_meshes]
    assert sorted(t["at"] for t in told) == [list(at) for at in product(*map(range, shape))]
    for t in told:
        _, dp, cp, _ = t["at"]
        assert t["place"] == [dp, shape[1], cp, 2]
        assert t["steps"] == told[0]["steps"]  # each checked against a stage that reads nothing
    for dp in range(shape[1]):
        rows = [t["ids"] for t in told if t["at"][1] == dp]
        assert rows.count(rows[0]) == 8 // shape[1]
        parts = [{str(t["tokens"]) for t in told if t["at"][1:3] == [dp, cp]} for cp in range(2)]
        assert [len(p) for p in parts] == [1, 1]  # the same slice on all stages and tensor ranks
        assert parts[0] != parts[1]
        halves = [next(t["tokens"] for t in told if t["at"][1:3] == [dp, cp]) for cp in range(2)]
        assert all(len(row) == 8 for half in halves for ids, _ in half for row in ids)  # of rows of 16
    assert len({str(t["ids"]) for t in told}) == shape[1]


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["2x1x2x2", "1x2x2x2"])
def test_a_model_on_four_dimensions_at_once_has_the_losses_of_one_process(on_meshes, shape):  # C45 C46
    """FSDP2, tensor, context and pipeline parallel in one model on eight processes."""
    wanted = on_meshes[0]["alone"]
    assert wanted[-1] < wanted[0]
    for told in on_meshes:
        assert told[shape]["losses"] == pytest.approx(wanted, abs=1e-4)


@pytest.mark.slow
def test_a_distributed_checkpoint_gives_every_rank_its_own_sub_streams_back(warm, tmp_path):  # F6
    saved = job(warm, tmp_path, 4, "save")  # dp 2 x tp 2
    assert all(t["same_keys"] and t["weights_only"] for t in saved)
    assert saved[0]["after"] == saved[1]["after"] != saved[2]["after"] == saved[3]["after"]
    for world in (2, 1):
        loaded = job(warm, tmp_path, world, "load")
        assert all(t["steps"] == [3, 3] for t in loaded)
        for kind in (0, 1):
            wanted = [saved[0]["after"][kind], saved[2]["after"][kind]]
            if world == 2:
                assert [t["after"][kind] for t in loaded] == wanted
                continue
            (one,) = (t["after"][kind] for t in loaded)
            mine = [[row for row in one if row in w] for w in wanted]  # a stream takes turns by item, not by row
            assert mine == [w[: len(m)] for w, m in zip(wanted, mine, strict=True)]
            assert sum(map(len, mine)) >= len(one) - 2
