"""What a packed feed leaves out and cuts is told in documents and tokens, in stats and in print."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import thalweg as tw
from thalweg.feed import compile as planning
from thalweg.feed import nodeplans
from thalweg.feed.packreport import packing_report

ROW = 16


def rows_of(lengths):
    return [
        {"input_ids": np.arange(n, dtype=np.int32), "loss_spans": np.array([[n // 2, n]], np.int32), "id": str(i)}
        for i, n in enumerate(lengths)
    ]


def plain(lengths):
    rows = [{"input_ids": np.arange(n, dtype=np.int32), "id": str(i)} for i, n in enumerate(lengths)]
    return tw.from_dataset(rows, id="id", fingerprint=f"losses:{lengths}")


def told(feed, **words):
    """Run an epoch: (what stats say is lost, tokens handed over)."""
    loader = tw.Loader(feed, tail="pad", return_tensors="np", **words)
    tokens = sum(batch.info.num_tokens for batch in loader)
    return loader.stats(), tokens, loader


lengths = st.lists(st.integers(1, 40), min_size=1, max_size=40)


# C22 E50 C45
@given(lengths, st.sampled_from(["drop", "truncate", "split"]), st.sampled_from(["best_fit", "fill", "next_fit"]))
@settings(max_examples=50, deadline=None)
def test_tokens_of_the_data_are_those_handed_over_and_those_told_as_lost(sizes, overlong, policy):
    feed = plain(sizes).shuffle().pack(ROW, overlong=overlong, policy=policy).batch(2)
    found, tokens, loader = told(feed)
    lost = found.get("lost", {})
    assert tokens + sum(n["tokens"] for n in lost.values()) == sum(sizes)
    long = [n for n in sizes if n > ROW]
    reason = {"drop": "overlong", "truncate": "truncated", "split": "split"}[overlong]
    assert lost.get(reason, {"documents": 0})["documents"] == len(long)
    assert (f"{reason}: {len(long):,} documents, {lost[reason]['tokens']:,} tokens" in str(loader)) if long else True
    report = packing_report(feed)
    assert report.loss.tokens == sum(n["tokens"] for n in lost.values())


# C22 E24
def test_documents_that_truncation_refuses_are_told_by_reason():
    rows = rows_of([10, 20, 40, 100, 8])
    feed = tw.from_dataset(rows, id="id").pack(ROW, overlong="truncate").batch(1)
    found, tokens, _ = told(feed)
    assert found["lost"] == {
        "no token in the loss after truncation": {"documents": 2, "tokens": 140},
        "truncated": {"documents": 1, "tokens": 4},
    }
    assert tokens == 10 + 16 + 8


# C22 E50
@pytest.mark.parametrize(("overlong", "reason"), [("drop", "overlong"), ("truncate", "truncated"), ("split", "split")])
def test_a_stream_tells_the_same_losses(overlong, reason):
    sizes = [3, 30, 16, 17, 5, 64]
    stream = tw.from_stream([{"input_ids": np.arange(n, dtype=np.int32)} for n in sizes])
    feed = stream.pack(ROW, policy="next_fit", overlong=overlong).batch(1)
    found, tokens, loader = told(feed)
    lost = found["1 pack"]["lost"]
    planned = told(plain(sizes).pack(ROW, policy="next_fit", overlong=overlong).batch(1))[0]["lost"]
    assert lost == planned
    assert tokens + lost[reason]["tokens"] == sum(sizes)
    assert f"1 pack: {reason}: 3 documents" in str(loader)


def test_batches_of_a_bucket_that_are_dropped_are_told():
    sizes = [4] * 7 + [12] * 3
    feed = plain(sizes).bucket([8], [4, 2], remainder="drop")
    found, tokens, _ = told(feed)
    assert found["lost"] == {"last of a bucket": {"documents": 4, "tokens": 24}}
    assert tokens == sum(sizes) - 24


def test_a_plan_that_the_node_has_kept_tells_its_losses(tmp_path, monkeypatch):
    monkeypatch.setenv("THALWEG_CACHE", str(tmp_path))
    monkeypatch.setattr(nodeplans, "BLOCK_DRAWS", 1)
    feed = plain([5, 30, 60, 7]).shuffle().pack(ROW, overlong="truncate").batch(1)
    first = told(feed)[0]["lost"]
    monkeypatch.setattr(planning, "pack_rows", None)  # the kept plan is read, not made again
    assert told(feed)[0]["lost"] == first == {"truncated": {"documents": 2, "tokens": 58}}
    assert json.loads(json.dumps(first)) == first
