"""Formats both ways, with the library that owns each; conversions that are cut off go on and lose nothing."""

import gzip
import io
import json
import subprocess
import sys
import tarfile
from importlib.util import find_spec

import numpy as np
import pytest
from click.testing import CliRunner

import thalweg as tw
from thalweg.cli.convert import command as convert_command
from thalweg.cli.verify import command as verify_command
from thalweg.core.errors import InputError, RecordsError, SampleError
from thalweg.store.formats import format as formats
from thalweg.store.formats import mds, webdataset
from thalweg.store.formats.convert import convert
from thalweg.store.formats.format import Unit
from thalweg.store.records import PartWriter


def samples(n=120):
    rng = np.random.default_rng(3)
    return [
        {
            "input_ids": rng.integers(0, 60_000, int(rng.integers(1, 40))).astype(np.int32),
            "loss_spans": np.array([[0, 1]], np.int32),
            "text": "é" * (i % 4),
            "n": i,
            "score": i / 3,
            "meta": {"k": [1, 2.5, None], "i": i},
        }
        for i in range(n)
    ]


def plain(row):
    return {k: v.tolist() if isinstance(v, np.ndarray | np.generic) else v for k, v in row.items()}


@pytest.fixture
def records(tmp_path):
    with tw.create_records(tmp_path / "set", sync=False, shard_bytes=3000) as w:
        for row in samples():
            w.write(row)
    return tmp_path / "set"


def read(path, name):
    module = formats.get(name)
    return [row for unit in module.units(str(path)) for row in module.rows(unit)]


# E38
@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("jsonl", "o.jsonl"),
        ("parquet", "o.parquet"),
        ("datasets", "o.dataset"),
        ("webdataset", "o.tar"),
        ("mds", "o.mds"),
    ],
)
def test_rows_come_back_through_every_format(tmp_path, records, name, target):
    pytest.importorskip("datasets" if name == "datasets" else "numpy")
    there = convert(str(records), str(tmp_path / target))
    assert there.rows == 120
    assert there.tokens == tw.open_records(records).num_tokens
    found = [{k: v for k, v in plain(row).items() if k in samples(1)[0]} for row in read(tmp_path / target, name)]
    assert [dict(sorted(r.items())) for r in found] == [dict(sorted(plain(r).items())) for r in samples()]
    back = convert(str(tmp_path / target), str(tmp_path / "back"), source_format=name)
    assert (back.rows, back.tokens) == (there.rows, there.tokens)
    rec = tw.open_records(tmp_path / "back")
    assert rec.lengths.tolist() == tw.open_records(records).lengths.tolist()
    rec.verify("full")


@pytest.mark.parametrize("target", ["b.jsonl", "b.parquet", "b.tar", "b"])
def test_ids_that_were_given_beside_the_rows_are_not_lost(tmp_path, target):
    names = ["é1", "two", "3"]
    with tw.create_records(tmp_path / "a") as w:
        for k, name in enumerate(names):
            w.write({"input_ids": [k]}, id=name)
    convert(str(tmp_path / "a"), str(tmp_path / target))
    convert(str(tmp_path / target), str(tmp_path / "back"))
    assert tw.open_records(tmp_path / "back").ids([0, 1, 2]) == names


@pytest.mark.parametrize("n", [0, 3])
def test_a_set_that_is_made_of_another_keeps_its_tokenizer_and_its_special_ids(tmp_path, n):
    about = {"tokenizer": "abc", "pad_id": 7, "eos_id": 2, "vocab_size": 100}
    with tw.create_records(str(tmp_path / "a"), lineage=about, vocab_size=100) as writer:
        for k in range(n):
            writer.write({"input_ids": np.full(k + 1, k, np.int32)})
    made = convert(str(tmp_path / "a"), str(tmp_path / "b"))
    again = tw.open_records(str(tmp_path / "b"), expect={"tokenizer": "abc"})
    assert (made.rows, len(again)) == (n, n)
    assert {k: again.lineage[k] for k in about} == about
    assert again.fingerprint == tw.open_records(str(tmp_path / "a")).fingerprint


