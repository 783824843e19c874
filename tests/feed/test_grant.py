"""Promises of equal steps: pure, then between ranks that run at once."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rank_threads import Ranks
from thalweg.core.errors import StalledError, ThalwegError
from thalweg.core.topology import Topology
from thalweg.feed.grant import EMPTY, ENDED, FAILED, READING, Answer, grant, of_ranks
from thalweg.feed.node import RunOptions
from thalweg.feed.open import from_stream
from thalweg.feed.streamagree import ask_all


@given(
    totals=st.lists(st.integers(0, 12), min_size=1, max_size=4),
    most=st.integers(1, 6),
    queue=st.integers(1, 6),
    until=st.sampled_from(["first", "all"]),
    seed=st.integers(0, 999),
)
@settings(max_examples=200, deadline=None)
def test_every_rank_takes_the_same_steps_whatever_is_ready_when(totals, most, queue, until, seed):
    # model `agreement`, `fixed_every_k`, `wait_for_k`: no rank waits, none takes a step another lacks, none is lost
    rng = np.random.default_rng(seed)
    taken, ready, filled = [0] * len(totals), [0] * len(totals), [0] * len(totals)
    for _ in range(10_000):
        for r, total in enumerate(totals):
            ready[r] = min(total - taken[r] + filled[r], ready[r] + int(rng.integers(0, queue + 1)), queue)
        answers = [
            Answer(ready[r], ENDED if taken[r] - filled[r] + ready[r] >= totals[r] else READING)
            for r in range(len(totals))
        ]
        given_ = grant(answers, most, until)
        if given_.over:
            break
        assert given_.steps <= most
        for r in range(len(totals)):
            taken[r] += given_.steps
            if r in given_.filler:
                filled[r] += given_.steps
            else:
                assert given_.steps <= ready[r]
                ready[r] -= given_.steps
    assert len(set(taken)) == 1
    assert taken[0] == (min(totals) if until == "first" else max(totals))


def test_a_rank_that_failed_or_gave_nothing_ends_all_once_its_rows_are_out():
    assert grant([Answer(2, READING), Answer(1, FAILED)], 4, "first").steps == 1
    assert grant([Answer(2, READING), Answer(0, FAILED)], 4, "first").failed == 1
    assert grant([Answer(0, EMPTY), Answer(3, READING)], 4, "all").empty == 0
    again = grant([Answer(0, READING), Answer(3, READING)], 4, "first")
    assert (again.steps, again.over) == (0, False)


def data(n=40):
    return [{"input_ids": np.full(3, i, np.int32)} for i in range(n)]


@pytest.mark.parametrize("prefetch", [1, 4])
def test_ranks_of_unequal_streams_end_together_after_the_smallest(prefetch):
    # C33 K33: rank 1 keeps every second of its samples, rank 0 all
    def keep(s):
        i = int(s["input_ids"][0])
        return s if i % 2 == 0 or i % 4 == 1 else None

    feed = from_stream(data()).map(keep, mode="threads", workers=2).batch(2)
    results = Ranks(2).run(feed, prefetch=prefetch)
    assert [e for _, e in results] == [None, None]
    assert [len(got) for got, _ in results] == [5, 5]
    assert results[1][0][0][1] == ["1", "5"]


def test_until_all_goes_on_with_rows_of_weight_zero():
    def keep(s):
        i = int(s["input_ids"][0])
        return s if i % 2 == 0 or i % 4 == 1 else None

    feed = from_stream(data()).map(keep, mode="threads", workers=2).batch(2)
    results = Ranks(2).run(feed, until="all")
    assert [len(got) for got, _ in results] == [10, 10]
    assert [w for _, _, w in results[1][0]] == [2] * 5 + [0] * 5
    assert sorted(i for got, _ in results for _, ids, _ in got for i in ids) == sorted(
        str(i) for i in range(40) if i % 2 == 0 or i % 4 == 1
    )


def test_a_failed_rank_hands_over_its_rows_and_all_raise_at_the_same_step():
    def fail(s):
        if s["input_ids"][0] == 13:
            raise LookupError("13")
        return s

    results = Ranks(2).run(from_stream(data()).map(fail, mode="threads", workers=2).batch(2))
    assert [len(got) for got, _ in results] == [3, 3]
    assert isinstance(results[1][1], LookupError)
    assert isinstance(results[0][1], StalledError)
    assert "rank 1 failed" in str(results[0][1])


def test_a_rank_that_leaves_all_out_stops_all_within_one_pass():
    feed = from_stream(data()).map(lambda s: None if s["input_ids"][0] % 2 else s, mode="threads", workers=2).batch(2)
    results = Ranks(2).run(feed, epochs=None)
    assert "gave no row" in str(results[1][1])
    assert isinstance(results[0][1], ThalwegError)
    assert "rank 1 gave no row" in str(results[0][1])


def test_a_rank_that_only_waits_is_named():
    hold = threading.Event()

    def wait(s):
        if s["input_ids"][0] == 9:
            hold.wait(60)
        return s

    feed = from_stream(data()).map(wait, mode="threads", workers=2).batch(1)
    ends = []

    def ended():  # all leave in one round: the first to go must not wake what the other is about to describe
        ends.append(None)
        if len(ends) == 2:
            hold.set()

    results = Ranks(2).run(feed, ended=ended, stall_after=3)
    assert "rank 1" in str(results[0][1])
    assert [len(got) for got, _ in results] == [4, 4]
    assert "hold.wait" in str(results[1][1])


@pytest.mark.parametrize(("patience", "said"), [(300, "reading"), (-1, "stalled")])
def test_all_ranks_stop_in_the_round_in_which_one_has_waited_too_long(patience, said):
    # model `tell`: a rank whose clock is ahead must not leave alone, the others would wait for its next answer
    told = []

    def agree(ready, status):
        told.append(status)
        return [(0, status if status == "stalled" else "reading"), (2, "stalled" if status == "reading" else "reading")]

    options = RunOptions(topology=Topology(0, 2), agree=agree, stall_after=patience)
    with pytest.raises(StalledError, match="rank 0 gave no row"):
        ask_all(options, lambda: Answer(0, READING))
    assert told == [said]


def test_three_samples_on_seven_ranks_end_at_once_for_all():
    # K33
    results = Ranks(7).run(from_stream(data(3)).batch(1))
    assert results == [([], None)] * 7


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(["reading", "ended", "failed", "empty", "stalled"])), min_size=2
    )
)
def test_peers_of_a_rank_answer_as_one_that_has_what_all_of_them_have(found):
    answers = [Answer(*a) for a in found]
    (one,) = of_ranks([(0, a) for a in answers], 1)
    assert one.ready == min(a.ready for a in answers)
    least = {a.status for a in answers if a.ready == one.ready}
    assert one.status in least
    assert (one.status == "reading") == (least == {"reading"})
    assert of_ranks([(r, a) for r, a in enumerate(answers)], len(answers)) == answers
