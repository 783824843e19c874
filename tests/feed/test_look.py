"""Looking into a feed: what each stage gives, in this process, without moving anything."""

import threading
from itertools import islice

import numpy as np
import pytest

import thalweg as tw
from thalweg.core.errors import ConfigError

ROWS = [{"input_ids": np.arange(n, dtype=np.int32), "id": f"r{n}"} for n in range(1, 20)]


def feed():
    return tw.from_dataset(ROWS, id="id").shuffle(3)


def test_items_are_what_each_stage_gives():
    mapped = feed().map(lambda s: {"n": len(s["input_ids"])}, remove_columns="id", length="same")
    packed = mapped.map(lambda s: {}, remove_columns="n", length="same").pack(32, overlong="drop").batch(2)
    assert [s["id"] for s in packed.peek(3, after="source")] == ["r1", "r2", "r3"]
    first = packed.peek(after="shuffle")[0]["id"]
    assert packed.peek(2, after="shuffle")[0]["id"] == first
    row = packed.peek(after="pack")[0]
    assert len(row["input_ids"]) == len(row["labels"]) == len(row["position_ids"]) <= 32
    batch = packed.peek()[0]
    assert batch["input_ids"].shape == (2, 32)
    assert mapped.peek()[0].keys() == {"input_ids", "n"}
    with pytest.raises(ConfigError, match="no stage 'filter'"):
        packed.peek(after="filter")


def test_at_and_iteration_agree_and_count_rows():
    for one in (feed(), feed().pack(32, overlong="drop")):
        items = list(one)
        assert len(items) == one.num_rows
        assert np.array_equal(one.at(5)["input_ids"], items[5]["input_ids"])
        with pytest.raises(IndexError, match=str(one.num_rows)):
            one.at(one.num_rows)
    batched = feed().batch(4)
    assert batched.at(2).info.ids == list(batched)[2].info.ids


def test_what_a_look_shows_is_what_a_loader_gives():
    batched = feed().batch(4)
    seen = [b.info.ids for b in tw.Loader(batched, return_tensors="np")]
    assert [b.info.ids for b in islice(batched, len(seen))] == seen


def test_a_breakpoint_in_a_map_stops_in_this_thread():
    import threading

    threads = []
    feed().map(lambda s: threads.append(threading.current_thread()) or s).peek()
    assert threads == [threading.current_thread()]


def test_the_fingerprint_is_of_data_and_order_alone():
    same = tw.from_dataset(list(ROWS), id="id").shuffle(3)
    assert feed().fingerprint == same.fingerprint
    assert feed().batch(2).fingerprint == feed().batch(4).fingerprint  # the row is the unit of the order
    others = [
        tw.from_dataset(ROWS, id="id").take(5).shuffle(3),
        tw.from_dataset(ROWS, id="id").shuffle(4),
        feed().pack(32, overlong="drop"),
    ]
    assert len({feed().fingerprint, *(o.fingerprint for o in others)}) == 4


def test_a_look_at_batches_of_mapped_samples_runs_in_this_thread_and_leaves_none_behind():
    made_in = []

    def note(sample):
        made_in.append(threading.current_thread())
        return {"input_ids": sample["input_ids"]}

    before = set(threading.enumerate())
    feed = tw.from_dataset([{"input_ids": np.arange(1 + i, dtype=np.int32)} for i in range(20)]).map(note).batch(2)
    assert len(feed.peek(2)) == 2
    assert set(made_in) == {threading.current_thread()}
    assert set(threading.enumerate()) <= before


def test_a_stage_is_one_line_whatever_it_was_given():
    class Rows:
        def __repr__(self):
            return "Rows({\n    features: ['id', 'text', 'and', 'many', 'more', 'names', 'of', 'columns']\n})"

        def __iter__(self):
            return iter([])

    shown = [str(tw.from_stream(given).stages[0]) for given in (Rows(), iter([]))]
    assert shown[0] == "from_stream(make=Rows({ features: ['id', 'text', 'and', 'many'...))"
    assert shown[1] == "from_stream(make=list_iterator)"  # no address
