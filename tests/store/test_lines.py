"""Raw files are read by row number: the same rows whatever the line ends, compression or first file."""

import gc
import gzip
import json
import os
import pickle
import subprocess
import sys
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

import thalweg as tw
from thalweg.core.errors import ConfigError, InputError
from thalweg.store.lines import open_files


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("THALWEG_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "files"


def put(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def lines(rows):
    return "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows)


ROWS = [{"id": i, "text": "é" * (i % 5), "n": None if i % 3 else [1, {"a": i}]} for i in range(300)]


# K01
def test_a_byte_order_mark_and_carriage_returns_change_nothing(tmp_path, cache):
    rows = [{"id": 0, "m": [{"a": 1}]}, {"id": 1, "m": [{"b": "x"}]}]
    text = lines(rows)
    put(tmp_path / "d/1.jsonl", text)
    put(tmp_path / "d/2.jsonl", "\ufeff" + text)
    put(tmp_path / "d/3.jsonl", "\ufeff" + text.replace("\n", "\r\n"))
    put(tmp_path / "d/4.csv", "\ufeffid,m\r\n0,x\r\n")
    found = open_files(str(tmp_path / "d/*.jsonl"))
    assert found[:] == rows * 3
    assert open_files(tmp_path / "d/4.csv")[:] == [{"id": "0", "m": "x"}]


def test_every_format_and_compression_gives_the_same_rows(tmp_path, cache):
    plain = lines(ROWS)
    put(tmp_path / "a.jsonl", plain)
    put(tmp_path / "b.jsonl.gz", gzip.compress(plain.encode()))
    put(tmp_path / "c.jsonl.zst", zstandard.compress(plain.encode()))
    put(tmp_path / "d.json", json.dumps(ROWS, indent=1))
    put(tmp_path / "e.json", plain)  # called .json, one object a line
    pq.write_table(pa.Table.from_pylist([{"id": r["id"], "text": r["text"]} for r in ROWS]), tmp_path / "f.parquet")
    for name in ("a.jsonl", "b.jsonl.gz", "c.jsonl.zst", "d.json", "e.json"):
        assert open_files(tmp_path / name)[:] == ROWS, name
    assert open_files(tmp_path / "f.parquet", columns=["text"])[7] == {"text": ROWS[7]["text"]}
    both = open_files([tmp_path / "a.jsonl", tmp_path / "f.parquet"])
    assert len(both) == 600
    assert both[-1] == {"id": 299, "text": ROWS[299]["text"]}
    put(tmp_path / "g.txt", "one\n\n two \nthree")
    assert open_files(tmp_path / "g.txt")[:] == [{"text": "one"}, {"text": " two "}, {"text": "three"}]


def test_ids_columns_and_pickling(tmp_path, cache):
    put(tmp_path / "x/a.jsonl", lines(ROWS[:3]))
    put(tmp_path / "x/b.jsonl", lines(ROWS[3:5]))
    found = pickle.loads(pickle.dumps(open_files(tmp_path / "x")))
    assert found.ids([0, 4]) == ["a.jsonl:0", "b.jsonl:1"]
    assert found.read([4, 0], ["id"]) == {"id": [4, 0]}
    named = open_files(tmp_path / "x", id="id", columns=["text"])
    assert named.ids([4]) == ["4"]
    assert list(named[4]) == ["text"]
    with pytest.raises(ConfigError, match=r"no column 'txet'.*a\.jsonl:1.*'text'"):
        open_files(tmp_path / "x", columns=["txet"])
    with pytest.raises(ConfigError, match=r"no column 'idd' for the id.*'id'"):
        tw.from_files(str(tmp_path / "x" / "*.jsonl"), id="idd")
    with pytest.raises(InputError, match=r"a\.jsonl"):
        open_files(tmp_path / "x" / "a.josnl")
    with pytest.raises(ConfigError, match="'jsonl'"):
        open_files(tmp_path / "x", format="jsnl")


def test_the_fingerprint_follows_contents_and_order_and_not_paths(tmp_path, cache):
    a, b = put(tmp_path / "x/a.jsonl", lines(ROWS[:9])), put(tmp_path / "x/b.jsonl", lines(ROWS[9:]))
    first = open_files([a, b]).fingerprint
    c, d = put(tmp_path / "y/q.jsonl", lines(ROWS[:9])), put(tmp_path / "y/r.jsonl", lines(ROWS[9:]))
    assert open_files([c, d]).fingerprint == first
    assert open_files([d, c]).fingerprint != first


def test_an_index_is_kept_and_made_again_when_the_file_changes(tmp_path, cache):
    path = put(tmp_path / "a.jsonl", lines(ROWS[:3]))
    assert len(open_files(path)) == 3
    entries = list(cache.iterdir())
    assert len(open_files(path)) == 3
    assert list(cache.iterdir()) == entries
    put(path, lines(ROWS[:5]))
    os.utime(path, ns=(1, 2))
    assert open_files(path)[:] == ROWS[:5]
    put(path, lines(ROWS[:4]))
    os.utime(path, ns=(1, 2))  # another size alone
    assert open_files(path)[:] == ROWS[:4]
    before = open_files(path).fingerprint
    put(path, lines(ROWS[:4]).replace('"id": 3', '"id": 9'))
    os.utime(path, ns=(1, 3))  # another time alone
    assert open_files(path).fingerprint != before
    assert len(list(cache.iterdir())) == 1


# K05
@pytest.mark.parametrize(
    "value", ["9223372036854775807", "9223372036854775808", "18446744073709551615", "1" + "0" * 20]
)
def test_integers_come_back_exactly(tmp_path, cache, value):
    put(tmp_path / "a.jsonl", f'{{"n": {value}, "z": -0.0, "mixed": [1, 1.5]}}\n')
    row = open_files(tmp_path / "a.jsonl")[0]
    assert row["n"] == int(value)
    assert str(row["z"]) == "-0.0"
    assert [type(v) for v in row["mixed"]] == [int, float]


# K03 K05
@pytest.mark.parametrize("bad", ['{"id": 2, "t": "ok \\ud83d end"}', '{"n": NaN}', '{"n": 1e400}', '{"n": ', "\xff"])
def test_a_bad_line_is_named_and_its_neighbours_are_unharmed(tmp_path, cache, bad):
    put(
        tmp_path / "a.jsonl", (lines(ROWS[:2]) + "\n").encode() + bad.encode("latin-1") + b'\n{"t": "\\ud83d\\ude00"}\n'
    )
    found = open_files(tmp_path / "a.jsonl")
    assert len(found) == 4
    assert found[:2] == ROWS[:2]
    assert found[3] == {"t": "\U0001f600"}
    with pytest.raises(InputError, match=r"a\.jsonl:4"):
        found[2]


# K06
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_no_file_decides_the_type_of_another(tmp_path, cache, order):
    put(tmp_path / "0.jsonl", lines({"id": i, "d": None, "l": []} for i in range(1500)))
    put(tmp_path / "1.jsonl", lines({"id": 1500 + i, "d": {"k": "v"}, "l": [{"z": 1}]} for i in range(10)))
    put(tmp_path / "2.jsonl", lines({"id": 1510 + i} for i in range(10)))
    found = open_files([tmp_path / f"{k}.jsonl" for k in order])
    rows = {r["id"]: r for r in found[:]}
    assert len(rows) == 1520
    assert rows[3] == {"id": 3, "d": None, "l": []}
    assert rows[1503] == {"id": 1503, "d": {"k": "v"}, "l": [{"z": 1}]}
    assert rows[1513] == {"id": 1513}


# K08
@pytest.mark.parametrize("codec", ["gz", "zst"])
@pytest.mark.parametrize("harm", ["cut", "half", "flip"])
def test_damaged_compressed_input_is_an_error_and_leaves_no_index(tmp_path, cache, codec, harm):
    text = lines(ROWS).encode()
    good = gzip.compress(text) if codec == "gz" else zstandard.ZstdCompressor(write_checksum=True).compress(text)
    bad = {"cut": good[:-1], "half": good[: len(good) // 2], "flip": good[:-5] + bytes([good[-5] ^ 1]) + good[-4:]}[
        harm
    ]
    if codec == "zst" and harm == "flip":
        bad = good[:-1] + bytes([good[-1] ^ 1])
    path = put(tmp_path / f"a.jsonl.{codec}", bad)
    for _ in range(2):  # a second start says the same
        with pytest.raises(InputError, match=rf"a\.jsonl\.{codec}"):
            open_files(path)
    assert list(cache.iterdir()) == []
    put(path, good)
    assert len(open_files(path)) == 300


# K47
@pytest.mark.slow
def test_four_processes_that_start_on_an_empty_cache_get_equal_indices(tmp_path, cache):
    put(tmp_path / "d/a.jsonl", lines(ROWS * 30))
    put(tmp_path / "d/b.jsonl.gz", gzip.compress(lines(ROWS * 30).encode()))
    program = f"""
from thalweg.store.lines import open_files
found = open_files({str(tmp_path / "d")!r})
print(len(found), found.fingerprint, found[17999]["id"])
"""
    running = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    said = [p.communicate()[0].split() for p in running]
    assert len({tuple(s) for s in said}) == 1
    assert said[0][0] == "18000"
    assert said[0][2] == "299"
    assert len(list(cache.iterdir())) == 2


# K47
def test_an_index_is_never_opened_half_written(tmp_path, cache):
    path = put(tmp_path / "a.jsonl", lines(ROWS))
    open_files(path)
    (entry,) = cache.iterdir()
    index = entry / "index.npy"
    index.write_bytes(index.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"index.*damaged"):
        open_files(path)[0]


def test_a_file_cut_while_it_is_open_is_an_error(tmp_path, cache):
    path = put(tmp_path / "a.jsonl", lines(ROWS))
    found = open_files(path)
    found[0]
    os.truncate(path, 50)
    with pytest.raises(InputError, match="shorter than it was"):
        found[299]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "x,y\n1,2\n3\n", r"a\.csv:3"),
        ("a.json", '[{"a": 1}, ', "no JSON array"),
        ("a.bin", "\x00\x01", "cannot be told"),
        ("a.csv", "x,y,x\n1,2,3\n", r"two columns are named 'x' .*a\.csv:1"),
        ("a.parquet", "PAR1 and no end", r"no whole Parquet file.*a\.parquet"),
    ],
)
def test_what_is_not_its_format_is_named(tmp_path, cache, name, text, message):
    put(tmp_path / name, text)
    with pytest.raises(InputError, match=message):
        open_files(tmp_path / name)


