"""What is read equals what was written: types, keys, absence, the sign of zero."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from records_rows import equal

import thalweg as tw
from thalweg.core.errors import RecordsError, SampleError
from thalweg.core.sample import Ragged

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
scalar = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    text,
    st.binary(max_size=8),
)
dtypes = st.sampled_from(["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "?"])
array = dtypes.flatmap(lambda d: hnp.arrays(d, hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=3)))
number = dtypes.flatmap(lambda d: hnp.arrays(d, ())).map(lambda a: a[()])
nested = st.recursive(
    st.one_of(scalar, array, number),
    lambda x: st.lists(x, max_size=3) | st.dictionaries(text, x, max_size=3),
    max_leaves=6,
)
sample = st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), nested, max_size=4)
plain = st.fixed_dictionaries({"a": array, "b": scalar}, optional={"c": number, "d": st.lists(scalar, max_size=3)})


def write(path, rows, **options):
    with tw.create_records(path, sync=False, **options) as w:
        for row in rows:
            w.write(row)
    return tw.open_records(path)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(rows=st.lists(sample | plain, max_size=12), shard_bytes=st.sampled_from([1, 10**9]))
def test_any_rows_come_back_as_they_were(tmp_path_factory, rows, shard_bytes):
    path = tmp_path_factory.mktemp("set") / "s"
    rec = write(path, rows, shard_bytes=shard_bytes)
    assert len(rec) == len(rows)
    assert equal(list(rec), list(rows))
    assert all(equal(rec[i], rows[i]) for i in range(len(rows)))
    assert equal(tw.open_records(path, io="pread")[:], rows)
    rec.verify("full")


# K05
def test_numbers_come_back_exactly_and_date_like_text_stays_text(tmp_path):
    values = [9223372036854775807, 9223372036854775808, 18446744073709551615, 10**20, -0.0, float("nan"), float("inf")]
    dates = ["2024-01-02"] * 100 + ["n/a"]
    rows = [{"n": v, "mixed": [1, 1.5]} for v in values] + [{"when": d} for d in dates]
    rec = write(tmp_path / "set", rows)
    assert equal(list(rec), list(rows))
    assert rec.schema["when"] == "str"
    assert [type(v) for v in rec[0]["mixed"]] == [int, float]


# K06
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_neither_first_rows_nor_first_part_decide_the_type(tmp_path, order):
    files = [
        [{"id": i, "d": None, "l": []} for i in range(1500)],
        [{"id": 1500 + i, "d": {"k": "v"}, "l": [{"z": 1}]} for i in range(10)],
        [{"id": 1510 + i} for i in range(10)],
    ]
    rows = [row for k in order for row in files[k]]
    rec = write(tmp_path / "set", rows)
    assert len(rec) == 1520
    assert equal(list(rec), list(rows))
    assert "d" not in rec[1515 if order[0] == 0 else 5]


# K06
def test_a_late_value_of_another_type_changes_no_earlier_one(tmp_path):
    rows = [{"n": i} for i in range(1, 10_000)] + [{"n": "n/a"}]
    rec = write(tmp_path / "set", rows)
    assert equal(list(rec), list(rows))
    assert rec.schema["n"] == "json"
    with pytest.raises(SampleError, match=r"'n/a' is no int.*row 9999 column 'n'"):
        write(tmp_path / "declared", rows, schema={"n": "int"})
    assert list((tmp_path / "declared").iterdir()) == []


def test_absent_is_not_null(tmp_path):
    rows = [{"a": None, "b": 1}, {"b": 2}, {"b": None, "a": np.arange(2)}, {}, {"a": None}]
    rec = write(tmp_path / "set", rows)
    assert equal(list(rec), list(rows))
    assert rec.read([0, 1, 2], ["b"])["b"] == [1, 2, None]


@pytest.mark.parametrize("value", [{1, 2}, object(), np.array([object()]), np.datetime64("2024-01-01"), "\ud83d"])
def test_what_would_not_come_back_is_refused_and_named(tmp_path, value):
    with pytest.raises(SampleError, match="row 1"):
        write(tmp_path / "set", [{"a": 1}, {"a": value}])
    with pytest.raises(SampleError, match="row 0"):
        write(tmp_path / "set", [{"a": [value]}])


def test_a_bad_value_in_a_later_column_leaves_no_trace_of_its_row(tmp_path):
    rows = [{"a": 1, "b": 2}, {"a": 3, "b": object()}, {"a": 5, "b": 6}]
    rec = write(tmp_path / "set", rows, on_error="quarantine")
    assert [dict(r) for r in rec] == [rows[0], rows[2]]
    assert rec.quarantined == 1
    line = next((tmp_path / "set").glob("*.quarantine.jsonl")).read_text()
    assert '"row": 1' in line
    assert "has no place in a record" in line


def test_a_declared_schema_converts_without_loss_and_refuses_the_rest(tmp_path):
    schema = {"ids": "uint16[*]", "box": "float32[*,4]", "weight": "float32", "name": "str", "extra": "json"}
    row = {"ids": [1, 65535], "box": [[0.5, 1, 2, 3]], "weight": 0.5, "name": "x", "extra": {"k": [1, 2.5]}}
    rec = write(tmp_path / "set", [row], schema=schema)
    assert rec.schema == schema
    assert rec[0]["ids"].dtype == np.uint16
    assert rec[0]["box"].shape == (1, 4)
    assert rec[0]["weight"] == np.float32(0.5)
    assert type(rec[0]["weight"]) is np.float32
    for bad in ({"ids": [65536]}, {"ids": [-1]}, {"box": [[1, 2, 3]]}, {"name": 5}, {"naem": "x"}, {"ids": [1.5]}):
        with pytest.raises(SampleError, match="row 0"):
            write(tmp_path / "bad", [bad], schema=schema)
    with pytest.raises(ValueError, match="no type"):
        write(tmp_path / "bad", [], schema={"a": "strng"})


def test_arrays_may_be_used_again_by_the_caller(tmp_path):
    buffer = np.zeros(4, np.int32)
    with tw.create_records(tmp_path / "set", sync=False) as w:
        for i in range(5):
            buffer[:] = i
            w.write({"input_ids": buffer[: i % 4 + 1], "grid": buffer[::2].reshape(2, 1)})
    assert [r["input_ids"].tolist() for r in tw.open_records(tmp_path / "set")] == [[i] * (i % 4 + 1) for i in range(5)]


def test_arrays_that_are_handed_over_cannot_change_the_set(tmp_path):
    rec = write(tmp_path / "set", [{"input_ids": np.arange(5, dtype=np.int32)}])
    with pytest.raises(ValueError, match="read-only"):
        rec[0]["input_ids"][0] = 9
    with pytest.raises(ValueError, match="read-only"):
        rec.lengths[0] = 9


def test_columns_may_be_written_whole(tmp_path):
    boxes = Ragged(np.arange(24, dtype=np.float32).reshape(6, 4), np.array([0, 2, 6], np.int64))
    with tw.create_records(tmp_path / "set", sync=False) as w:
        assert w.write_batch({"boxes": boxes, "n": np.array([1, 2], np.int16), "t": ["x", None]}, ids=["p", "q"]) == 0
        assert w.write({"boxes": np.zeros((1, 4), np.float32), "n": np.int16(7), "t": "y"}) == 2
    rec = tw.open_records(tmp_path / "set")
    assert equal(rec[0], {"boxes": boxes[0], "n": np.int16(1), "t": "x"})
    assert rec[2]["n"] == 7
    assert rec.ids([0, 1, 2]) == ["p", "q", "2"]
    got = rec.read([1, 0])["boxes"]
    assert got.values.shape == (6, 4)
    assert np.array_equal(got[1], boxes[0])
    with pytest.raises(RecordsError, match="different lengths"), tw.create_records(tmp_path / "b") as w:
        w.write_batch({"a": np.arange(3), "b": ["x"]})


def test_more_columns_than_a_set_can_hold_are_refused(tmp_path):
    with pytest.raises(SampleError, match="more than 1000 columns"):
        write(tmp_path / "set", [{f"k{i}": i} for i in range(1001)])


def test_an_empty_set_opens_and_reads_nothing(tmp_path):
    rec = write(tmp_path / "set", [])
    assert len(rec) == 0
    assert rec[:] == []
    assert list(rec) == []
    assert rec.read([]) == {}
    rec.verify("full")
