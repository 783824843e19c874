"""Rows as arrays, against a slow layout that puts one token after another."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg.core.errors import ConfigError, InputError
from thalweg.core.sample import Ragged
from thalweg.plan.rows import lay_out, positions


@st.composite
def batches(draw, most=4):
    """Rows of documents (empty ones are samples that failed), with loss spans or none."""
    rows = draw(st.lists(st.lists(st.integers(0, 7), max_size=most), min_size=1, max_size=4))
    sizes = [n for r in rows for n in r]
    docs = [np.arange(i * 100 + 1, i * 100 + 1 + n, dtype=np.int32) for i, n in enumerate(sizes)]
    on = [draw(st.lists(st.booleans(), min_size=n, max_size=n)) for n in sizes]
    spans = None
    if draw(st.booleans()):
        pairs = [np.flatnonzero(np.diff(np.array([0, *o, 0], np.int8))).reshape(-1, 2).astype(np.int32) for o in on]
        bounds = np.append(0, np.cumsum([len(p) for p in pairs])).astype(np.int64)
        spans = Ragged(np.concatenate([*pairs, np.empty((0, 2), np.int32)]), bounds)
    else:
        on = [[True] * n for n in sizes]
    offsets = np.append(0, np.cumsum([len(r) for r in rows])).astype(np.int64)
    return Ragged.from_rows(docs, np.int32), offsets, spans, on


def slow(docs, offsets, on, *, pad, width, pad_id, align):
    """Give ids, labels, positions and segment sizes, token by token."""
    out = []
    for b in range(len(offsets) - 1):
        ids, labels, positions, segments = [], [], [], []
        for d in range(offsets[b], offsets[b + 1]):
            n = len(docs[d])
            if not n:
                continue
            full = -(-n // align) * align
            ids += [*docs[d].tolist(), *[pad_id] * (full - n)]
            labels += [t if o and i else -100 for i, (t, o) in enumerate(zip(docs[d].tolist(), on[d], strict=True))]
            labels += [-100] * (full - n)
            positions += range(full)
            segments.append(full)
        tail = width - len(ids) if width is not None else 0
        parts = ([pad_id] * tail, [-100] * tail, list(range(tail)), [tail] if tail else [])
        row = (ids, labels, positions, segments)
        out.append([b + a if pad == "left" else a + b for a, b in zip(row, parts, strict=True)])
    return out


def with_labels(docs, on):
    """Give the same loss as labels of the documents."""
    rows = [np.where(np.array(o, bool), d, -100) for d, o in zip(docs, on, strict=True)]
    return Ragged.from_rows(rows, np.int64)


# C45 C46 E22
@given(batches(), st.sampled_from([1, 1, 2, 4]), st.sampled_from([1, 8]), st.booleans(), st.sampled_from([0, 3, 101]))
@settings(max_examples=300, deadline=None)
def test_packed_rows_stand_as_the_slow_layout_says(batch, align, multiple, full, pad_id):
    docs, offsets, spans, on = batch
    width = 4 * 8 if full else None
    got = lay_out(
        docs,
        offsets,
        spans=spans,
        capacity=width,
        align=align,
        pad_to_multiple_of=multiple,
        pad_id=pad_id,
        max_docs=None,
    )
    width = got.input_ids.shape[1]
    assert width % multiple == 0
    want = slow(docs, offsets, on, pad="right", width=width, pad_id=pad_id, align=align)
    assert got.input_ids.tolist() == [r[0] for r in want]
    assert got.labels.tolist() == [r[1] for r in want]
    assert got.position_ids.tolist() == [r[2] for r in want]
    assert np.diff(got.cu_seqlens).tolist() == [n for r in want for n in r[3]]
    assert got.cu_seqlens[-1] == got.input_ids.size
    assert got.max_seqlen == max(n for r in want for n in r[3])
    assert got.num_tokens == sum(docs.lengths)
    assert got.num_label_tokens == (got.labels != -100).sum()
    assert got.weight.tolist() == [float(docs.lengths[a:b].sum() > 0) for a, b in itertools.pairwise(offsets)]
    starts = got.segment_ids
    assert np.array_equal(np.diff(starts, axis=1) == 1, got.position_ids[:, 1:] == 0)
    assert (starts[:, 0] == 0).all()
    assert got.cu_seqlens.dtype == np.int32
    assert got.input_ids.dtype == got.labels.dtype == got.position_ids.dtype == np.int64
    given_labels = lay_out(
        docs, offsets, labels=with_labels(docs, on), capacity=width, align=align, pad_id=pad_id
    )  # fmt: skip
    assert given_labels.labels.tolist() == got.labels.tolist()
    assert given_labels.num_label_tokens == got.num_label_tokens


# E17 E22
@given(batches(most=1), st.sampled_from(["right", "left"]), st.sampled_from([None, 9]), st.sampled_from([0, 101]))
@settings(max_examples=200, deadline=None)
def test_padded_rows_stand_as_the_slow_layout_says(batch, pad, capacity, pad_id):
    docs, offsets, spans, on = batch
    got = lay_out(docs, offsets, spans=spans, packed=False, pad=pad, capacity=capacity, pad_id=pad_id)
    want = slow(docs, offsets, on, pad=pad, width=got.input_ids.shape[1], pad_id=pad_id, align=1)
    assert got.input_ids.tolist() == [r[0] for r in want]
    assert got.labels.tolist() == [r[1] for r in want]
    given_labels = lay_out(docs, offsets, labels=with_labels(docs, on), packed=False, pad=pad, capacity=capacity)
    assert given_labels.labels.tolist() == got.labels.tolist()
    assert got.position_ids.tolist() == [r[2] for r in want]


@given(batches())
def test_without_padding_all_rows_stand_in_one(batch):
    docs, offsets, spans, on = batch
    got = lay_out(docs, offsets, spans=spans, pad="none")
    want = slow(docs, offsets, on, pad="right", width=None, pad_id=0, align=1)
    ids = [t for r in want for t in r[0]]
    assert got.packed
    assert got.input_ids.tolist() == [ids or [0]]
    if ids:
        assert got.labels.tolist() == [[t for r in want for t in r[1]]]
        assert np.diff(got.cu_seqlens).tolist() == [n for r in want for n in r[3]]
    assert len(got.weight) == len(offsets) - 1


# C46
def test_a_real_token_that_equals_the_padding_stays_a_token():
    docs = Ragged.from_rows([[7, 0, 7], [0, 0]], np.int32)
    got = lay_out(docs, np.array([0, 2]), capacity=8, pad_id=0)
    assert got.labels.tolist() == [[-100, 0, 7, -100, 0, -100, -100, -100]]
    assert got.cu_seqlens.tolist() == [0, 3, 5, 8]
    assert got.num_tokens == 5


def test_labels_given_by_a_map_are_taken_as_they_are_but_for_the_first_token():
    docs = Ragged.from_rows([[7, 8, 9], [4, 5]], np.int32)
    labels = Ragged.from_rows([[7, -100, 9], [4, 5]], np.int64)
    got = lay_out(docs, np.array([0, 2]), capacity=6, labels=labels)
    assert got.labels.tolist() == [[-100, -100, 9, -100, 5, -100]]
    assert got.num_label_tokens == 2


# K36 C21
def test_a_row_above_its_capacity_is_an_error():
    docs = Ragged.from_rows([[1] * 5, [2] * 6], np.int32)
    with pytest.raises(InputError, match="row 0 has 11 tokens and rows take 10"):
        lay_out(docs, np.array([0, 2]), capacity=10)


def test_borders_have_a_fixed_number_where_documents_are_capped():
    docs = Ragged.from_rows([[1] * 3, [2] * 2, [3] * 4, []], np.int32)
    got = lay_out(docs, np.array([0, 2, 4]), capacity=6, max_docs=3)
    assert got.cu_seqlens.tolist() == [0, 3, 5, 6, 10, 12, 12, 12, 12]
    assert got.segment_ids.tolist() == [[0, 0, 0, 1, 1, 2], [0, 0, 0, 0, 1, 1]]
    with pytest.raises(InputError, match="2 documents and max_docs is 1"):
        lay_out(docs, np.array([0, 2, 4]), capacity=6, max_docs=1)


def test_packed_rows_can_not_be_padded_on_the_left():
    docs = Ragged.from_rows([[1], [2]], np.int32)
    with pytest.raises(ConfigError, match="left"):
        lay_out(docs, np.array([0, 2]), pad="left")
    with pytest.raises(ConfigError, match="one document"):
        lay_out(docs, np.array([0, 2]), packed=False)


# C47
def test_multimodal_positions_follow_their_document_and_padding_counts_on_its_own():
    docs = Ragged.from_rows([[1, 2, 3], [4, 5]], np.int32)
    rope = Ragged.from_rows([[[0, 0, 0], [1, 1, 1], [1, 1, 2]], [[0, 0, 0], [1, 2, 3]]], np.int64)
    got = lay_out(docs, np.array([0, 2]), capacity=7, rope=rope, aligned={"mm_token_type_ids": docs})
    assert got.position_ids.shape == (4, 1, 7)
    assert got.position_ids[:, 0].tolist() == [
        [0, 1, 2, 0, 1, 0, 1],
        [0, 1, 1, 0, 1, 0, 1],
        [0, 1, 1, 0, 2, 0, 1],
        [0, 1, 2, 0, 3, 0, 1],
    ]
    assert got.columns["mm_token_type_ids"].tolist() == [[1, 2, 3, 4, 5, 0, 0]]


def test_rows_can_be_int32():
    docs = Ragged.from_rows([[1, 2, 3], [4, 5]], np.int32)
    got = lay_out(docs, np.array([0, 2]), capacity=7, dtype=np.int32)
    assert got.input_ids.dtype == got.labels.dtype == got.position_ids.dtype == np.int32
    assert got.labels.tolist() == [[-100, 2, 3, -100, 5, -100, -100]]


@given(batches(), st.integers(1, 3), st.sampled_from([None, 4]))
@settings(max_examples=150, deadline=None)
def test_micro_batches_split_from_many_rows_equal_those_laid_out_alone(batch, rows, max_docs):
    docs, offsets, spans, _ = batch
    made = lay_out(docs, offsets, spans=spans, capacity=32, max_docs=max_docs).split(rows)
    assert len(made) == -(-(len(offsets) - 1) // rows)
    for i, part in enumerate(made):
        own = offsets[i * rows : (i + 1) * rows + 1]
        a, b = own[0], own[-1]
        tokens = Ragged.from_rows([docs[d] for d in range(a, b)], np.int32)
        inner = None
        if spans is not None:
            bounds = spans.offsets[a : b + 1]
            inner = Ragged(spans.values[bounds[0] : bounds[-1]], bounds - bounds[0])
        alone = lay_out(tokens, own - a, spans=inner, capacity=32, max_docs=max_docs)
        for name in ("input_ids", "labels", "position_ids", "cu_seqlens", "lengths", "weight", "segment_ids"):
            assert getattr(part, name).tolist() == getattr(alone, name).tolist(), name
        for name in ("max_seqlen", "num_tokens", "num_label_tokens", "packed", "pad"):
            assert getattr(part, name) == getattr(alone, name), name


def test_a_flat_row_can_not_be_split():
    docs = Ragged.from_rows([[1], [2]], np.int32)
    with pytest.raises(ConfigError, match="flat row"):
        lay_out(docs, np.array([0, 1, 2]), pad="none").split(1)


def test_positions_restart_in_documents_of_any_length():
    for lengths in ([3, 0, 5], [20_000, 1], [2, 30_000]):  # the second and third are longer than any before
        got = positions(np.array(lengths), np.int32)
        assert got.dtype == np.int32
        assert got.tolist() == [p for n in lengths for p in range(n)]
