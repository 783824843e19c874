"""Laying out several micro-batches at once is the same as laying out each alone."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import thalweg as tw
from thalweg.feed import planned


def batches(feed, ahead):
    before = planned.AHEAD_BATCHES
    planned.AHEAD_BATCHES = ahead
    try:
        return list(tw.Loader(feed, return_tensors="np", tail="pad"))
    finally:
        planned.AHEAD_BATCHES = before


def same(a, b):
    assert a.keys() == b.keys()
    for key in a:
        assert np.array_equal(a[key], b[key]), key
    for name in ("ids", "num_tokens", "num_label_tokens", "step_label_tokens", "epoch", "step", "micro", "last"):
        assert getattr(a.info, name) == getattr(b.info, name), name
    assert np.array_equal(a.info.weight, b.info.weight)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=60),
    st.sampled_from(["plain", "labels", "spans"]),
    st.sampled_from(["flat", "packed", "packed flat"]),
    st.integers(1, 5),
    st.sampled_from(["hf", "megatron", "torchtitan"]),
)
@example([0, 1, 0], "plain", "flat", 1, "hf")
def test_together_is_each_alone(lengths, loss, form, size, dialect):
    rng = np.random.default_rng(len(lengths))
    rows = []
    for n in lengths:
        row = {"input_ids": rng.integers(0, 9, n).astype(np.int32)}
        keep = rng.random(n) < 0.5
        if loss == "labels":
            row["labels"] = np.where(keep, row["input_ids"], -100).astype(np.int64)
        if loss == "spans":
            a = int(rng.integers(0, n + 1))
            row["loss_spans"] = np.array([[a, n]] if a < n else np.empty((0, 2)), np.int32)
        rows.append(row)
    feed = tw.from_dataset(rows).shuffle()
    if form != "flat":
        feed = feed.pack(40, overlong="drop")
    feed = feed.batch(size, pad="none" if "flat" in form else "right", collate=dialect)
    one, many = batches(feed, 1), batches(feed, 16)
    assert len(one) == len(many)
    for a, b in zip(one, many, strict=True):
        same(a, b)


@pytest.mark.parametrize("pad", ["none", "right"])
def test_a_batch_belongs_to_its_caller(pad):
    rows = [{"input_ids": np.arange(5, dtype=np.int32)} for _ in range(64)]
    feed = tw.from_dataset(rows).pack(16, overlong="drop").batch(2, pad=pad)
    untouched = batches(feed, 1)
    for i, batch in enumerate(tw.Loader(feed, return_tensors="np", tail="pad")):
        same(batch, untouched[i])
        for value in batch.values():
            if isinstance(value, np.ndarray):
                np.add(value, 7, out=value)  # writable, and no other batch sees it