def test_token_totals_are_equal_on_both_sides_of_megatron_files(tmp_path, records):
    out = convert(str(records), str(tmp_path / "web.bin"), target_format="megatron")
    assert out.left_out == ["loss_spans", "text", "n", "score", "meta"]
    back = convert(str(tmp_path / "web"), str(tmp_path / "back"))
    assert back.tokens == out.tokens == tw.open_records(records).num_tokens
    for a, b in zip(tw.open_records(tmp_path / "back"), samples(), strict=True):
        assert a["input_ids"].tolist() == b["input_ids"].tolist()
    raw = (tmp_path / "web.idx").read_bytes()
    (tmp_path / "web.idx").write_bytes(raw[:-1])
    with pytest.raises(InputError, match="cut short"):
        convert(str(tmp_path / "web"), str(tmp_path / "again"))


def test_mds_of_many_shards_comes_back_whole(tmp_path, records, monkeypatch):
    monkeypatch.setattr(mds, "_LIMIT", 1500)
    convert(str(records), str(tmp_path / "o.mds"))
    assert len(list((tmp_path / "o.mds").glob("shard.*.mds"))) > 5
    convert(str(tmp_path / "o.mds"), str(tmp_path / "back"))
    assert [r["n"] for r in tw.open_records(tmp_path / "back")] == list(range(120))


def test_a_token_that_is_lost_on_the_way_is_an_error(tmp_path, records, monkeypatch):
    write = PartWriter.write
    monkeypatch.setattr(
        PartWriter,
        "write",
        lambda self, row: write(self, {**row, "input_ids": row["input_ids"][row["n"] == 7 :]}),
    )
    convert(str(records), str(tmp_path / "o.jsonl"))
    total = tw.open_records(records).num_tokens
    with pytest.raises(RecordsError, match=rf"{total} tokens were read, the set has 120 and {total - 1}"):
        convert(str(tmp_path / "o.jsonl"), str(tmp_path / "back"))


@pytest.mark.slow
def test_megatron_reads_what_we_write(tmp_path, records):
    if find_spec("megatron") is None:
        pytest.skip("megatron-core is not installed")
    convert(str(records), str(tmp_path / "web.bin"), target_format="megatron")
    program = f"""
import warnings; warnings.simplefilter("ignore")
from megatron.core.datasets.indexed_dataset import IndexedDataset
found = IndexedDataset({str(tmp_path / "web")!r})
print([found[i].tolist() for i in range(len(found))]); print(found.document_indices.tolist()[-1])
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    rows, documents = said.strip().splitlines()[-2:]
    assert json.loads(rows) == [r["input_ids"].tolist() for r in samples()]
    assert documents == "120"


@pytest.mark.slow
def test_the_streaming_library_reads_what_we_write_and_we_read_what_it_writes(tmp_path, records):
    if find_spec("streaming") is None:
        pytest.skip("mosaicml-streaming is not installed")
    convert(str(records), str(tmp_path / "o.mds"))
    program = f"""
import sys, types, json, os, importlib.util, warnings; warnings.simplefilter("ignore")
# Its format alone, without what its package imports at the top (torchvision, transformers).
root = importlib.util.find_spec("streaming").submodule_search_locations[0]
for name in ("streaming", "streaming.base"):
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__ = [os.path.join(root, *name.split(".")[1:])]
import numpy as np
from streaming.base.format import reader_from_json
from streaming.base.format.mds.writer import MDSWriter
index = json.load(open({str(tmp_path / "o.mds" / "index.json")!r}))
found = [r for s in index["shards"] for r in reader_from_json({str(tmp_path / "o.mds")!r}, "", s)]
print(json.dumps([[r["input_ids"].tolist(), r["text"], int(r["n"]), r["meta"]] for r in found]))
columns = {{"ids": "ndarray:int32", "t": "str", "n": "int", "j": "json"}}
with MDSWriter(out={str(tmp_path / "theirs")!r}, columns=columns) as w:
    for i in range(30):
        w.write({{"ids": np.arange(i + 1, dtype=np.int32), "t": "x" * i, "n": i, "j": [i, None]}})
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    if "ModuleNotFoundError" in done.stderr:
        pytest.skip(f"mosaicml-streaming cannot be imported: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [
        [r["input_ids"].tolist(), r["text"], r["n"], r["meta"]] for r in samples()
    ]
    theirs = read(tmp_path / "theirs", "mds")
    assert [(r["ids"].tolist(), r["t"], r["n"], r["j"]) for r in theirs] == [
        (list(range(i + 1)), "x" * i, i, [i, None]) for i in range(30)
    ]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the library leaves its file open
