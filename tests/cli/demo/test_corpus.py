"""The demo's corpus: the same bytes each time, nothing twice, real questions and answers."""

import json

import pytest

from thalweg.cli.demo.corpus import SHARDS, build


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return build(tmp_path_factory.mktemp("demo") / "corpus", lambda _: None, limit=60)


def rows(folder):
    whole = "".join(path.read_text("utf-8") for path in sorted(folder.glob("*.jsonl")))
    return [json.loads(line) for line in whole.split("\n")[:-1]]


def test_every_page_has_an_id_and_a_text_and_occurs_once(corpus):
    pages = rows(corpus.pages)
    assert (
        len(pages) == corpus.num_pages == len({page["id"] for page in pages}) == len({page["text"] for page in pages})
    )
    assert len(list(corpus.pages.glob("*.jsonl"))) == SHARDS
    assert {page["id"].split("/")[0] for page in pages} == {"stdlib", "package"}
    reasons = ("file empty", "file not UTF-8", "page seen before")
    assert corpus.files == corpus.num_pages + sum(corpus.left_out.get(reason, 0) for reason in reasons)


def test_a_chat_is_a_question_about_a_name_and_its_docstring(corpus):
    for chat in rows(corpus.chat):
        user, assistant = chat["messages"]
        assert (user["role"], assistant["role"]) == ("user", "assistant")
        assert f"`{chat['id'].removeprefix('docstring/')}`" in user["content"]
        assert assistant["content"].strip()


def test_the_same_machine_gives_the_same_bytes(corpus, tmp_path):
    again = build(tmp_path / "elsewhere", lambda _: None, limit=60)
    for ours, theirs in ((corpus.pages, again.pages), (corpus.chat, again.chat)):
        assert [p.read_bytes() for p in sorted(ours.iterdir())] == [p.read_bytes() for p in sorted(theirs.iterdir())]


def test_a_corpus_of_the_same_rules_is_not_built_again(corpus):
    said = []
    stamp = (corpus.pages.parent / "corpus.json").stat().st_mtime_ns
    assert build(corpus.pages.parent, said.append, limit=60) == corpus
    assert (corpus.pages.parent / "corpus.json").stat().st_mtime_ns == stamp
    assert "there already" in said[0]


def test_other_rules_build_it_again_and_leave_no_draft(corpus, tmp_path):
    folder = tmp_path / "corpus"
    build(folder, lambda _: None, limit=20)
    assert build(folder, lambda _: None, limit=60).num_pages == corpus.num_pages
    assert [p.name for p in tmp_path.iterdir()] == ["corpus"]
