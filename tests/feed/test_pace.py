"""The clock of a training loop: what is waited for, what the step takes, what was handed over; always on."""

import pytest

import thalweg as tw
from thalweg.core.batch import Batch, BatchInfo
from thalweg.feed import pace as room
from thalweg.feed.pace import Pace


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(room, "perf_counter", lambda: now[0])
    return now


def test_waiting_finishing_and_the_step_are_told_apart(clock):  # E1 E3
    pace, batch = Pace(), Batch(info=BatchInfo(num_tokens=5, num_label_tokens=3))

    def loop(wait, finish, step):
        def finishing(b):
            clock[0] += finish
            return b

        pace.asked()
        clock[0] += wait
        pace.timed(finishing, batch)
        pace.gave(batch)
        clock[0] += step

    loop(7.0, 0.5, 2.0)  # the first: its wait is a start, not a share of a step
    loop(1.0, 0.5, 2.0)
    loop(1.0, 0.5, 2.0)
    pace.asked()
    read = pace.read()
    assert (read["first_s"], read["waited_s"], read["finished_s"], read["consumed_s"]) == (7.0, 2.0, 1.5, 6.0)
    assert read["waiting_share"] == pytest.approx(2 / 9.5, abs=1e-6)
    assert (read["batches"], read["tokens"], read["label_tokens"]) == (3, 15, 9)
    assert read["tokens_per_second"] == pytest.approx(15 / 16.5, abs=1e-3)


def test_the_time_between_two_loops_is_nobodys(clock):
    pace, batch = Pace(), Batch()
    for _ in range(2):
        pace.begin()
        pace.asked()
        pace.gave(batch)
        clock[0] += 50
    assert pace.read()["consumed_s"] == 0.0


def test_a_loader_counts_tokens_and_padding_of_what_it_handed_over():
    samples = [{"input_ids": [1] * n} for n in (4, 2, 3, 3)]
    loader = tw.Loader(tw.from_dataset(samples).batch(2), workers=0, return_tensors="np")
    assert [b["input_ids"].shape for b in loader] == [(2, 4), (2, 3)]
    read = loader.stats()["loop"]
    assert (read["batches"], read["tokens"], read["label_tokens"]) == (2, 12, 8)
    assert read["padding"] == pytest.approx(1 - 12 / 14, abs=1e-6)
