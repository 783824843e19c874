"""Small corpora and pipelines that the tests of executors share."""

import json

import pytest

from thalweg.run import script


@pytest.fixture
def corpus(tmp_path):
    """Eight files of 50 documents; the folder's path."""
    folder = tmp_path / "in"
    folder.mkdir()
    for f in range(8):
        rows = [
            {"text": f"document {f} {i} " + "word " * (i % 7), "id": f"{f}-{i}", "metadata": {"n": i}}
            for i in range(50)
        ]
        (folder / f"{f}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return folder


@pytest.fixture(autouse=True)
def quiet():
    """No progress on the terminal of the tests."""
    with script.launching(quiet=True):
        yield
