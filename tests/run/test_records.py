"""Pipelines into records: one set of all ranks' parts, with provenance, whole or not at all."""

import json
from pathlib import Path

import numpy as np
import pytest

from thalweg.check.words import tokenizer_of
from thalweg.core.errors import RecordsError, RunError
from thalweg.run import LocalPipelineExecutor
from thalweg.run.copies import copies_of
from thalweg.steps import EncodeChat, EncodeText, JsonlReader, LambdaFilter, RecordsWriter
from thalweg.store.records import open_records


def tokens(data, rank, world_size):
    for doc in data:
        ids = np.frombuffer(doc.text.encode(), np.uint8).astype(np.int32)
        place = {k: doc.metadata[k] for k in ("source", "unit", "row")}
        yield {"input_ids": ids, "loss_spans": np.array([[0, len(ids)]], np.int32), "id": doc.id, **place}


@pytest.fixture
def make(tmp_path, corpus):
    def build(*steps, tasks=3, **settings):
        pipeline = [JsonlReader(str(corpus)), tokens, *steps, RecordsWriter(str(tmp_path / "rec"))]
        return LocalPipelineExecutor(pipeline, tasks, 1, str(tmp_path / "log"), **settings)

    return build


# D11 E37 K47
def test_all_parts_become_one_set_in_the_order_of_ranks_and_rows_say_where_they_come_from(make, tmp_path, corpus):
    make(tasks=11).run()  # three ranks have nothing to do: their parts are empty
    rec = open_records(tmp_path / "rec")
    assert len(rec) == 400
    units = [f for rank in range(11) for f in list(range(8))[rank::11]]
    assert [rec[i]["id"] for i in range(0, 400, 50)] == [f"{f}-0" for f in units]
    row = rec[123]
    line = json.loads(Path(row["source"]).read_text().splitlines()[row["row"]])
    assert bytes(row["input_ids"].astype(np.uint8)).decode() == line["text"]
    assert row["id"] == line["id"]
    before = sorted((p.name, p.stat().st_mtime_ns) for p in (tmp_path / "rec").iterdir())
    make(tasks=11).run()  # merging twice changes nothing
    assert sorted((p.name, p.stat().st_mtime_ns) for p in (tmp_path / "rec").iterdir()) == before


@pytest.mark.slow
def test_conversations_without_text_become_records_and_other_textless_rows_spend_the_budget(tmp_path, qwen):
    tokenizer = qwen.name_or_path
    source = tmp_path / "in"
    source.mkdir()
    said = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]
    rows = [{"id": "a", "messages": said}, {"id": "b", "prompt": "Hi", "response": "Hello!"}, {"id": "c", "talk": said}]

    def launch(name, step, **settings):
        reader = JsonlReader(str(source), **settings)
        pipeline = [reader, LambdaFilter(lambda doc: not doc.text), step, RecordsWriter(str(tmp_path / name))]
        return LocalPipelineExecutor(pipeline, 1, 1, str(tmp_path / "logs" / name)).run()

    def write(some):
        (source / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))

    write(rows)
    stats = launch("chat", EncodeChat(tokenizer))
    assert stats[0].tally.dropped == {"no_text": 1}  # no known layout, and one bad row is always allowed
    records = open_records(tmp_path / "chat")
    assert [records[i]["id"] for i in range(2)] == ["a", "b"]
    assert len(records) == 2
    assert tokenizer_of(None, records.lineage).decode(records[0]["input_ids"]).count("Hello!") == 1
    moved = {**records.lineage, "tokenizer": "another"}  # by now another tokenizer lies in that folder
    assert tokenizer_of(None, moved) is None
    write([{**row, "id": str(k)} for k in range(5) for row in rows[:1]])
    with pytest.raises(RunError, match=r"no_text.*a\.jsonl, row.*EncodeChat"):
        launch("text", EncodeText(tokenizer))
    write([{"id": str(k), "talk": said} for k in range(5)])
    with pytest.raises(RunError, match="no_text"):
        launch("unknown", EncodeChat(tokenizer))
    launch("named", EncodeChat(tokenizer, columns={"messages": "talk"}))
    assert len(open_records(tmp_path / "named")) == 5


def test_a_set_with_a_failed_rank_is_refused_until_the_rank_is_done(make, tmp_path):
    cure = tmp_path / "cure"

    def breaks(data, rank, world_size):
        for sample in data:
            if rank == 1 and not cure.exists():
                raise ValueError("not yet")
            yield sample

    with pytest.raises(RunError, match="rank 00001"):
        make(breaks).run()
    with pytest.raises(RecordsError, match="unfinished"):
        open_records(tmp_path / "rec")
    cure.touch()
    make(breaks).run()
    assert len(open_records(tmp_path / "rec")) == 400


def test_a_run_begun_anew_replaces_the_set(make, tmp_path, corpus):
    make().run()
    (corpus / "7.jsonl").unlink()
    make(tasks=2, adopt=True).run()
    assert len(open_records(tmp_path / "rec")) == 350


class Large:
    """Stands for a tokenizer: one copy a process."""

    shared_by_ranks = True

    def __init__(self):
        self.calls = 0


class Uses:
    def __init__(self, large):
        self.large, self.count = large, [0]

    def __call__(self, data, rank, world_size):
        yield from data


def test_ranks_share_what_says_so_and_nothing_else():
    large = Large()
    copies = copies_of([Uses(large), Uses(large)])
    (a, b), (c, _) = copies.one(), copies.one()
    assert a.large is b.large is c.large
    assert a.large is not large
    assert a is not c
    assert a.count is not c.count
