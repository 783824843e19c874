"""Laying out several micro-batches at once is the same as laying out each alone."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import thalweg as tw
from thalweg.core.errors import ConfigError, SampleError
from thalweg.feed import grouping, planned


def batches(feed, ahead):
    before = grouping.FEW, grouping.MANY
    grouping.FEW = grouping.MANY = ahead
    try:
        return list(tw.Loader(feed, return_tensors="np", tail="pad"))
    finally:
        grouping.FEW, grouping.MANY = before


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


def records(folder, n=700):
    with tw.create_records(str(folder)) as writer:
        for i in range(n):
            writer.write({"input_ids": np.arange(i, i + 3 + i % 9, dtype=np.int32)}, id=f"r{i}")
    return tw.from_records(str(folder)).shuffle()


@pytest.mark.parametrize("cpus", [1, 4])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("collate", ["hf", "varlen"])
def test_batches_that_were_kept_and_written_to_change_no_other(tmp_path, monkeypatch, cpus, dtype, collate):
    monkeypatch.setattr(planned, "usable_cpus", lambda: cpus)
    feed = records(tmp_path / "r").batch(32, pad="none", collate=collate, dtype=dtype)  # 512 rows a call
    untouched = [{k: np.array(v) for k, v in b.items()} for b in batches(feed, 1)]
    kept = []
    for batch, before in zip(tw.Loader(feed, return_tensors="np", tail="pad"), untouched, strict=True):
        assert batch.keys() == before.keys()
        for name, value in batch.items():
            assert np.array_equal(value, before[name]), name
            if isinstance(value, np.ndarray):
                assert value.dtype == before[name].dtype, name
                np.add(value, 7, out=value)  # in place: writable, and no batch to come sees it
        kept.append(batch)
    for batch, before in zip(kept, untouched, strict=True):
        for name, value in batch.items():
            assert np.array_equal(value, before[name] + 7 if isinstance(value, np.ndarray) else before[name]), name


@pytest.mark.parametrize("pad", ["none", "right"])
@pytest.mark.parametrize("loss", ["plain", "labels", "loss_spans"])
def test_int32_is_the_same_batch_in_four_bytes(pad, loss):
    rows = [{"input_ids": np.arange(2 + i % 5, dtype=np.int32)} for i in range(40)]
    for row in rows:
        if loss == "labels":
            row["labels"] = np.where(row["input_ids"] % 2, row["input_ids"], -100).astype(np.int64)
        if loss == "loss_spans":
            row["loss_spans"] = np.array([[1, len(row["input_ids"])]], np.int32)
    wide, narrow = (
        list(tw.Loader(tw.from_dataset(rows).shuffle().batch(4, pad=pad, dtype=d), return_tensors="np"))
        for d in ("int64", "int32")
    )
    for a, b in zip(wide, narrow, strict=True):
        same(a, b)
        for name in {"input_ids", "labels", "position_ids", "attention_mask"} & a.keys():
            assert (a[name].dtype, b[name].dtype) == (np.int64, np.int32), name


def test_varlen_is_the_flat_row_without_what_the_device_makes():
    rows = [{"input_ids": np.arange(2 + i % 5, dtype=np.int32)} for i in range(40)]
    feed = tw.from_dataset(rows).shuffle()
    for whole, alone in zip(
        tw.Loader(feed.batch(4, pad="none"), return_tensors="np"),
        tw.Loader(feed.batch(4, pad="none", collate="varlen"), return_tensors="np"),
        strict=True,
    ):
        assert list(alone) == ["input_ids", "cu_seqlens", "max_seqlen"]
        assert np.array_equal(alone["input_ids"], whole["input_ids"][0])
        assert alone["input_ids"].ndim == 1
        assert np.array_equal(alone["cu_seqlens"], whole["cu_seq_lens_q"])
        assert alone["max_seqlen"] == whole["max_length_q"]
        assert alone.info.num_label_tokens == whole.info.num_label_tokens
        assert alone.info.ids == whole.info.ids


@pytest.mark.parametrize("ahead", [1, 16])
def test_varlen_refuses_samples_that_mark_their_loss(ahead):
    for loss in ({"labels": np.arange(3)}, {"loss_spans": np.array([[1, 3]], np.int32)}):
        rows = [{"input_ids": np.arange(3, dtype=np.int32), **loss}] * 8
        with pytest.raises(ConfigError, match="loss"):
            batches(tw.from_dataset(rows).batch(2, pad="none", collate="varlen"), ahead)


def test_what_has_no_int32_is_refused_when_the_feed_is_built():
    feed = tw.from_dataset([{"input_ids": np.arange(3, dtype=np.int32)}])
    for collate in ("megatron", "torchtitan", "raw", list):
        with pytest.raises(ConfigError, match="int32"):
            feed.batch(1, collate=collate, dtype="int32")
    with pytest.raises(ConfigError, match="dtype"):
        feed.batch(1, dtype="int16")
    with pytest.raises(ConfigError, match="flat row"):
        feed.batch(1, collate="varlen")


@pytest.mark.parametrize("bad", [0, 7])  # of the first batch, and of those that are laid out together
def test_a_label_that_int32_cannot_hold_is_never_wrapped(bad):
    rows = [{"input_ids": np.arange(3, dtype=np.int32), "labels": np.array([1, 2, 3])} for _ in range(8)]
    rows[bad]["labels"] = np.array([1, 2, 2**40])
    with pytest.raises(SampleError, match="int32"):
        batches(tw.from_dataset(rows).batch(1, pad="none", dtype="int32"), 16)
