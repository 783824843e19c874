"""The agreement of ranks names those that did not come."""

import textwrap

import pytest

pytest.importorskip("torch")

JOB = textwrap.dedent(
    """
    import sys, torch.distributed as dist
    from thalweg.bind.torch.place import agreement
    from thalweg.core.errors import AgreementError

    rank = int(sys.argv[2])
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=3)
    agree = agreement(timeout=10)
    print(agree(f"rank {rank}"))
    if rank != 2:
        try:
            agree("again")
        except AgreementError as error:
            print(error)
    """
)


@pytest.mark.slow
def test_ranks_that_do_not_come_are_named_and_nobody_waits_for_ever(warm, tmp_path):  # E47
    (tmp_path / "job.py").write_text(JOB)
    ranks = [warm.start(tmp_path / "job.py", tmp_path / "store", r, needs=("torch.distributed",)) for r in range(3)]
    assert [rank.wait() for rank in ranks][:2] == [0, 0]
    told = [(rank.out, rank.err) for rank in ranks]
    for out, err in told:
        assert out.splitlines()[0] == "['rank 0', 'rank 1', 'rank 2']", err
    assert "not all ranks came to agree within 10 s" in told[0][0]
    assert "Ranks 2 failed" in told[0][0] or "Rank(s) 2" in told[0][0] or "[2]" in told[0][0], told[0][0]
    assert "not all ranks came" in told[1][0]
