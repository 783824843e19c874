"""Promises of joining items into jobs: by what calls take and give, never those that wait."""

import pytest

from thalweg.work.budget import ByteBudget
from thalweg.work.pace import ChunkTuner
from thalweg.work.port import Port
from thalweg.work.reader import Reader


def chosen(each, busy=None, *, remote=False, ahead=512, workers=2, item_bytes=0.0):
    port = Port(ByteBudget(), None, True)
    reader = Reader(port, (), ahead, 1, None)
    tuner = ChunkTuner(port, reader, ahead, workers)
    port.remote, port.item_bytes = remote, item_bytes
    port.pace.extend([(each * 4, (each if busy is None else busy) * 4, 4)] * 9)
    port.pace.append((10.0, 10.0, 1))  # a pause of the interpreter moves no median
    for _ in range(tuner.LOOK_EVERY):
        tuner.look()
    return reader.chunk


us = 1e-6


@pytest.mark.parametrize(
    ("each", "remote", "chunk"),
    [
        (1 * us, False, 128),
        (20 * us, False, 25),
        (60 * us, False, 1),
        (20 * us, True, 128),
        (400 * us, True, 10),
        (600 * us, True, 1),
    ],
)
def test_fast_calls_are_joined_and_slow_ones_are_not(each, remote, chunk):
    assert chosen(each, remote=remote) == chunk


def test_calls_that_wait_are_never_joined():
    # a static chunk of 8 halves the rate of waiting calls
    assert chosen(40 * us, busy=5 * us) == 1
    assert chosen(400 * us, busy=5 * us, remote=True) == 1


def test_no_job_takes_more_than_its_share_of_what_may_be_ahead_or_of_bytes():
    assert chosen(1 * us, ahead=32, workers=4) == 4
    assert chosen(1 * us, ahead=2, workers=4) == 1
    assert chosen(20 * us, remote=True, item_bytes=1 << 20) == 4
    assert chosen(20 * us, remote=True, item_bytes=1 << 24) == 1
