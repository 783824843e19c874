"""Ranges of memory laid end to end, whatever owns it and however far apart it lies."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg.store.records import gather

BASE = 1 << 30


def address(array):
    return array.__array_interface__["data"][0]


# E35
@settings(deadline=None)
@given(
    st.sampled_from(["uint8", "uint16", "int32", "int64"]),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60), st.integers(0, 40)), max_size=500),
)
def test_ranges_of_several_arrays_come_in_the_order_asked(width, asked):
    owners = [np.arange(k, k + 100).astype(width) for k in range(4)]
    asked = asked * 3  # few of them are joined, many are cast
    addresses = np.array([address(owners[o]) + a * owners[o].itemsize for o, a, _ in asked], np.int64)
    got = gather.gather_at(addresses, width, np.array([n for _, _, n in asked], np.int64))
    assert got.dtype == np.dtype(width)
    assert got.tolist() == [v for o, a, n in asked for v in owners[o][a : a + n].tolist()]


@pytest.mark.parametrize("rows", [gather.CAST_FROM - 1, gather.CAST_FROM + 1])
def test_memory_may_lie_gigabytes_apart(rows):
    far = np.zeros(5 * BASE, np.uint8)  # addresses only: its pages are never written
    near = np.arange(256, dtype=np.uint8)
    for at in (7, 3 * BASE - 5, 5 * BASE - 300):
        far[at : at + 256] = near
    places = [address(far) + 7, address(far) + 3 * BASE - 5, address(near), address(far) + 5 * BASE - 300]
    picks = np.random.default_rng(0).integers(0, 4, rows)
    sizes = np.random.default_rng(1).integers(0, 256, rows)
    got = gather.gather_at(np.array(places)[picks], "uint8", sizes)
    assert np.array_equal(got, np.concatenate([near[:n] for n in sizes.tolist()]))
