"""Places on device meshes, and distributed checkpoints between them, with real process groups."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
JOB = Path(__file__).with_name("mesh_job.py")


def job(tmp_path, world, what):
    """Run all ranks; give what each printed."""
    command = [sys.executable, "-W", "ignore", str(JOB), str(tmp_path / f"store-{what}-{world}")]
    ranks = [
        subprocess.Popen(
            [*command, str(r), str(world), str(tmp_path / "ck"), what],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        for r in range(world)
    ]  # fmt: skip
    told = [r.communicate(timeout=400) for r in ranks]
    for out, err in told:
        assert out.startswith("{"), err[-3000:]
    return [json.loads(out.splitlines()[0]) for out, _ in told]


@pytest.mark.slow
def test_tensor_and_pipeline_peers_get_the_same_rows_and_data_ranks_share_the_order(tmp_path):  # A39 E42
    told = job(tmp_path, 8, "mesh")
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
def test_a_distributed_checkpoint_gives_every_rank_its_own_sub_streams_back(tmp_path):  # F6
    saved = job(tmp_path, 4, "save")  # dp 2 x tp 2
    assert all(t["same_keys"] and t["weights_only"] for t in saved)
    assert saved[0]["after"] == saved[1]["after"] != saved[2]["after"] == saved[3]["after"]
    for world in (2, 1):
        loaded = job(tmp_path, world, "load")
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
