"""Documents that pipelines read and write can be looked at by the command that shows record sets."""

import json
from html import escape

import pytest
from click.testing import CliRunner

from thalweg.cli import cli
from thalweg.core.document import Document
from thalweg.steps import JsonlWriter, ParquetWriter


@pytest.fixture
def texts():
    return [Document(f"page {k} " + "word " * (k * 100), str(k), metadata={"score": k}) for k in range(5)]


# D44
@pytest.mark.parametrize("writer", [JsonlWriter, ParquetWriter])
def test_documents_of_a_folder_or_file_are_shown(tmp_path, texts, writer):
    list(writer(str(tmp_path / "out")).run(texts))
    (tmp_path / "out/README").write_text("not a document")
    for target in (tmp_path / "out", next((tmp_path / "out").glob("0*"))):
        said = CliRunner().invoke(cli, ["inspect", str(target), "--row", "3", "-n", "5", "--json"])
        assert said.exit_code == 0, said.output
        found = json.loads(said.stdout)
        assert [(d["id"], d["text"], d["metadata"]["score"]) for d in found] == [
            (d.id, d.text, d.metadata["score"]) for d in texts[3:]
        ]
    shown = CliRunner().invoke(cli, ["inspect", str(tmp_path / "out"), "-n", "2"]).output
    assert "== 1  507 characters" in shown
    assert "   score: 1" in shown
    page = tmp_path / "page.html"
    paged = CliRunner().invoke(cli, ["inspect", str(tmp_path / "out"), "-n", "5", "--html", str(page)])
    assert paged.stderr == f"written: {page}\n"
    assert paged.stdout == ""
    text = page.read_text("utf-8")
    assert all(escape(d.text) in text for d in texts)  # whole, where a terminal shows the beginning
    assert "<small>507 characters" in text
    assert "in the loss" not in text
    late = CliRunner().invoke(cli, ["inspect", str(tmp_path / "out"), "--row", "9"])
    assert late.exit_code == 1
    assert "there is no document 9" in late.output


def test_conversations_are_shown_and_rows_with_neither_text_nor_turns_are_counted(tmp_path):
    turns = [{"role": "user", "content": "how deep?"}, {"role": "assistant", "content": "two metres"}]
    chat = {"id": "c", "messages": turns}
    rows = [{"id": "a", "score": 1}, chat, {"id": "t", "text": "plain"}, {"id": "l", "messages": turns, "text": None}]
    file = tmp_path / "mixed.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = CliRunner().invoke(cli, ["inspect", str(file), "-n", "4", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [(d["id"], d["text"]) for d in found] == [
        ("c", "user: how deep?\nassistant: two metres"),
        ("t", "plain"),
        ("l", "user: how deep?\nassistant: two metres"),
    ]
    assert "passed over: 1 row with neither a text nor a conversation" in result.stderr
    (tmp_path / "chat.jsonl").write_text(json.dumps(chat) + "\n")
    assert (
        "assistant: two metres" in CliRunner().invoke(cli, ["inspect", str(tmp_path / "chat.jsonl"), "-n", "1"]).output
    )


def test_a_file_without_any_text_says_so_and_not_to_give_a_smaller_row(tmp_path):
    file = tmp_path / "numbers.jsonl"
    file.write_text("".join(json.dumps({"id": str(n), "score": 1}) + "\n" for n in range(3)))
    result = CliRunner().invoke(cli, ["inspect", str(file)])
    assert result.exit_code == 1
    assert "3 rows have neither a text nor a conversation" in result.output
    assert "smaller" not in result.output
    assert "file.py:feed" in result.output
