"""Promises of the waiting room."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg.plan.inorder import WaitingRoom


@given(
    st.lists(st.integers(1, 4), max_size=30).flatmap(lambda c: st.tuples(st.just(c), st.permutations(range(len(c)))))
)
def test_arrivals_in_any_order_come_out_by_number(case):
    # A14 A16
    counts, order = case
    starts = [sum(counts[:k]) for k in range(len(counts))]
    room, out = WaitingRoom(), []
    for k in order:
        room.arrive(starts[k], k, counts[k])
        while room.ready():
            out.append(room.take())
    assert out == list(range(len(counts)))
    assert room.next == sum(counts)
    assert len(room) == 0


def test_an_early_arrival_waits():
    # A16
    room = WaitingRoom()
    room.arrive(1, "b")
    assert not room.ready()
    with pytest.raises(KeyError):
        room.take()
    room.arrive(0, "a")
    assert [room.take(), room.take()] == ["a", "b"]


def test_a_number_comes_once():
    room = WaitingRoom(3)
    room.arrive(3, "x")
    for number in (3, 2):
        with pytest.raises(ValueError):
            room.arrive(number, "y")
