"""Documents that pipelines read and write can be looked at by the command that shows record sets."""

import json

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
    late = CliRunner().invoke(cli, ["inspect", str(tmp_path / "out"), "--row", "9"])
    assert late.exit_code == 1
    assert "there is no document 9" in late.output
