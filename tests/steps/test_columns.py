"""Steps over columns decide what steps over documents decide, and untouched rows keep their bytes."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from thalweg.core.errors import BudgetError, SampleError
from thalweg.run.chain import Chain
from thalweg.steps import ColumnFilter, JsonlReader, JsonlWriter, LambdaFilter, ParquetWriter
from thalweg.steps.batches import batch_prefix, count_lines, line_array, lines_of, rows_of
from thalweg.steps.readers import lines as lines_module


@pytest.fixture
def source(tmp_path):
    """Odd spacing, CRLF, blank, bad and repaired lines, absent keys, a mark at the start, no newline at the end."""
    folder = tmp_path / "in"
    folder.mkdir()
    rows = [
        json.dumps({"text": f"row {i} " * (i % 9), "id": str(i), "metadata": {"score": i / 100}}) for i in range(300)
    ]
    (folder / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + "\n".join(rows).encode())
    odd = [r.replace(": ", ":   ") for r in rows] + [
        "",
        "{",
        '{"id":"x"}',
        r'{"text":"\ud83d lone","metadata":{"score":1}}',
    ]
    odd += ['{"text":"no metadata"}', '{"text":"null","metadata":null}', '{"text":7}', "[1]"]
    (folder / "b.jsonl").write_text("\r\n".join(odd))
    return folder


def long(batch):
    return pc.greater(pc.utf8_length(batch.column("text")), 20)


def score(batch):
    return np.array([v is None or v > 0.5 for v in batch.column("metadata.score").to_pylist()])


def documents(pipeline):
    out = []

    def collect(data, rank, world_size):
        for doc in data:
            out.append((doc.text, doc.id, doc.metadata))
            yield doc

    chain = Chain([*pipeline, collect], 0, 1)
    chain.drain()
    return out, chain.stats()


def reader(source, **settings):
    return JsonlReader(str(source), max_bad=1000, **settings)


@pytest.mark.parametrize("unit", ["128MB", 700])
def test_columns_decide_what_documents_decide(source, unit):
    by_columns = [reader(source, unit_bytes=unit), ColumnFilter(long), ColumnFilter(score, ["metadata.score"], "low")]
    assert batch_prefix(by_columns) == 3
    got, stats = documents(by_columns)
    rules = [
        LambdaFilter(lambda d: len(d.text) > 20),
        LambdaFilter(lambda d: (d.metadata.get("score") is None or d.metadata["score"] > 0.5, "low")),
    ]
    wanted, plain = documents([reader(source, unit_bytes=unit), *rules])
    assert got == wanted
    assert [s.tally for s in stats] == [s.tally for s in plain]
    assert stats.unbalanced == []
    by_length = ColumnFilter(lambda batch: pc.greater(batch.column("text.length"), 20), ["text.length"])
    low = ColumnFilter(score, ["metadata.score"], "low")
    again, stats = documents([reader(source, unit_bytes=unit), by_length, low])
    assert (again, [s.tally for s in stats]) == (wanted, [s.tally for s in plain])
    after_documents, _ = documents([reader(source, unit_bytes=unit), rules[1], by_length])
    assert after_documents == wanted


def test_rows_without_text_spend_the_budget_alike_in_columns_and_documents(tmp_path):
    (tmp_path / "in").mkdir()
    rows = [{"id": str(i)} | ({"text": "row"} if i % 40 else {"messages": []}) for i in range(400)]  # 2.5 %
    (tmp_path / "in/a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def told(step, **settings):
        with pytest.raises(BudgetError) as told:
            documents([JsonlReader(str(tmp_path / "in"), **settings), step])
        return str(told.value)

    messages = {told(ColumnFilter(lambda b: [True] * b.num_rows)), told(LambdaFilter(lambda d: True))}
    (message,) = messages
    assert "10 of 400 items are bad (2.50%)" in message
    assert f"{tmp_path}/in/a.jsonl, row 360" in message
    assert "text_key=" in message
    assert "EncodeChat" in message
    for k, step in enumerate((ColumnFilter(lambda b: [True] * b.num_rows), LambdaFilter(lambda d: True))):
        kept = {"on_error": "quarantine", "quarantine": str(tmp_path / f"bad{k}"), "max_bad": 10}
        _, stats = documents([JsonlReader(str(tmp_path / "in"), **kept), step])
        assert (stats[0].tally.out, stats[0].tally.quarantined) == (390, 10)
    assert (tmp_path / "bad0/00000.jsonl").read_text() == (tmp_path / "bad1/00000.jsonl").read_text()


def test_untouched_rows_keep_the_bytes_that_were_read(source, tmp_path):
    chain = Chain([reader(source), ColumnFilter(long), JsonlWriter(str(tmp_path / "out"), compression=None)], 0, 1)
    chain.drain()
    written = (tmp_path / "out/00000.jsonl").read_bytes()
    lines = (source / "a.jsonl").read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    kept = [line + b"\n" for line in lines if len(json.loads(line)["text"]) > 20]
    assert written.startswith(b"".join(kept))
    assert [s.tally.out for s in chain.stats()][-1] == written.count(b"\n")


def test_a_chain_runs_in_batches_only_where_that_shows_the_same_rows(source, tmp_path):
    columns, writer = ColumnFilter(long), JsonlWriter(str(tmp_path / "o"))
    assert batch_prefix([reader(source), columns, LambdaFilter(len), columns]) == 2
    assert batch_prefix([reader(source), LambdaFilter(len), columns]) == 0
    assert batch_prefix([reader(source), writer]) == 0
    assert batch_prefix([reader(source, limit=3), columns]) == 0
    assert batch_prefix([reader(source, adapter=lambda self, d, p, i: d), columns]) == 0
    assert batch_prefix([reader(source), columns, writer]) == 3
    assert batch_prefix([reader(source), columns, JsonlWriter(str(tmp_path / "o"), "${id}.jsonl")]) == 2


def test_a_mask_of_the_wrong_length_is_refused(source):
    with pytest.raises(SampleError, match="one boolean for each row"):
        documents([reader(source), ColumnFilter(lambda batch: [True])])


@given(st.lists(st.binary(max_size=5).map(lambda b: b.replace(b"\n", b"") + b"\n"), min_size=1), st.data())
def test_bytes_of_the_rows_that_are_left_come_in_their_order_without_the_others(lines, data):
    block = b"".join(lines)
    array = line_array(memoryview(bytearray(block))[:])
    assert array.to_pylist() == lines
    assert (count_lines(block), count_lines(block + b"x")) == (len(lines), len(lines) + 1)
    rows = rows_of(pa.StructArray.from_arrays([array], ["line"]))
    kept = data.draw(st.lists(st.booleans(), min_size=len(lines), max_size=len(lines)))
    left = rows.filter(pa.array(kept))
    wanted = [line for line, keep in zip(lines, kept, strict=True) if keep]
    assert b"".join(lines_of(left)) == b"".join(wanted)
    half = len(left) // 2
    assert b"".join(lines_of(left[half:])) == b"".join(wanted[half:])
    assert b"".join(lines_of(left[::-1] if len(left) else left)) == b"".join(reversed(wanted))


@pytest.mark.parametrize("length", [30, 300])  # below and above a block
def test_what_is_made_of_a_block_without_a_copy_stays_while_the_next_ones_are_read(tmp_path, monkeypatch, length):
    monkeypatch.setattr(lines_module, "BLOCK", 64)
    lines = [f"{i} {'x' * (i % length)}\n".encode() for i in range(400)]
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbf" + b"".join(lines))
    with (tmp_path / "a").open("rb") as file:
        views, arrays = [], []
        for view in lines_module.blocks_of_range(file, 0, -1):
            arrays.append(line_array(view))
            views.append(view)
    assert [line for array in arrays for line in array.to_pylist()] == lines
    with (tmp_path / "a").open("rb") as file:
        views = list(lines_module.blocks_of_range(file, 0, -1))
    with pytest.raises(ValueError, match="released"):  # not the bytes of another block
        bytes(views[0])


def test_dropping_rows_copies_no_line_and_columns_that_nobody_looks_at_go_first(source):
    seen = []

    def look(batch):
        lines = batch.column("rows").dictionary.field("line")
        seen.append((batch.schema.names[:-1], lines.buffers()[2].address))
        return [True] * (batch.num_rows // 2) + [False] * (batch.num_rows - batch.num_rows // 2)

    chain = Chain([reader(source), ColumnFilter(look), ColumnFilter(look, ["metadata.score"])], 0, 1)
    chain.drain()
    (first, lines), (second, kept), *_ = seen
    assert (first, second) == (["text", "metadata.score"], ["metadata.score"])
    assert kept == lines


VALUES = {
    "word": st.text(max_size=4),
    "my-score": st.floats(allow_nan=False, allow_infinity=False),
    "count": st.integers(-(2**63), 2**63 - 1),
    "good": st.booleans(),
    "either": st.integers(0, 9) | st.floats(0, 9),
}
SMALL = st.integers(-9, 9)
ODD = {"tags": st.lists(SMALL), "inner": st.fixed_dictionaries({"a": SMALL}), "source": st.just("web")}


@st.composite
def rows_of_json(draw):
    """Rows as files have them: plain values, some absent or null; now and then what is not so simple."""
    names = draw(st.lists(st.sampled_from(sorted(VALUES)), unique=True))
    kinds = {name: VALUES[name] | st.none() for name in names} | draw(st.sampled_from([{}, {}, ODD]))
    metadata = st.fixed_dictionaries({}, optional=kinds)
    row = {"text": st.text(min_size=1, max_size=9) | st.sampled_from(["", None])}
    other = {"id": st.text(max_size=3), "metadata": metadata | st.none()} | draw(
        st.sampled_from([{}, {"n": st.just(1)}])
    )
    return draw(st.lists(st.fixed_dictionaries(row, optional=other), min_size=1, max_size=12))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30)
@given(rows=rows_of_json(), unit=st.sampled_from(["128MB", 60]), batch=st.sampled_from([3, 1000]))
def test_columns_become_the_parquet_that_documents_become(tmp_path, rows, unit, batch):
    shutil.rmtree(tmp_path)
    (tmp_path / "in").mkdir(parents=True)
    (tmp_path / "in/a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run(step, out):
        writer = ParquetWriter(str(tmp_path / out), batch_size=batch)
        try:
            Chain([reader(tmp_path / "in", unit_bytes=unit), step, writer], 0, 1).drain()
        except SampleError as error:
            return str(error).partition("\n")[0]
        found = list((tmp_path / out).glob("*"))
        return pq.read_table(found[0]).to_pylist() if found else []

    by_columns = run(ColumnFilter(lambda b: [True] * b.num_rows), "columns")
    by_documents = run(LambdaFilter(lambda doc: True), "documents")
    if isinstance(by_documents, list) and isinstance(by_columns, list):
        assert filled(by_columns) == filled(by_documents)
    else:  # a value does not fit what the first rows showed: which rows those are depends on the size of a batch
        assert batch == 3 or unit == 60 or by_columns == by_documents


def filled(rows):
    """Leave out what is null: which empty columns a file has depends on its first rows."""
    found = []
    for row in rows:
        metadata = {k: v for k, v in (row.get("metadata") or {}).items() if v is not None}
        found.append({k: v for k, v in row.items() if v is not None} | {"metadata": metadata})
    return found


def test_simple_rows_are_written_in_columns_and_the_schema_is_that_of_documents(tmp_path):
    (tmp_path / "in").mkdir()
    rows = [{"text": f"row {i} " * 9, "id": str(i), "metadata": {"score": i / 3, "url": "u"}} for i in range(300)]
    (tmp_path / "in/a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run(step, out):
        chain = Chain([reader(tmp_path / "in"), step, ParquetWriter(str(tmp_path / out), batch_size=100)], 0, 1)
        chain.drain()
        return pq.read_table(tmp_path / out), chain.stats()

    columns, stats = run(ColumnFilter(score, ["metadata.score"]), "columns")
    documents, _ = run(LambdaFilter(lambda doc: doc.metadata["score"] > 0.5), "documents")
    assert columns.equals(documents)
    assert stats[2]["rows_in_columns"].total == len(columns) == 298
