"""Samples, ragged columns, documents, batches, books, places: the values that flow."""

import pickle
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg.core.batch import Batch, BatchInfo
from thalweg.core.document import Document, Media
from thalweg.core.errors import ConfigError
from thalweg.core.sample import Ragged
from thalweg.core.tally import Tally
from thalweg.core.topology import Topology
from thalweg.testing import difference

rows = st.lists(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=5), max_size=8)


@given(rows)
def test_a_ragged_column_gives_its_rows_back(values):
    column = Ragged.from_rows(values, np.int32)
    assert [row.tolist() for row in column] == values
    assert [column[i].tolist() for i in range(len(column))] == values
    assert [column[-1 - i].tolist() for i in range(len(column))] == values[::-1]
    assert column.lengths.tolist() == [len(v) for v in values]
    assert column.offsets.dtype == np.int64
    assert column.values.dtype == np.int32


def test_a_ragged_column_keeps_inner_shapes_and_gives_views():
    column = Ragged.from_rows([np.zeros((2, 3)), np.ones((1, 3))])
    assert column[1].shape == (1, 3)
    column[1][:] = 5
    assert column.values[2].tolist() == [5, 5, 5]


@pytest.mark.parametrize("row", [2, -3])
def test_a_row_that_is_not_there_is_an_index_error(row):
    with pytest.raises(IndexError, match=f"row {row} of 2"):
        _ = Ragged.from_rows([[1], [2]])[row]


def test_documents_and_media_have_the_fields_of_the_common_libraries():
    document = Document("t", "id", [Media("m", "image", "u")], {"a": 1})
    assert (document.text, document.id, document.media[0].url, document.metadata) == ("t", "id", "u", {"a": 1})
    assert pickle.loads(pickle.dumps(document)) == document
    assert Document("", "").metadata is not Document("", "").metadata


# ---- batches


class Tensor:
    """Something with the methods of a tensor."""

    def __init__(self, place="cpu"):
        self.place = place

    def to(self, place, *, non_blocking=False):
        return Tensor(f"{place}{'!' * non_blocking}")

    def pin_memory(self):
        return Tensor("pinned")


def test_moving_a_batch_moves_its_tensors_and_keeps_the_rest_and_the_info():
    batch = Batch({"input_ids": Tensor(), "use_cache": False, "max_length_q": 7}, info=BatchInfo(step=3))
    moved = batch.to("cuda:1", non_blocking=True)
    assert type(moved) is Batch
    assert moved["input_ids"].place == "cuda:1!"
    assert (moved["use_cache"], moved["max_length_q"], moved.info) == (False, 7, batch.info)
    assert batch["input_ids"].place == "cpu"
    assert batch.pin_memory()["input_ids"].place == "pinned"


def test_a_batch_is_built_the_way_trainers_rebuild_it():
    batch = Batch({"input_ids": 1}, info=BatchInfo(step=3))
    again = type(batch)({k: v for k, v in batch.items() if v})
    assert dict(again) == {"input_ids": 1}
    assert again.info.step == 0
    assert {**batch} == {"input_ids": 1}
    assert Batch([("a", 1)], b=2) == {"a": 1, "b": 2}


def test_a_batch_pickles_with_its_info():
    batch = Batch({"input_ids": np.arange(3)}, info=BatchInfo(ids=[["a"]], weight=np.ones(1, np.float32)))
    assert difference(pickle.loads(pickle.dumps(batch)), batch) is None


def test_torch_and_accelerate_move_a_batch_and_it_stays_one():
    torch = pytest.importorskip("torch")
    batch = Batch({"input_ids": torch.zeros(1, 2, dtype=torch.int64)}, info=BatchInfo(step=1))
    assert batch.to(torch.device("meta"))["input_ids"].device.type == "meta"
    assert batch.to("meta", non_blocking=True).info.step == 1


# ---- books

counts = st.integers(0, 10**9)
tallies = st.builds(
    Tally, counts, counts, counts, st.dictionaries(st.sampled_from("abc"), st.integers(1, 99)).map(Counter), counts
)


@given(counts, counts, st.dictionaries(st.text(max_size=3), st.integers(0, 10**6)), counts)
def test_books_balance_exactly_when_every_item_is_accounted_for(out, made, reasons, quarantined):
    tally = Tally(made=made, out=out, quarantined=quarantined)
    for reason, n in reasons.items():
        tally.drop(reason, n)
    tally.taken = out + sum(reasons.values()) + quarantined - made
    assert tally.balance == 0
    tally.out += 1
    assert tally.balance == -1
    tally.drop("another", 0)
    assert "another" in tally.dropped


@given(st.lists(tallies, max_size=5))
def test_adding_books_does_not_depend_on_order_and_keeps_the_balance(books):
    forwards, backwards = Tally(), Tally()
    for a, b in zip(books, reversed(books), strict=True):
        forwards, backwards = forwards + a, backwards + b
    assert forwards == backwards
    assert forwards.balance == sum(t.balance for t in books)


@given(tallies)
def test_books_survive_being_written(tally):
    assert Tally.from_dict(tally.to_dict()) == tally


# D29
def test_a_reason_that_was_counted_as_zero_keeps_its_place_when_books_are_added():
    first, second = Tally(), Tally()
    first.drop("too long", 0)
    second.drop("too short", 2)
    assert (first + second).to_dict()["dropped"] == {"too long": 0, "too short": 2}


# ---- topology


@pytest.mark.parametrize(
    "words",
    [
        {"dp_rank": 2, "dp_size": 2},
        {"dp_rank": -1},
        {"dp_size": 0},
        {"cp_rank": 1},
        {"cp_size": 0},
        {"rank": 3, "world": 3},
    ],
)
def test_a_rank_outside_its_size_is_refused(words):
    with pytest.raises(ConfigError, match="does not fit"):
        Topology(**words)


def test_rank_and_world_are_other_names():
    assert Topology(rank=1, world=3) == Topology(dp_rank=1, dp_size=3)
    assert Topology() == Topology(0, 1, 0, 1)
    assert pickle.loads(pickle.dumps(Topology(1, 2, 1, 4))) == Topology(1, 2, 1, 4)


def test_the_environment_of_torchrun_is_read():
    assert Topology.from_env({"RANK": "1", "WORLD_SIZE": "2"}) == Topology(1, 2)
    assert Topology.from_env({}) == Topology()
    for environ, words in [
        ({"RANK": "0"}, "only one of RANK and WORLD_SIZE"),
        ({"WORLD_SIZE": "2"}, "only one of RANK and WORLD_SIZE"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "must be numbers"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "does not fit"),
    ]:
        with pytest.raises(ConfigError, match=words):
            Topology.from_env(environ)
