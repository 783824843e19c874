"""Records used wrongly: each mistake is told at once, and no value comes back as another one."""

import numpy as np
import pytest

import thalweg as tw
from thalweg.core.errors import ConfigError, RecordsError, SampleError


def written(path, *rows):
    with tw.create_records(path) as writer:
        for row in rows:
            writer.write(row)
    return tw.open_records(path)


@pytest.mark.parametrize("dtype", [">i4", ">u2", ">f8", ">i8"])
def test_arrays_of_the_other_byte_order_come_back_with_their_values(tmp_path, dtype):
    records = written(tmp_path / "set", {"x": np.arange(3).astype(dtype)})
    assert records[0]["x"].tolist() == [0, 1, 2]
    assert records[0]["x"].dtype == np.dtype(dtype).newbyteorder("=")


def test_a_row_after_the_end_is_refused_and_not_lost(tmp_path):
    with tw.create_records(tmp_path / "set") as writer:
        writer.write({"a": 1})
    for late in (lambda: writer.write({"a": 2}), lambda: writer.write_batch({"a": [2]})):
        with pytest.raises(RecordsError, match="closed"):
            late()
    assert list(tw.open_records(tmp_path / "set")) == [{"a": 1}]


@pytest.mark.parametrize("row", [[1, 2], None, "text", 5])
def test_a_row_that_is_no_dict_is_named_by_its_type(tmp_path, row):
    with pytest.raises(SampleError, match=rf"a row of type '{type(row).__name__}'.*row 0"):
        written(tmp_path / "set", row)


@pytest.mark.parametrize("id", [5, b"x", "\ud83d"])
def test_an_id_that_is_no_text_is_refused_with_its_row_and_not_at_the_end(tmp_path, id):  # noqa: A002
    with tw.create_records(tmp_path / "set") as w:
        w.write({"input_ids": [1]})
        with pytest.raises(SampleError, match="row 1 id"):
            w.write({"input_ids": [2]}, id=id)
        with pytest.raises(SampleError, match="id"):
            w.write_batch({"n": [1, 2]}, ids=["a", id])
        w.write({"input_ids": [3]}, id="c")
    assert tw.open_records(tmp_path / "set").ids([0, 1]) == ["0", "c"]


def test_a_lineage_that_json_does_not_have_is_refused_before_a_row_is_written(tmp_path):
    with pytest.raises(ConfigError, match="lineage"):
        tw.create_records(tmp_path / "set", lineage={"pad_id": object()})


def test_a_row_that_is_no_dict_can_go_to_quarantine(tmp_path):
    with tw.create_records(tmp_path / "set", on_error="quarantine") as writer:
        assert [writer.write(row) for row in ([1], {"a": 1}, None)] == [-1, 0, -1]
    records = tw.open_records(tmp_path / "set")
    assert (list(records), records.quarantined) == ([{"a": 1}], 2)


@pytest.mark.parametrize("inside", [False, True])
def test_a_file_in_the_way_is_told(tmp_path, inside):
    (tmp_path / "file").touch()
    with pytest.raises(RecordsError, match="a file is in the way"):
        tw.create_records(tmp_path / "file" / "set" if inside else tmp_path / "file")


@pytest.mark.parametrize("index", [0.5, "0", None])
def test_an_index_that_is_no_whole_number_is_a_type_error(tmp_path, index):
    records = written(tmp_path / "set", {"a": 1})
    with pytest.raises(TypeError):
        _ = records[index]
    assert records[np.int64(-1)] == {"a": 1}


def test_rejected_rows_stay_with_their_set_and_go_with_it(tmp_path):
    def rejected(n, **words):
        with tw.create_records(tmp_path / "set", on_error="quarantine", **words) as w:
            w.write({"input_ids": [n]})
            w.write({"input_ids": [f"bad {n}"]})
        return list((tmp_path / "set").glob("*.quarantine.jsonl"))

    assert len(rejected(1)) == 1
    assert len(rejected(2, append=True)) == 2
    assert len(rejected(3, overwrite=True)) == 1
