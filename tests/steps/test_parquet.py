"""Parquet in and out: row groups dealt once, a value that does not fit is named before anything is visible."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from thalweg.core.document import Document
from thalweg.core.errors import InputError, SampleError
from thalweg.steps import ParquetReader, ParquetWriter


def documents(n):
    return [Document(f"text {i}", f"d{i}", metadata={"n": i, "lang": "en"}) for i in range(n)]


def test_what_is_written_is_read_back(tmp_path):
    writer = ParquetWriter(str(tmp_path), batch_size=100)
    assert len(list(writer(documents(250)))) == 250
    back = list(ParquetReader(str(tmp_path), add_file_path=False)())
    assert [(d.text, d.id, d.metadata["n"], d.metadata["lang"]) for d in back] == [
        (d.text, d.id, d.metadata["n"], "en") for d in documents(250)
    ]
    assert list(ParquetReader(str(tmp_path), read_metadata=False)())[7].metadata.keys() == {
        "source", "unit", "row", "file_path",
    }  # fmt: skip


# D9 D11
def test_a_large_file_is_cut_at_row_groups_and_every_row_comes_once(tmp_path):
    rows = [{"text": f"t{i}" * 50, "id": str(i)} for i in range(1000)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=70)
    reader = ParquetReader(str(tmp_path), unit_bytes=20_000)
    assert len(reader.units()) > 3
    seen = [d for rank in range(4) for d in ParquetReader(str(tmp_path), unit_bytes=20_000)(None, rank, 4)]
    assert sorted(int(d.id) for d in seen) == list(range(1000))
    assert len({(d.metadata["unit"], d.metadata["row"]) for d in seen}) == 1000


# K06
def test_nulls_first_do_not_settle_a_type_and_a_misfit_names_field_and_document(tmp_path):
    mixed = [Document("t", str(i), metadata={"d": None if i < 50 else {"k": "v"}}) for i in range(100)]
    list(ParquetWriter(str(tmp_path / "a"))(mixed))
    assert pq.read_table(tmp_path / "a/00000.parquet")["metadata"][99].as_py() == {"d": {"k": "v"}}
    late = [Document("t", str(i), metadata={"n": i}) for i in range(20)] + [
        Document("t", "late", metadata={"n": "n/a"})
    ]
    with pytest.raises(SampleError, match=r"'metadata' does not fit.*document 'late'"):
        list(ParquetWriter(str(tmp_path / "b"), batch_size=10)(late))
    new = [*documents(20), Document("t", "new", metadata={"n": 1, "lang": "en", "extra": 2})]
    with pytest.raises(SampleError, match=r"'metadata.extra' is not in the file's schema.*document 'new'"):
        list(ParquetWriter(str(tmp_path / "c"), batch_size=10)(new))


# K08
def test_a_truncated_file_is_named(tmp_path):
    list(ParquetWriter(str(tmp_path))(documents(50)))
    path = tmp_path / "00000.parquet"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(InputError, match=r"no whole Parquet file.*00000\.parquet"):
        list(ParquetReader(str(tmp_path))())
