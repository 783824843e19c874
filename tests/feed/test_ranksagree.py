"""Ranks that a launcher started without a process group agree through files, or it is said that nobody checks."""

import subprocess
import sys

import numpy as np
import pytest

import thalweg as tw
from thalweg.core.errors import AgreementError
from thalweg.feed import legs
from thalweg.feed.ledgerfile import CLOSED, read_leg
from thalweg.feed.loader import FeedLoader

ROWS = [{"input_ids": np.arange(1 + i % 5, dtype=np.int32), "id": str(i)} for i in range(24)]


@pytest.fixture
def start(monkeypatch, tmp_path):
    """Makes the loader of a rank as a launcher would have it: the place comes from the environment alone."""
    for name in ("MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "THALWEG_RUN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("THALWEG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("WORLD_SIZE", "2")
    made = []

    def rank(r, *, feed=None, run=None, **more):
        monkeypatch.setenv("RANK", str(r))
        if run is not None:
            monkeypatch.setenv("THALWEG_RUN", run)
        given = tw.from_dataset(ROWS, id="id").shuffle().batch(2) if feed is None else feed
        made.append(FeedLoader(given, **more))
        return made[-1]

    yield rank
    for one in made:
        one.close()


# E44 E46
@pytest.mark.parametrize(
    ("other", "word"),
    [({"seed": 1}, "seed: 0 and 1"), ({"gradient_accumulation_steps": 2}, "accumulation: 1 and 2"), ({}, None)],
)
def test_ranks_without_a_process_group_agree_through_the_ledger_or_one_stops(start, tmp_path, other, word):
    ledger = str(tmp_path / "ledger")
    first, second = start(0, ledger=ledger), start(1, ledger=ledger, **other)
    next(iter(first))
    if word is None:
        next(iter(second))
    else:
        with pytest.raises(AgreementError, match=f"ranks 0 and 1 differ in {word}"):
            next(iter(second))
    assert str(tmp_path / "ledger") in first.stats()["agreement"]
    for one in (first, second):
        one.close()
        one.close()
    assert not [p for p in (tmp_path / "ledger" / "ranks").rglob("*") if p.is_file()]


def test_a_rank_that_resumes_elsewhere_or_reads_another_feed_is_named(start):
    one = start(0, run="a")
    batches = iter(one)
    next(batches)
    state = one.state_dict()
    next(iter(start(1, run="a")))
    one.load_state_dict(state)
    next(iter(one))
    late = start(1, run="a")
    with pytest.raises(AgreementError, match="ranks 0 and 1 differ in row: 4 and 0"):
        next(iter(late))  # the second `for` of both ranks: one resumed, the other did not
    other = start(1, run="b", feed=tw.from_dataset(ROWS[:12], id="id").shuffle().batch(2))
    next(iter(other))  # another start: nothing to agree with
    third = start(0, run="b")
    with pytest.raises(AgreementError, match=r"ranks 0 and 1 differ in feed\."):
        next(iter(third))


def test_words_of_processes_that_died_do_not_count(start, tmp_path):
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom thalweg.feed.ranksagree import Statement\n"
        "Statement(Path(sys.argv[1]), 1).say('seed=9'); os._exit(1)"
    )
    folder = tmp_path / "ledger"
    subprocess.run([sys.executable, "-c", code, str(folder)], check=False)
    left = [p for p in (folder / "ranks").rglob("*") if p.is_file()]
    assert len(left) == 1
    next(iter(start(0, ledger=str(folder))))
    assert not left[0].exists()


def test_it_is_said_where_nobody_checks(start):
    one = start(0)
    next(iter(one))
    assert one.agreement.startswith("unchecked")
    assert "THALWEG_RUN" in one.stats()["agreement"]
    given = FeedLoader(tw.from_dataset(ROWS, id="id").batch(2), topology=tw.Topology())
    assert given.agreement == "one rank"


def test_a_start_with_a_name_keeps_its_ledger_together_when_the_first_rank_died(start, tmp_path):
    folder = tmp_path / "ledger"
    for number, run in enumerate(("first", "second")):
        for rank in range(2):
            one = start(rank, run=run, ledger=str(folder))
            next(iter(one))
            one.close()
            (file,) = folder.glob(f"{number:06d}-{rank:05d}*.ledger")
            file.write_bytes(file.read_bytes().removesuffix(CLOSED))  # killed before the other one came


def test_a_rank_that_looks_while_another_begins_its_file_sees_nothing_or_all_of_it(start, tmp_path, monkeypatch):
    folder, seen = tmp_path / "ledger", []

    def look(file):
        seen.append([read_leg(path)[0]["rank"] for path in folder.glob("*.ledger")])
        hold(file)

    hold = legs.hold
    monkeypatch.setattr(legs, "hold", look)
    for rank in range(2):
        next(iter(start(rank, ledger=str(folder))))
    assert [rank for ranks in seen for rank in ranks] in ([], [0], [0, 0])
    assert sorted(path.name[:12] for path in folder.glob("*.ledger")) == ["000000-00000", "000000-00001"]