def test_webdataset_reads_what_we_write(tmp_path, records):
    library = pytest.importorskip("webdataset")
    convert(str(records), str(tmp_path / "o.tar"))
    found = list(library.WebDataset(str(tmp_path / "o.tar"), shardshuffle=False).decode())
    assert [r["input_ids.npy"].tolist() for r in found] == [r["input_ids"].tolist() for r in samples()]
    assert found[7]["text.txt"] == samples()[7]["text"]


def test_datasets_reads_what_we_write(tmp_path, records):
    library = pytest.importorskip("datasets")
    convert(str(records), str(tmp_path / "o.dataset"))
    found = library.load_from_disk(str(tmp_path / "o.dataset"))
    assert found[5]["input_ids"] == samples()[5]["input_ids"].tolist()
    assert json.loads(found[5]["meta"]) == samples()[5]["meta"]


@pytest.mark.slow
def test_mindspore_reads_what_we_write_and_it_comes_back_whole(tmp_path, records):
    library = pytest.importorskip("mindspore.dataset")
    convert(str(records), str(tmp_path / "o.mindrecord"))
    found = library.MindDataset(str(tmp_path / "o.mindrecord"), shuffle=False)
    rows = list(found.create_dict_iterator(num_epochs=1, output_numpy=True))
    assert [r["input_ids"].tolist() for r in rows] == [r["input_ids"].tolist() for r in samples()]
    assert [str(r["text"]) for r in rows] == [r["text"] for r in samples()]
    assert [int(r["n"]) for r in rows] == list(range(120))
    convert(str(tmp_path / "o.mindrecord"), str(tmp_path / "back"))
    back = tw.open_records(tmp_path / "back")
    assert back.num_tokens == tw.open_records(records).num_tokens
    assert [r["input_ids"].tolist() for r in back] == [r["input_ids"].tolist() for r in samples()]


def tar(path, members):
    with tarfile.open(path, "w") as out:
        for name, data in members:
            info = tarfile.TarInfo(name)
            if data is None:
                info.type = tarfile.DIRTYPE
            else:
                info.size = len(data)
            out.addfile(info, io.BytesIO(data) if data is not None else None)
    return path


# K10
def test_tar_members_are_grouped_by_directory_and_name_up_to_the_first_dot(tmp_path):
    path = tar(
        tmp_path / "a.tar",
        [
            ("v1.0", None),
            ("v1.0/0001.jpg", b"J"),
            ("v1.0/._0001.jpg", b"apple"),
            ("v1.0/0001.json", b'{"a": 1}'),
            ("track 2.0 (x).mp3", b""),
            ("track 2.0 (x).json", b"[2]"),
        ],
    )
    assert read(path, "webdataset") == [
        {"id": "v1.0/0001", "jpg": b"J", "json": {"a": 1}},
        {"id": "track 2", "0 (x).mp3": b"", "0 (x)": [2]},
    ]
    assert webdataset.split("v1.0/a.b.c") == ("v1.0/a", "b.c")


