"""Ends of documents: rows cut and whole, short and empty ones included."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg.encode.ends import dress

SIDES = st.lists(st.integers(0, 2**31 - 1), max_size=4).map(tuple)


# E16
@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 9), max_size=99), SIDES, SIDES, st.one_of(st.none(), st.integers(5, 12)))
def test_each_row_has_its_ends_or_is_cut(sizes, before, after, limit):
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    ids = np.arange(1, offsets[-1] + 1, dtype=np.int32)
    rows = dress((ids, offsets), before, after, limit)
    wanted = []
    for a, b in itertools.pairwise(offsets):
        whole = [*before, *ids[a:b].tolist(), *after]
        cut = [*before, *ids[a:b].tolist()][: limit or 0]
        wanted.append(whole if limit is None or len(whole) <= limit else cut)
    assert [row.tolist() for row in rows] == wanted
    assert rows.values.dtype == np.int32


def test_rows_may_be_written_to():
    ids, offsets = np.arange(8, dtype=np.int32), np.array([0, 8])
    rows = dress((ids, offsets), (), (7,), None)
    rows.values[0] = 99
    assert ids[0] == 0
