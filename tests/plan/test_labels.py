"""Loss spans and the two label conventions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg.core.errors import SampleError
from thalweg.core.sample import Ragged
from thalweg.plan import labels as lab


@st.composite
def documents(draw):
    """Documents with loss spans that rise and do not touch."""
    docs, spans = [], []
    for _ in range(draw(st.integers(0, 6))):
        n = draw(st.integers(0, 12))
        on = draw(st.lists(st.booleans(), min_size=n, max_size=n))
        edges = np.flatnonzero(np.diff(np.array([0, *on, 0], np.int8)))
        docs.append(np.arange(100, 100 + n, dtype=np.int32))
        spans.append(edges.reshape(-1, 2).astype(np.int32))
    return Ragged.from_rows(docs, np.int32), _spans(spans)


def _spans(rows):
    offsets = np.append(0, np.cumsum([len(r) for r in rows])).astype(np.int64)
    return Ragged(np.concatenate([*rows, np.empty((0, 2), np.int32)]), offsets)


# E23 C46
@given(documents())
def test_labels_are_the_token_in_the_loss_and_ignored_elsewhere(made):
    docs, spans = made
    got = lab.labels_from_spans(docs.values, docs.offsets, spans)
    for tokens, pairs, out in zip(docs, spans, Ragged(got, docs.offsets), strict=True):
        want = np.full(len(tokens), -100)
        for a, b in pairs:
            want[a:b] = tokens[a:b]
        want[:1] = -100
        assert out.tolist() == want.tolist()
    assert got.dtype == np.int64
    assert lab.count_labels(spans, docs.lengths).sum() == (got != -100).sum()
    everything = lab.labels_from_spans(docs.values, docs.offsets, None)
    for tokens, out in zip(docs, Ragged(everything, docs.offsets), strict=True):
        assert out.tolist() == [-100, *tokens[1:].tolist()][: len(tokens)]


@given(documents())
def test_spans_come_back_from_labels(made):
    docs, spans = made
    got = lab.labels_from_spans(docs.values, docs.offsets, spans)
    back = lab.spans_from_labels(got, docs.offsets)
    assert back.values.dtype == np.int32
    again = lab.labels_from_spans(docs.values, docs.offsets, back)
    assert np.array_equal(again, got)
    assert len(back) == len(docs)


# E23
@given(documents())
def test_who_shifts_is_stated_once_and_both_conventions_train_the_same_tokens(made):
    docs, spans = made
    inside = lab.labels_from_spans(docs.values, docs.offsets, spans)
    before = lab.shift(inside)
    assert (before != -100).sum() == (inside != -100).sum()
    assert np.array_equal(before[:-1], inside[1:])
    assert before[-1:].tolist() in ([], [-100])


def test_without_spans_every_token_but_a_documents_first_is_in_the_loss():
    got = lab.labels_from_spans(np.arange(5), np.array([0, 2, 2, 5]), None)
    assert got.tolist() == [-100, 1, -100, 3, 4]
    assert lab.count_labels(None, np.array([2, 0, 3])).tolist() == [1, 0, 2]


@pytest.mark.parametrize("pairs", [[[0, 4]], [[-1, 2]], [[2, 1]], [[1, 3], [2, 3]], [[2, 3], [0, 1]]])
def test_a_span_that_does_not_fit_names_its_document(pairs):
    spans = _spans([np.empty((0, 2), np.int32), np.array(pairs, np.int32)])
    with pytest.raises(SampleError, match="document 1"):
        lab.labels_from_spans(np.arange(6), np.array([0, 3, 6]), spans)


# E24
@given(documents(), st.integers(0, 6), st.integers(0, 14))
def test_spans_of_a_piece_are_those_of_the_tokens_it_keeps(made, start, stop):
    docs, spans = made
    a = np.minimum(start, docs.lengths)
    b = np.clip(stop, a, docs.lengths)
    cut = lab.cut_spans(spans, a, b)
    for pairs, kept, lo, hi, n in zip(spans, cut, a, b, docs.lengths, strict=True):
        on = np.zeros(n, bool)
        for x, y in pairs:
            on[x:y] = True
        got = np.zeros(hi - lo, bool)
        for x, y in kept:
            got[x:y] = True
        assert got.tolist() == on[lo:hi].tolist()