def test_csv_with_blank_lines_and_long_documents_is_read_and_other_encodings_are_named(tmp_path, cache):
    put(tmp_path / "a.csv", "x,y\n1,2\n\n" + "d" * 200_000 + ",4\n\n")
    assert list(open_files(tmp_path / "a.csv")) == [{"x": "1", "y": "2"}, {"x": "d" * 200_000, "y": "4"}]
    (tmp_path / "b.csv").write_bytes(b"x\n\xe9\n")
    with pytest.raises(InputError, match=r"no UTF-8.*b\.csv"):
        open_files(tmp_path / "b.csv")


def test_dates_times_and_decimals_of_parquet_are_text_wherever_they_stand(tmp_path, cache):
    times = pa.array([1, None], pa.timestamp("ns"))
    columns = {
        "text": pa.array(["a", "b"]),
        "at": times,
        "day": pa.array([0, 1], pa.date32()),
        "price": pa.array([Decimal("1.20"), None], pa.decimal128(5, 2)),
        "turns": pa.array([[{"at": 1}], []], pa.list_(pa.struct([("at", pa.time64("us"))]))),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    assert open_files(tmp_path / "a.parquet")[0] == {
        "text": "a",
        "at": "1970-01-01 00:00:00.000000001",
        "day": "1970-01-01",
        "price": "1.20",
        "turns": [{"at": "00:00:00.000001"}],
    }
    assert open_files(tmp_path / "a.parquet", columns=["text"])[1] == {"text": "b"}


def test_a_damaged_row_group_is_named(tmp_path, cache):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [f"document {i}" for i in range(1000)]}), path, compression="gzip")
    data = bytearray(path.read_bytes())
    data[60:90] = bytes(30)
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"damaged.*a\.parquet"):
        open_files(path)


