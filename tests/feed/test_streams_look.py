"""Looking into a stream: what each stage gives, in this process, without moving anything."""

import threading
from itertools import islice

import numpy as np
import pytest

import thalweg as tw
from thalweg.core.errors import ConfigError


def documents():
    for i in range(40):
        yield {"text": "w " * (i % 7 + 1), "n": i}


def encode(sample):
    return {"input_ids": np.full(sample["n"] % 7 + 1, sample["n"], np.int32)}


def feed():
    return tw.from_stream(documents, shards=2).shuffle(buffer_size=8).map(encode, remove_columns="all")


def test_items_are_what_each_stage_gives():
    packed = feed().pack(16, policy="fill", overlong="drop").batch(2)
    assert packed.peek(3, after="source") == list(islice(documents(), 3))
    assert {s["n"] for s in packed.peek(16, after="shuffle")} == set(range(16))
    assert packed.peek(after="map")[0].keys() == {"input_ids"}
    row = packed.peek(after="pack")[0]
    assert len(row["input_ids"]) == len(row["labels"]) == len(row["position_ids"]) == 16
    assert packed.peek()[0]["input_ids"].shape == (2, 16)
    assert [b.info.ids for b in packed.peek(100)] == [
        b.info.ids for b in tw.Loader(packed, tail="pad", return_tensors="np")
    ]


def test_at_and_iteration_agree():
    items = list(feed())
    assert len(items) == 40
    assert np.array_equal(feed().at(7)["input_ids"], items[7]["input_ids"])
    with pytest.raises(IndexError):
        feed().at(40)


def test_a_look_runs_in_this_thread_leaves_none_and_takes_nothing_from_the_loader():
    threads, source = set(), [{"n": i} for i in range(9)]
    one = tw.from_stream(source).map(lambda s: threads.add(threading.current_thread()) or s, mode="threads", workers=3)
    loader = tw.Loader(one.batch(1, collate="raw"), return_tensors="np")
    assert one.peek(4) == source[:4]
    assert threads == {threading.current_thread()}
    assert [b["samples"][0]["n"] for b in loader] == list(range(9))
    loader.close()


def test_an_error_is_raised_behind_the_items_before_it():
    def fn(sample):
        if sample["n"] == 3:
            raise LookupError("three")
        return sample

    seen = []
    with pytest.raises(LookupError, match="three"):
        seen.extend(s["n"] for s in tw.from_stream(documents).map(fn))
    assert tw.from_stream(documents).map(fn).peek(3)[2]["n"] == 2


def test_a_source_that_can_be_read_once_is_not_used_up_by_looking():
    once = tw.from_stream(documents())
    with pytest.raises(ConfigError, match="can be read only once"):
        once.peek()
    loader = tw.Loader(once.batch(1, collate="raw"), return_tensors="np")
    assert len(list(loader)) == 40
    loader.close()