# K10
@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([("000.a", b"1"), ("001.a", b"2"), ("000.b", b"3"), ("001.b", b"4")], r"'000' stand apart.*a\.tar: 000\.b"),
        ([("0001.json", b"1"), ("0001.json", b"2")], r"comes twice in sample '0001'.*a\.tar: 0001\.json"),
    ],
)
def test_tar_members_that_are_apart_or_double_are_refused_by_name(tmp_path, members, message):
    tar(tmp_path / "a.tar", members)
    with pytest.raises(InputError, match=message):
        convert(str(tmp_path / "a.tar"), str(tmp_path / "out"))
    with pytest.raises(RecordsError):
        tw.open_records(tmp_path / "out")


def jsonl(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(r) + "\n" for r in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


# E38 E41
@pytest.mark.slow
def test_a_conversion_in_parallel_keeps_the_order_and_goes_on_where_it_was_cut_off(tmp_path):
    rows = [{"id": i, "input_ids": [i, i + 1]} for i in range(1000)]
    for k in range(10):
        jsonl(tmp_path / f"in/{k}.jsonl", rows[100 * k : 100 * (k + 1)])
    good = (tmp_path / "in/7.jsonl").read_text()
    (tmp_path / "in/7.jsonl").write_text(good[:-5])
    with pytest.raises(InputError, match=r"7\.jsonl:100"):
        convert(str(tmp_path / "in"), str(tmp_path / "out"), workers=2)
    with pytest.raises(RecordsError, match="parts are missing"):
        tw.open_records(tmp_path / "out")
    (tmp_path / "in/7.jsonl").write_text(good)
    with pytest.raises(RecordsError, match="other inputs"):
        convert(str(tmp_path / "in"), str(tmp_path / "out"))
    (tmp_path / "out").rename(tmp_path / "old")
    seen = []
    done = convert(str(tmp_path / "in"), str(tmp_path / "out"), workers=2, progress=lambda *a: seen.append(a))
    assert (done.rows, done.tokens, done.skipped) == (1000, 2000, 0)
    assert seen[-1] == (10, 10, 1000, 2000)
    assert [r["id"] for r in tw.open_records(tmp_path / "out")] == list(range(1000))
    assert convert(str(tmp_path / "in"), str(tmp_path / "out")).skipped == 10


def test_what_a_killed_conversion_left_is_removed_by_the_next_one(tmp_path):
    killed = (
        "import os, sys; from pathlib import Path; from thalweg.store.formats.format import WholeFile\n"
        "file = WholeFile(Path(sys.argv[1])); file.temporary.write_text('half')\n"
        "Path(f'{file.temporary}.parquet').write_text('half'); os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", killed, str(tmp_path / "out")], check=False)
    assert len(list(tmp_path.iterdir())) == 3
    one, other = formats.WholeFile(tmp_path / "out"), formats.WholeFile(tmp_path / "out")
    one.temporary.write_text("whole")  # nobody takes what a living process writes
    assert len(list(tmp_path.iterdir())) == 3
    one.finish(keep=True)
    other.finish(keep=False)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


# E38 K08
def test_a_piece_that_is_done_is_not_done_again(tmp_path):
    for k in range(3):
        jsonl(tmp_path / f"in/{k}.jsonl.gz", [{"id": k}] * 5)
    bad = tmp_path / "in/1.jsonl.gz"
    good = bad.read_bytes()
    bad.write_bytes(good[:-3])
    for _ in range(2):  # a rerun says the same
        with pytest.raises(InputError, match=r"1\.jsonl\.gz"):
            convert(str(tmp_path / "in"), str(tmp_path / "o"), target_format="jsonl")
        assert [p.name for p in (tmp_path / "o").iterdir() if p.suffix != ".json"] == ["part-00000.jsonl"]
    bad.write_bytes(good)
    done = convert(str(tmp_path / "in"), str(tmp_path / "o"), target_format="jsonl")
    assert (done.rows, done.skipped) == (15, 1)
    for k in range(3):
        jsonl(tmp_path / f"other/{k}.jsonl", [{"id": k}])
    with pytest.raises(RecordsError, match="begun from other inputs"):
        convert(str(tmp_path / "other"), str(tmp_path / "o"), target_format="jsonl")
    mine = tmp_path / "mine/part-00000.jsonl"
    jsonl(mine, [{"id": 0}])
    before = mine.read_bytes()
    with pytest.raises(RecordsError, match="the path is in use"):
        convert(str(tmp_path / "other"), str(tmp_path / "mine"), target_format="jsonl")
    assert mine.read_bytes() == before


