"""JSONL in and out: every row exactly once, one bad byte costs one line, damage is never an end."""

import bz2
import gzip
import json
import lzma
import zlib

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg.core.document import Document
from thalweg.core.errors import BudgetError, ConfigError, InputError, SampleError
from thalweg.steps import JsonlReader, JsonlWriter

ROWS = [{"text": f"row {i} é", "id": f"d{i}", "metadata": {"score": i / 10}} for i in range(1000)]
PACKERS = {
    "gz": lambda data: gzip.compress(data, mtime=0),
    "zst": lambda data: zstandard.ZstdCompressor(write_checksum=True).compress(data),
    "bz2": bz2.compress,
    "xz": lzma.compress,
}


def lines(rows):
    return b"".join(json.dumps(r).encode() + b"\n" for r in rows)


def write(folder, name, data):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)
    return folder


def read(folder, world=1, **settings):
    docs, steps = [], []
    for rank in range(world):
        reader = JsonlReader(str(folder), **settings)
        steps.append(reader)
        docs += list(reader(None, rank, world))
    return docs, steps


@pytest.mark.parametrize("ending", ["", *PACKERS])
def test_every_compression_gives_the_same_rows(tmp_path, ending):
    data = lines(ROWS)
    write(tmp_path, f"a.jsonl{'.' * bool(ending)}{ending}", PACKERS[ending](data) if ending else data)
    docs, _ = read(tmp_path)
    assert [(d.text, d.id, d.metadata["score"]) for d in docs] == [
        (r["text"], r["id"], r["metadata"]["score"]) for r in ROWS
    ]


def test_files_of_several_members_and_garbage_after_the_last_read_like_gunzip(tmp_path):
    parts = [PACKERS["gz"](lines(ROWS[:400])), PACKERS["gz"](lines(ROWS[400:]))]
    write(tmp_path, "a.jsonl.gz", b"".join(parts) + b"\0" * 512)
    write(tmp_path, "b.jsonl.gz", b"".join(parts) + b"not another member")
    docs, _ = read(tmp_path)
    assert [d.id for d in docs] == [r["id"] for r in ROWS] * 2


# D9
@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40), min_size=1, max_size=30),
    st.integers(1, 200),
    st.integers(1, 5),
    st.booleans(),
)
def test_any_cut_of_a_file_gives_every_line_once_with_the_same_identity(tmp_path_factory, texts, unit, world, ends):
    folder = tmp_path_factory.mktemp("cut")
    data = lines([{"text": t} for t in texts])
    write(folder, "a.jsonl", data if ends else data.rstrip(b"\n"))
    docs, _ = read(folder, world, unit_bytes=unit)
    assert sorted(d.text for d in docs) == sorted(texts)
    again, _ = read(folder, world + 1, unit_bytes=unit)

    def identity(found):
        return sorted((d.metadata["source"], d.metadata["unit"], d.metadata["row"], d.id, d.text) for d in found)

    # D11: which rank reads a document, and after which others, changes nothing of what it is
    assert identity(docs) == identity(again)
    assert len({d.id for d in docs}) == len(texts)
    raw = (folder / "a.jsonl").read_bytes()
    for d in docs:  # the place leads back to the line
        start = int(d.metadata["unit"])
        first = raw.index(b"\n", start - 1) + 1 if start else 0
        assert json.loads(raw[first:].split(b"\n")[d.metadata["row"]])["text"] == d.text


# D11
def test_identity_does_not_depend_on_the_order_in_which_files_are_read(tmp_path):
    for f in range(6):
        write(tmp_path, f"{f}.jsonl", lines([{"text": f"{f} {i}"} for i in range(5)]))
    plain, _ = read(tmp_path)
    mixed, _ = read(tmp_path, shuffle_files=True)
    assert {d.text: (d.id, d.metadata) for d in plain} == {d.text: (d.id, d.metadata) for d in mixed}
    assert [d.text.partition(" ")[2] for d in mixed] == [str(d.metadata["row"]) for d in mixed]


