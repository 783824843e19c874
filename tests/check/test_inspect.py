"""Looking at data: what is shown is what the model sees, nothing is consumed, and a wrong target says what to do."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

import thalweg as tw
from thalweg.check.inspect import inspect
from thalweg.cli import cli
from thalweg.core.errors import ConfigError, InputError


class Letters:
    """A tokenizer whose tokens are characters."""

    def encode(self, text):
        return [ord(c) for c in text]

    def convert_tokens_to_ids(self, token):
        return ord(token)

    def decode(self, ids):
        return "".join(map(chr, ids))


def sample(prompt, answer):
    ids = np.array([ord(c) for c in prompt + answer], np.int32)
    return {"input_ids": ids, "loss_spans": np.array([[len(prompt), len(ids)]], np.int32)}


@pytest.fixture
def records(tmp_path):
    path = tmp_path / "records"
    with tw.create_records(path) as writer:
        for n in range(24):
            writer.write(sample(f"ask {n}?", "yes!" * (1 + n % 8)), id=f"doc-{n}")
    return path


def test_records_are_shown_from_a_row_on_with_their_ids_and_labels(records):
    report = inspect(records, row=2, n=2, tokenizer=Letters())
    assert [view.title for view in report.samples] == ["row 2, doc-2", "row 3, doc-3"]
    assert report.samples[0].marked() == "ask 2?⟦yes!yes!yes!⟧"
    assert report.facts["rows"] == 24
    assert report.ok


def test_records_show_how_long_their_samples_are_in_text_json_and_html(tmp_path):
    for name, lengths in (("even", [30, 31, 39, 35, 35]), ("wide", [1] * 3 + [5, 70, 999, 1000])):
        with tw.create_records(tmp_path / name, sync=False) as writer:
            for n in lengths:
                writer.write({"input_ids": list(range(n))})
        report = inspect(tmp_path / name, n=1)
        assert sum(report.lengths.values()) == len(lengths)
        for step, n in report.lengths.items():
            low, high = (int(w.replace(",", "")) for w in step.split(" to "))
            assert n == sum(low <= one <= high for one in lengths)
        assert report.to_dict()["lengths"] == report.lengths
        assert "Tokens of a sample" in report.html()
        text = str(report)
        assert "tokens of a sample" in text
        assert "█" in text
        shown = CliRunner().invoke(cli, ["inspect", str(tmp_path / name), "-n", "1"])
        assert all(step in shown.output for step in report.lengths)
    assert list(inspect(tmp_path / "wide", n=1).lengths)[-1] == "500 to 1,000"


def test_without_a_tokenizer_ids_are_shown_and_the_remedy_is_named(records):
    report = inspect(records, n=1)
    assert "⟨97⟩" in report.samples[0].marked()
    assert "--tokenizer" in str(report.findings[0])


def test_a_packed_feed_is_shown_as_rows_of_documents_with_padding_counted(records):
    feed = tw.from_records(records).pack(64).batch(2, pad_id=0)
    report = inspect(feed, n=2, tokenizer=Letters())
    shown = [document for view in report.samples for document in view.marked().split("\n────\n")]
    assert "ask 0?⟦yes!⟧" in shown or "ask 8?⟦yes!⟧" in shown
    assert sum(document.startswith("ask") for document in shown) == sum(len(v.documents) for v in report.samples) - sum(
        bool(v.count("padding")) for v in report.samples
    )
    assert report.facts["kind"] == "planned"


def test_a_step_of_a_rank_is_what_the_loader_gives_there(records):
    feed = tw.from_records(records).shuffle(seed=3).pack(64).batch(1, pad_id=0)
    for rank in range(2):
        loader = tw.Loader(feed, topology=tw.Topology(rank=rank, world=2), workers=0, return_tensors="np")
        wanted = next(batch for batch in loader if batch.info.step == 1)
        loader.close()
        report = inspect(feed, step=1, rank=rank, world=2, tokenizer=Letters())
        assert report.samples[0].title == f"row 0: {', '.join(wanted.info.ids[0])}"
        assert report.samples[0].num_tokens == wanted.info.num_tokens
        assert report.samples[0].count("loss") == wanted.info.num_label_tokens


def test_rows_of_several_batches_say_which(records):
    report = inspect(tw.from_records(records).batch(2, pad_id=0), n=3, tokenizer=Letters())
    assert [s.title.split(":")[0] for s in report.samples] == ["batch 0, row 0", "batch 0, row 1", "batch 1, row 0"]


def test_a_look_at_a_loader_consumes_nothing(records):
    feed = tw.from_records(records).pack(64).batch(1, pad_id=0)
    loader, fresh = (tw.Loader(feed, workers=0, return_tensors="np") for _ in range(2))
    inspect(loader, tokenizer=Letters())
    assert [batch.info.ids for batch in loader] == [batch.info.ids for batch in fresh]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda path: inspect(path.parent / "nowhere"), InputError, "nothing is there"),
        (lambda path: inspect(path, row=24), InputError, "there are 24"),
        (lambda path: inspect(path, step=1), ConfigError, "--row"),
        (lambda path: inspect(path, n=0), ConfigError, "at least 1"),
        (lambda _: inspect(object()), ConfigError, "holds no samples"),
        (
            lambda path: inspect(tw.from_records(path).batch(4, pad_id=0), step=99, world=2),
            InputError,
            "no step 99: on 2 ranks an epoch has 3 steps.*0 to 2",
        ),
        (lambda path: inspect(tw.from_records(path).batch(4, pad_id=0), step=6), InputError, "no step 6: .* 6 steps"),
        (lambda path: inspect(tw.from_records(path).batch(25, pad_id=0), step=0), InputError, "a smaller batch"),
        (
            lambda path: inspect(tw.from_stream(lambda: iter(tw.from_records(path))).batch(4, pad_id=0), step=7),
            InputError,
            "no step 7: .* 6 steps",
        ),
        (lambda path: inspect(tw.from_records(path).pack(64).batch(1), rank=2, world=2, step=0), ConfigError, "rank"),
    ],
)
def test_what_cannot_be_looked_at_says_why(records, call, error, words):
    with pytest.raises(error, match=words):
        call(records)


def test_an_empty_directory_and_a_raw_file_say_what_to_do(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="the directory is empty"):
        inspect(tmp_path / "empty")
    (tmp_path / "a.jsonl").write_text("{}\n")
    with pytest.raises(InputError, match=r"tw\.from_files"):
        inspect(tmp_path / "a.jsonl")


def test_the_command_shows_a_file_and_name_in_text_json_and_html(records, tmp_path):
    file = tmp_path / "my_feed_of_inspect.py"
    file.write_text(f"import thalweg as tw\nfeed = tw.from_records({str(records)!r}).pack(64).batch(1, pad_id=0)\n")
    target = f"{file}:feed"
    text = CliRunner().invoke(cli, ["inspect", target, "-n", "1"])
    assert text.exit_code == 0, text.output
    assert "⟦" in text.stdout
    data = json.loads(CliRunner().invoke(cli, ["inspect", target, "-n", "1", "--json"]).stdout)
    assert data["ok"]
    assert len(data["samples"]) == 1
    page = tmp_path / "page.html"
    CliRunner().invoke(cli, ["inspect", target, "--html", str(page)])
    assert page.read_text("utf-8").startswith("<!doctype html>")


def test_the_command_fails_with_one_clear_block(tmp_path):
    result = CliRunner().invoke(cli, ["inspect", str(tmp_path / "nowhere")])
    assert result.exit_code == 1
    assert result.stderr.startswith("error TW200  nothing is there")