@pytest.mark.parametrize("name", ["mine.jsonl", "mine.parquet", "mine.tar", "mine.mds"])
def test_a_file_that_exists_is_never_overwritten(tmp_path, records, name):
    (tmp_path / name).write_bytes(b"mine")
    with pytest.raises(RecordsError, match="the path is in use"):
        convert(str(records), str(tmp_path / name))
    assert (tmp_path / name).read_bytes() == b"mine"


def test_the_last_line_needs_no_line_end(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"a":1}\r\n\n{"a":2}')
    assert read(tmp_path / "a.jsonl", "jsonl") == [{"a": 1}, {"a": 2}]


def test_values_that_a_format_has_not_are_refused_or_go_to_quarantine(tmp_path):
    with tw.create_records(tmp_path / "set", sync=False) as w:
        for value in (1.0, float("nan"), b"raw", 2.0):
            w.write({"v": value})
    with pytest.raises(SampleError, match="column 'v'"):
        convert(str(tmp_path / "set"), str(tmp_path / "o.jsonl"))
    assert not (tmp_path / "o.jsonl").exists()
    done = convert(str(tmp_path / "set"), str(tmp_path / "o.jsonl"), on_error="quarantine")
    assert (done.rows, done.quarantined) == (2, 2)
    assert (tmp_path / "o.jsonl").read_text() == '{"v":1.0}\n{"v":2.0}\n'
    lines = (tmp_path / "o.jsonl.quarantine" / "part-00000.jsonl").read_text().splitlines()
    assert "row 1" in json.loads(lines[0])["place"]["source"]


# K06
def test_a_late_type_is_kept_or_named_and_nothing_half_is_left(tmp_path):
    jsonl(tmp_path / "a.jsonl", [*({"n": i} for i in range(1, 10_000)), {"n": "n/a"}])
    convert(str(tmp_path / "a.jsonl"), str(tmp_path / "set"))
    rec = tw.open_records(tmp_path / "set")
    assert rec[9998] == {"n": 9999}
    assert rec[9999] == {"n": "n/a"}
    convert(str(tmp_path / "a.jsonl"), str(tmp_path / "o.parquet"))
    assert read(tmp_path / "o.parquet", "parquet")[9998:] == [{"n": 9999}, {"n": "n/a"}]


def test_the_commands_say_what_they_did(tmp_path, records):
    run = CliRunner().invoke
    said = run(convert_command, [str(records), str(tmp_path / "o.jsonl"), "--workers", "1", "--json"])
    assert said.exit_code == 0, said.output
    assert json.loads(said.stdout)["rows"] == 120
    said = run(verify_command, [str(records)])
    assert said.exit_code == 0
    assert "120 rows" in said.output
    shard = next(records.glob("*.arrow"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    said = run(verify_command, [str(records)])
    assert said.exit_code == 1
    assert shard.name in str(said.exception)
    assert json.loads(run(verify_command, [str(records), "--quick", "--json"]).stdout)["ok"] is True


def test_formats_are_told_by_path_and_content(tmp_path, records):
    assert formats.detect(str(records)) == "records"
    jsonl(tmp_path / "in/0.jsonl.gz", [{"a": 1}])
    assert formats.detect(str(tmp_path / "in")) == "jsonl"
    (tmp_path / "x").write_bytes(b"?")
    with pytest.raises(InputError, match="cannot be told"):
        formats.detect(str(tmp_path / "x"))
    with pytest.raises(InputError, match="no such file"):
        formats.detect(str(tmp_path / "y"))
    assert list(formats.get("jsonl").rows(Unit(str(tmp_path / "in/0.jsonl.gz")))) == [{"a": 1}]
