"""Uneven ranks of a stream under a real process group: equal steps, one end, one error for all."""

import json
from pathlib import Path

import pytest

from thalweg.feed.ledger import verify_ledger

pytest.importorskip("torch")
JOB = Path(__file__).with_name("stream_rank_job.py")


@pytest.mark.slow
def test_ranks_of_a_gloo_job_take_equal_steps_and_end_or_fail_together(warm, tmp_path):
    # C33 K33 A18
    store = tmp_path / "store"
    ranks = [warm.start(JOB, store, r, 2, needs=("torch.distributed", "thalweg")) for r in range(2)]
    assert [rank.wait() for rank in ranks] == [0, 0], [rank.err for rank in ranks]
    outs = [rank.out for rank in ranks]
    told = [{t["case"]: t for t in map(json.loads, out.splitlines())} for out in outs]

    for epoch in range(2):  # 20 and 10 samples in batches of 2; each `for` is an epoch on both ranks
        even, odd = (t["first"]["batches"][epoch] for t in told)
        assert even == [[i, i + 2] for i in range(0, 20, 4)]
        assert odd == [[i, i + 4] for i in range(1, 40, 8)]
    assert [t["first"]["error"] for t in told] == [None, None]

    even, odd = (t["all"]["batches"][0] for t in told)
    assert [len(even), len(odd)] == [10, 10]
    assert even == [[i, i + 2] for i in range(0, 40, 4)]
    assert odd[:5] == [[i, i + 4] for i in range(1, 40, 8)]
    assert [t["failed"]["step"] for t in told] == [3, 3]
    assert "LookupError: thirteen" in told[1]["failed"]["error"]
    assert "rank 1 failed" in told[0]["failed"]["error"]
    assert "gave no row" in told[1]["empty"]["error"]
    assert "rank 1 gave no row in a whole pass" in told[0]["empty"]["error"]
    assert [t["empty"]["step"] for t in told] == [0, 0]
    verdict = verify_ledger(f"{store}.all")
    assert verdict.ok, verdict.problems
    assert verdict.rows == 30