# D7
def test_split_by_file_gives_exactly_every_worlds_share_of_files(tmp_path):
    for f in range(7):
        write(tmp_path, f"{f}.jsonl", lines([{"text": f"{f} {i}"} for i in range(50)]))
    for rank in range(3):
        docs = list(JsonlReader(str(tmp_path), split="file", unit_bytes=10)(None, rank, 3))
        assert list(dict.fromkeys(int(d.text.split()[0]) for d in docs)) == list(range(7))[rank::3]


# K01
def test_a_byte_order_mark_and_crlf_change_nothing(tmp_path):
    rows = [{"id": "0", "text": "x", "m": [{"a": 1}]}, {"id": "1", "text": "y", "m": [{"b": "x"}]}]
    data = b"".join(json.dumps(r).encode() + b"\n" for r in rows)
    write(tmp_path, "a.jsonl", data)
    write(tmp_path, "b.jsonl", b"\xef\xbb\xbf" + data)
    write(tmp_path, "c.jsonl", b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n"))
    write(tmp_path, "d.jsonl.gz", gzip.compress(b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n")))
    docs, _ = read(tmp_path, add_file_path=False)
    seen = [(d.id, d.text, {k: v for k, v in d.metadata.items() if k not in {"source", "unit", "row"}}) for d in docs]
    assert seen == [("0", "x", {"m": [{"a": 1}]}), ("1", "y", {"m": [{"b": "x"}]})] * 4


# K03
def test_a_lone_surrogate_is_repaired_and_counted_and_its_neighbours_arrive(tmp_path):
    raw = [r'{"id":"0","text":"a"}', r'{"id":"1","text":"b"}', r'{"id":"2","text":"ok \ud83d end"}']
    raw += [r'{"id":"3","text":"\ud83d\ude00"}', r'{"id":"4","text":"e"}']
    write(tmp_path / "in", "a.jsonl", "\n".join(raw).encode())
    docs, (reader,) = read(tmp_path / "in")
    assert [d.text for d in docs] == ["a", "b", "ok \ufffd end", "\U0001f600", "e"]
    assert reader.stats["repaired_surrogate"].total == 1
    docs[0].text = "made by a step \udc80"
    writer = JsonlWriter(str(tmp_path / "out"), compression=None)
    list(writer(docs))
    back = [json.loads(line) for line in (tmp_path / "out/00000.jsonl").read_bytes().splitlines()]
    assert [r["text"] for r in back] == ["made by a step \ufffd", "b", "ok \ufffd end", "\U0001f600", "e"]
    assert writer.stats["repaired_surrogate"].total == 1


# K05
def test_numbers_and_date_like_strings_come_back_as_they_were(tmp_path):
    values = [2**63 - 1, 2**63, 2**64 - 1, 10**20, -0.0, 1, 1.5]
    dates = ["2024-01-02"] * 100 + ["n/a"]
    rows = [{"text": "t", "n": v} for v in values] + [{"text": "t", "n": d} for d in dates]
    write(tmp_path / "in", "a.jsonl", lines(rows) + b'{"text":"t","n":NaN}\n{"text":"t","n":1e400}\n')
    docs, (reader,) = read(tmp_path / "in", max_bad=2)
    got = [d.metadata["n"] for d in docs]
    assert got == values + dates
    assert [type(v) for v in got] == [type(v) for v in values + dates]
    assert str(got[4]) == "-0.0"
    assert reader.stats.tally.dropped == {"bad_line": 2}
    docs[0].metadata["n"] = float("nan")
    list(JsonlWriter(str(tmp_path / "out"), compression=None)(docs))
    back = (tmp_path / "out/00000.jsonl").read_bytes().splitlines()
    assert [json.loads(line)["metadata"]["n"] for line in back] == [None, *got[1:]]


# K06
def test_absent_null_and_empty_stay_three_things_whatever_comes_first(tmp_path):
    early = [{"id": str(i), "text": "t", "d": None, "l": []} for i in range(1500)]
    late = [{"id": f"b{i}", "text": "t", "d": {"k": "v"}, "l": [{"z": 1}]} for i in range(10)]
    without = [{"id": f"c{i}", "text": "t", "l": []} for i in range(10)]
    for order in ((early, late, without), (without, late, early)):
        folder = tmp_path / str(id(order))
        for k, rows in enumerate(order):
            write(folder, f"{k}.jsonl", lines(rows))
        docs, _ = read(folder, add_file_path=False)
        for doc, row in zip(docs, [r for rows in order for r in rows], strict=True):
            expected = {k: v for k, v in row.items() if k in {"d", "l"}}
            assert {k: v for k, v in doc.metadata.items() if k in {"d", "l"}} == expected


# D24
def test_one_bad_byte_costs_one_line_by_the_policy(tmp_path):
    good = [json.dumps({"text": f"t{i}", "id": str(i)}).encode() for i in range(173)]
    bad = list(good)
    bad[50] = bad[50].replace(b"t50", b"t\xff50")
    write(tmp_path / "in", "a.jsonl", b"\n".join(bad) + b"\n")
    kept, (reader,) = read(tmp_path / "in")
    assert [d.id for d in kept] == [str(i) for i in range(173) if i != 50]
    assert reader.stats.tally.dropped == {"bad_line": 1}
    with pytest.raises(SampleError, match=r"bad_line.*a\.jsonl, row 50"):
        read(tmp_path / "in", on_error="fail")
    _, (reader,) = read(tmp_path / "in", on_error="quarantine", quarantine=str(tmp_path / "bad"))
    (row,) = [json.loads(line) for line in (tmp_path / "bad/00000.jsonl").read_bytes().splitlines()]
    assert row["where"].endswith("a.jsonl, row 50")
    assert row["item"] == '{"text": "t\\xff50", "id": "50"}'
    assert "Traceback" in row["traceback"] or row["error"].startswith("DecodeError")
    assert (reader.stats.tally.quarantined, reader.stats.tally.dropped.total()) == (1, 0)


# D24
def test_rows_that_are_no_documents_cost_themselves(tmp_path):
    rows = [
        b'{"text":"a"}',
        b"[1, 2]",
        b'{"text":12}',
        b"null",
        b'{"text":"b","media":null}',
        b'{"text":"c","media":[3]}',
    ]
    write(tmp_path, "a.jsonl", b"\n".join(rows))
    docs, (reader,) = read(tmp_path, max_bad=10)
    assert [d.text for d in docs] == ["a", "b"]
    assert reader.stats.tally.dropped == {"bad_row": 4}
    assert reader.stats.tally.made == 6


# D24
def test_a_budget_names_n_of_m_the_rate_and_the_limit(tmp_path):
    rows = [b'{"text":"a"}'] * 90 + [b"{"] * 10
    write(tmp_path, "a.jsonl", b"\n".join(rows))
    with pytest.raises(BudgetError, match=r"10 of 100 items are bad \(10\.00%\), allowed is 1\.00%"):
        read(tmp_path)
    with pytest.raises(BudgetError, match=r"4 of 94 .*max_bad=3"):
        read(tmp_path, max_bad=3)
    assert len(read(tmp_path, max_bad=0.1)[0]) == 90


def damaged(data, how):
    if how == "one byte short":
        return data[:-1]
    if how == "half":
        return data[: len(data) // 2]
    return data[:-6] + bytes([data[-6] ^ 1]) + data[-5:]  # in the checksum of gzip and zstd


# D25 K08
@pytest.mark.parametrize("ending", ["gz", "zst"])
@pytest.mark.parametrize("how", ["one byte short", "half", "flipped"])
def test_damaged_compressed_input_is_a_named_failure_and_can_be_kept_on_request(tmp_path, ending, how):
    packed = PACKERS[ending](lines(ROWS))
    data = (
        packed[:-2] + bytes([packed[-2] ^ 1]) + packed[-1:]
        if (ending, how) == ("zst", "flipped")
        else damaged(packed, how)
    )
    write(tmp_path, f"a.jsonl.{ending}", data)
    write(tmp_path, "b.jsonl", lines(ROWS[:5]))
    with pytest.raises(InputError, match=rf"after \d+ rows.*a\.jsonl\.{ending}"):
        read(tmp_path)
    docs, (reader,) = read(tmp_path, on_damage="keep", max_bad=1)
    kept = [d.id for d in docs]
    assert kept[-5:] == [r["id"] for r in ROWS[:5]]
    assert kept[:-5] == [r["id"] for r in ROWS[: len(kept) - 5]]
    assert reader.stats["damaged_files"].total == 1


@pytest.mark.parametrize("compression", [None, "zstd", "gzip"])
def test_what_is_written_is_read_back(tmp_path, compression):
    docs = [Document(r["text"], r["id"], metadata=dict(r["metadata"])) for r in ROWS]
    writer = JsonlWriter(str(tmp_path), compression=compression)
    assert list(writer(docs)) == docs
    back, _ = read(tmp_path, add_file_path=False)
    assert [(d.text, d.id, d.metadata["score"]) for d in back] == [(d.text, d.id, d.metadata["score"]) for d in docs]
    assert writer.stats["doc_len"].n == len(ROWS)


@pytest.mark.parametrize(
    ("name", "given", "file"),
    [
        (None, "auto", "00000.jsonl.zst"),
        ("${rank}.jsonl.gz", "auto", "00000.jsonl.gz"),
        ("${rank}.jsonl.zst", "auto", "00000.jsonl.zst"),
        ("${rank}.jsonl", "infer", "00000.jsonl"),
        ("${rank}.jsonl.gz", "zstd", "00000.jsonl.gz.zst"),
    ],
)
def test_the_ending_of_a_name_says_the_compression_where_nothing_else_does(tmp_path, name, given, file):
    list(JsonlWriter(str(tmp_path), name, given)([Document("a", "1")]))
    assert [p.name for p in tmp_path.iterdir()] == [file]
    (back,) = JsonlReader(str(tmp_path))()
    assert back.text == "a"


# D10
def test_names_carry_the_rank_and_metadata_and_files_rotate(tmp_path):
    docs = [Document("x" * 100, str(i), metadata={"lang": "de" if i % 2 else "en"}) for i in range(20)]
    writer = JsonlWriter(str(tmp_path), "${lang}/${rank}.jsonl", compression=None, max_file_size=500)
    list(writer(docs, 3))
    names = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.jsonl"))
    assert names == [f"{lang}/{k:03d}_00003.jsonl" for lang in ("de", "en") for k in range(3)]
    assert sum(p.read_bytes().count(b"\n") for p in tmp_path.rglob("*.jsonl")) == 20
    with pytest.raises(ConfigError, match=r"langue.*did you mean 'lang'"):
        list(JsonlWriter(str(tmp_path), "${langue}.jsonl")(docs))


def test_limit_and_skip_count_documents_of_the_rank(tmp_path):
    write(tmp_path, "a.jsonl", lines(ROWS))
    docs, (reader,) = read(tmp_path, limit=7, skip=3)
    assert [d.id for d in docs] == [r["id"] for r in ROWS[3:10]]
    tally = reader.stats.tally
    assert tally.made - tally.dropped.total() == 7


def test_an_adapter_and_default_metadata_make_the_document(tmp_path):
    write(tmp_path, "a.jsonl", lines([{"body": "hello", "n": 4}]))

    def adapter(self, data, path, id_in_file):
        return {"text": data["body"], "id": f"{path}:{id_in_file}", "metadata": {"n": data["n"] + 1}}

    (doc,), _ = read(tmp_path, adapter=adapter, default_metadata={"n": 0, "lang": "en"}, add_file_path=False)
    assert (doc.text, doc.id, doc.metadata["n"], doc.metadata["lang"]) == ("hello", "a.jsonl:0", 5, "en")


def test_a_folder_without_files_and_a_missing_one_are_named(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"no files that match '\*\.jsonl'"):
        read(tmp_path / "empty", glob_pattern="*.jsonl")
    with pytest.raises(InputError, match="does not exist"):
        read(tmp_path / "missing")


def test_gzip_output_is_the_same_bytes_every_time(tmp_path):
    docs = [Document(r["text"], r["id"]) for r in ROWS]
    for k in "ab":
        list(JsonlWriter(str(tmp_path / k), compression="gzip")(docs))
    a, b = ((tmp_path / k / "00000.jsonl.gz").read_bytes() for k in "ab")
    assert a == b
    assert zlib.decompress(a, wbits=31).count(b"\n") == 1000