def test_an_id_that_is_null_is_named_and_an_empty_folder_is_said_to_be_empty(tmp_path, cache):
    put(tmp_path / "a.jsonl", '{"id": "x"}\n{"id": null}\n')
    with pytest.raises(InputError, match=r"no 'id' for the id .*a\.jsonl:2"):
        open_files(tmp_path / "a.jsonl", id="id").ids([0, 1])
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no file in the folder"):
        open_files(tmp_path / "empty")


@pytest.mark.parametrize("codec", ["gzip", "zstd", "pzstd"])
def test_a_file_of_small_compressed_members_is_read_where_it_lies(tmp_path, cache, codec, monkeypatch):
    def packed(data):
        if codec == "gzip":
            return gzip.compress(data)
        frame = zstandard.compress(data)
        return frame if codec == "zstd" else b"\x50\x2a\x4d\x18\x04\0\0\0" + len(frame).to_bytes(4, "little") + frame

    data = (lines(ROWS) + "\n").encode()
    path = tmp_path / ("a.jsonl.gz" if codec == "gzip" else "a.jsonl.zst")
    put(path, b"".join(packed(data[a : a + 1000]) for a in range(0, len(data), 1000)))  # lines go over the borders
    found = pickle.loads(pickle.dumps(open_files(path)))
    assert len(found) == len(ROWS)
    assert not list(cache.rglob("lines"))
    assert found[:] == ROWS
    assert [found[i] for i in (-1, 0, 150, 149, 150)] == [ROWS[i] for i in (-1, 0, 150, 149, 150)]
    assert found.where(7) == f"{path.name}:8"
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 0x55
    info = path.stat()
    path.write_bytes(raw)
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
    broken = open_files(path)
    assert broken[0] == ROWS[0]
    with pytest.raises(InputError, match=r"a\.jsonl\.\w+, offset \d+|no JSON"):
        broken[:]


def test_a_compressed_file_of_one_large_member_is_unpacked_once(tmp_path, cache):
    put(tmp_path / "a.jsonl.gz", gzip.compress(lines(ROWS).encode()))
    assert open_files(tmp_path / "a.jsonl.gz")[:] == ROWS
    assert len([*cache.rglob("lines")]) == 1


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
def test_files_are_closed_when_their_rows_are_forgotten(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "a"}\n')

    def is_open():
        return str(file) in {os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")}

    rows = open_files(str(file))
    assert rows[0]["text"] == "a"
    assert is_open()
    del rows
    gc.collect()
    assert not is_open()
