"""Blocks of the datatrove package, unchanged, in our executors: their files are protected, their counts are merged."""

import json

import pyarrow.parquet as pq
import pytest

from thalweg.core.errors import RunError
from thalweg.run import LocalPipelineExecutor
from thalweg.run.outputs import unprotected
from thalweg.steps import JsonlWriter, LambdaFilter

pytest.importorskip("datatrove")
pytest.importorskip("orjson")
pytestmark = pytest.mark.filterwarnings("ignore")  # theirs


@pytest.fixture
def theirs():
    from datatrove.pipeline import filters, readers, writers

    return readers, filters, writers


# D5 D42
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_their_reader_filter_and_writers_mixed_with_ours(tmp_path, corpus, theirs, workers):
    readers, filters, writers = theirs

    def run():
        pipeline = [
            readers.JsonlReader(str(corpus)),
            LambdaFilter(lambda doc: (doc.metadata["n"] % 2 == 0, "odd")),
            filters.LambdaFilter(
                lambda doc: doc.metadata["n"] > 9, exclusion_writer=writers.JsonlWriter(str(tmp_path / "excluded"))
            ),
            writers.JsonlWriter(str(tmp_path / "theirs"), compression=None),
            writers.ParquetWriter(str(tmp_path / "parquet")),
            JsonlWriter(str(tmp_path / "ours"), compression=None),
        ]
        return LocalPipelineExecutor(pipeline, 4, workers, str(tmp_path / "log")).run()

    stats = run()
    wanted = sorted(f"{f}-{i}" for f in range(8) for i in range(10, 50, 2))
    for name in ("theirs", "ours"):
        rows = [json.loads(line) for p in (tmp_path / name).iterdir() for line in p.read_text().splitlines()]
        assert sorted(r["id"] for r in rows) == wanted
    tables = [pq.read_table(p) for p in (tmp_path / "parquet").iterdir()]
    assert sorted(i for t in tables for i in t["id"].to_pylist()) == wanted
    assert sorted(p.name for p in (tmp_path / "theirs").iterdir()) == [f"0000{r}.jsonl" for r in range(4)]
    assert len(list((tmp_path / "excluded").iterdir())) == 4
    assert [s.tally.to_dict()["dropped"] for s in stats] == [{}, {"odd": 200}, {"filtered": 40}, {}, {}, {}]
    assert stats[0]["documents"].total == 400
    assert stats.unbalanced == []
    assert run().to_dict() == stats.to_dict()


# D5 D21
def test_a_failing_rank_leaves_no_file_of_theirs_under_a_final_name(tmp_path, corpus, theirs):
    readers, _, writers = theirs

    def breaks(data, rank, world_size):
        for number, doc in enumerate(data):
            if rank == 1 and number == 30:
                raise ValueError("in the middle")
            yield doc

    pipeline = [readers.JsonlReader(str(corpus)), writers.JsonlWriter(str(tmp_path / "out")), breaks]
    with pytest.raises(RunError, match="in the middle"):
        LocalPipelineExecutor(pipeline, 3, 1, str(tmp_path / "log")).run()
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["00000.jsonl.gz", "00002.jsonl.gz"]


# D5 D42
@pytest.mark.slow
def test_their_reader_gopher_filter_writer_and_tokenizer_give_what_they_give_in_their_own_executor(tmp_path):
    pytest.importorskip("spacy")
    from datatrove_chain import TASKS, check

    check(tmp_path, lambda steps: LocalPipelineExecutor(steps, TASKS, 2, str(tmp_path / "log")).run())


# D5
def test_their_tokenizer_runs_unchanged(tmp_path, corpus, theirs):
    tokenizers = pytest.importorskip("tokenizers")
    pytest.importorskip("humanize")
    from datatrove.pipeline.tokens import DocumentTokenizer

    words = {w: k for k, w in enumerate(["<unk>", "<eos>", "document", "word", *map(str, range(60))])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    readers, _, _ = theirs

    def pipeline(out):
        step = DocumentTokenizer(out, str(tmp_path / "tokenizer.json"), eos_token="<eos>", shuffle_documents=False)
        return [readers.JsonlReader(str(corpus)), step]

    stats = LocalPipelineExecutor(pipeline(str(tmp_path / "ours")), 2, 1, str(tmp_path / "log")).run()
    from datatrove.executor import LocalPipelineExecutor as Theirs

    Theirs(pipeline(str(tmp_path / "peer")), 2, 1, str(tmp_path / "peer_log")).run()

    def content(name):
        return {p.name: p.read_bytes() for p in (tmp_path / name).iterdir() if not p.name.endswith(".metadata")}

    assert content("ours") == content("peer")
    assert stats[1]["tokens"].total > 400
    assert len(content("ours")) == 4


# D5 D17
def test_a_changed_setting_of_their_block_is_refused(tmp_path, corpus, theirs):
    readers, _, writers = theirs

    def run(**settings):
        pipeline = [readers.JsonlReader(str(corpus), **settings), writers.JsonlWriter(str(tmp_path / "out"))]
        return LocalPipelineExecutor(pipeline, 2, 1, str(tmp_path / "log")).run()

    run()
    with pytest.raises(RunError, match=r"0:JsonlReader\.limit: -1 -> 5"):
        run(limit=5)
    (corpus / "9.jsonl").write_text('{"text":"x","id":"y","metadata":{"n":1}}\n')
    with pytest.raises(RunError, match=r"input file added: 9\.jsonl"):
        run()


# D13
def test_a_half_done_logging_directory_of_theirs_is_refused_with_the_list_or_taken_over(tmp_path, corpus, theirs):
    from datatrove.executor import LocalPipelineExecutor as Theirs

    readers, _, writers = theirs

    def pipeline():
        return [readers.JsonlReader(str(corpus)), writers.JsonlWriter(str(tmp_path / "out"), compression=None)]

    Theirs(pipeline(), 4, 1, str(tmp_path / "log"), local_tasks=2).run()
    with pytest.raises(RunError, match=r"2 ranks are marked complete here by another program \(00000, 00001\)"):
        LocalPipelineExecutor(pipeline(), 4, 1, str(tmp_path / "log")).run()
    before = (tmp_path / "out/00000.jsonl").stat().st_mtime_ns
    with pytest.raises(RunError, match="rank 1 is marked complete, but the run has 1 task"):
        LocalPipelineExecutor(pipeline(), 1, 1, str(tmp_path / "log"), adopt=True).run()
    LocalPipelineExecutor(pipeline(), 4, 1, str(tmp_path / "log"), adopt=True).run()
    stats = LocalPipelineExecutor(pipeline(), 4, 1, str(tmp_path / "log")).run()
    assert (tmp_path / "out/00000.jsonl").stat().st_mtime_ns == before
    rows = [json.loads(line) for p in (tmp_path / "out").iterdir() for line in p.read_text().splitlines()]
    assert len({r["id"] for r in rows}) == len(rows) == 400
    # D28: their ranks are in the totals
    assert stats.ranks == 4
    assert stats[1]["total"].total == 400


def test_explain_names_what_cannot_be_protected(tmp_path, corpus, theirs):
    readers, _, writers = theirs

    def mine(data, rank, world_size):
        yield from data

    found = unprotected([readers.JsonlReader(str(corpus)), mine, writers.JsonlWriter(str(tmp_path / "out"))])
    assert found == ["1:mine is code of your own: files that it writes by itself are not staged"]
