"""The doctor: verdicts in the order of suspicion, an exit status to stop on, and real data without a false alarm."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

import thalweg as tw
from planted import SAMPLES, TALKS, Letters, encoded, feed, packed, ranks
from thalweg.check.checks.check import GROUPS
from thalweg.check.checks.speed import memory_predicted
from thalweg.check.evidence import Evidence
from thalweg.cli import cli
from thalweg.core.errors import ConfigError, InputError


@pytest.fixture
def records(tmp_path):
    path = tmp_path / "records"
    with tw.create_records(path) as writer:
        for n, s in enumerate(SAMPLES):
            spans = np.array([[next(i for i, v in enumerate(s["labels"]) if v != -100), len(s["labels"])]], np.int32)
            writer.write({"input_ids": np.array(s["input_ids"], np.int32), "loss_spans": spans}, id=f"talk-{n}")
    return path


def test_a_clean_feed_is_ok_and_its_verdicts_come_in_the_order_of_suspicion():  # E57
    report = tw.doctor(feed().shuffle().pack(256, overlong="drop").batch(2), tokenizer=Letters())
    assert report.ok
    groups = [group for group, _ in report.verdicts]
    assert groups == sorted(groups, key=GROUPS.index)
    assert set(groups) == set(GROUPS)
    assert [f for f in report.findings if f.level == "error"] == []
    assert str(report).splitlines()[-1].startswith("0 errors")


def test_a_fault_is_said_with_its_count_place_and_remedy():
    def train_all(record):
        return encoded(record, train_prompt=True)

    report = tw.doctor(tw.from_dataset(TALKS).map(train_all, remove_columns="all"), tokenizer=Letters())
    assert not report.ok
    worst = report.findings[0]
    assert worst.check == "prompts off the loss"
    assert (worst.count, worst.of) == (60, 60)
    share = int(worst.numbers["share of label tokens"].rstrip("%"))
    truth = 1 - sum(len(t["messages"][1]["content"]) for t in TALKS) / sum(len(s["input_ids"]) - 1 for s in SAMPLES)
    assert share == pytest.approx(100 * truth, abs=2)
    assert "labels of prompts" in worst.fix
    assert "E prompt tokens in the loss: 60 of 60 samples" in str(report)


def test_records_a_loader_a_list_of_batches_and_pretended_ranks_can_be_looked_at(records):
    assert tw.doctor(records).ok
    assert tw.doctor(tw.open_records(records)).ok
    loader = tw.Loader(tw.from_records(records).shuffle().batch(4), workers=0, return_tensors="np")
    assert tw.doctor(loader).ok
    assert next(iter(loader)).info.step == 0
    assert tw.doctor(packed()).ok
    assert not tw.doctor(ranks([0, 1, 2], [3, 4])).ok


def test_nothing_is_cached_and_nothing_is_consumed(tmp_path, monkeypatch):
    monkeypatch.setenv("THALWEG_CACHE", str(tmp_path / "cache"))
    report = tw.doctor(feed().cache().shuffle().pack(256, overlong="drop").batch(2), tokenizer=Letters())
    assert report.ok
    assert any(finding.check == "steps are equal" for _, finding in report.verdicts)
    assert not (tmp_path / "cache").exists()


def test_a_stream_and_a_mix_can_be_looked_at():
    stream = tw.from_stream(lambda: iter(TALKS), shards=4).map(encoded, remove_columns="all")
    report = tw.doctor(stream.pack(256, overlong="drop", policy="fill").batch(1), tokenizer=Letters())
    assert report.ok, str(report)
    parts = {"a": tw.from_dataset(SAMPLES[:30]), "b": tw.from_dataset(SAMPLES[30:])}
    report = tw.doctor(tw.mix(parts, weights={"a": 2, "b": 1}).shuffle().batch(2))
    assert report.ok
    assert "sources as weighted" in {finding.check for _, finding in report.verdicts}


def test_memory_of_both_forms_is_predicted_from_the_bytes_of_a_sample(records):  # C39 C42
    report = tw.doctor(tw.from_records(records).shuffle().batch(4, pad_to=128))
    found = next(f for _, f in report.verdicts if f.check == "memory predicted")
    sizes = [4 * len(s["input_ids"]) + 8 for s in SAMPLES]
    assert found.numbers["bytes a sample"] == pytest.approx(sum(sizes) / 60, rel=0.25)
    assert found.numbers["streaming, a batch"] == "2.0 kB"
    whole = 60 * found.numbers["bytes a sample"] * 1.2
    assert found.numbers["map-style"] == f"{whole / 1000:.1f} kB"


def test_data_too_large_for_memory_are_a_warning_with_the_remedy_where_another_loader_holds_them():  # C42
    whole = Evidence("data", total=10**8, sample_bytes=1000)
    found = memory_predicted(whole)
    assert found.level == "warning"
    assert "stream it" in found.fix
    whole.own = True  # thalweg maps what it reads
    assert memory_predicted(whole).level == "ok"


def test_a_raw_file_is_encoded_as_its_layout_says(tmp_path):
    file = tmp_path / "chat.jsonl"
    file.write_text("".join(json.dumps(t) + "\n" for t in TALKS))
    report = tw.doctor(file)
    assert report.ok
    assert report.facts["samples"] == 60
    file.write_text("".join(json.dumps({**t, "images": ["a.png"]}) + "\n" for t in TALKS))
    assert tw.doctor(file).ok  # media without placeholders stand at the front


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: tw.doctor("nowhere"), InputError, "nothing is there"),
        (lambda: tw.doctor(object()), ConfigError, "holds no samples"),
        (lambda: tw.doctor(feed(), 0), ConfigError, "at least 1"),
        (lambda: tw.doctor(feed(), model_kind="encoder"), ConfigError, "unknown"),
    ],
)
def test_what_cannot_be_looked_at_says_why(call, error, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=words):
        call()


def test_the_command_exits_with_one_on_an_error_and_zero_else(records, tmp_path):
    good = CliRunner().invoke(cli, ["doctor", str(records), "--html", str(tmp_path / "page.html")])
    assert good.exit_code == 0, good.output
    assert "checks passed" in good.stdout
    assert "<h2>Checks</h2>" in (tmp_path / "page.html").read_text("utf-8")
    bad = CliRunner().invoke(cli, ["doctor", str(records), "--vocab-size", "50", "--json"])
    assert bad.exit_code == 1
    data = json.loads(bad.stdout)
    assert not data["ok"]
    assert {c["check"] for c in data["checks"] if c["level"] == "error"} == {
        "ids inside the embedding table",
        "labels inside the vocabulary",
    }


def test_every_feed_of_a_file_of_settings_is_looked_at(records, tmp_path):
    file = tmp_path / "data.yaml"
    file.write_text(
        f"train:\n  - from_records: {records}\n  - shuffle: {{}}\n  - batch: {{size: 2}}\n"
        f"val:\n  - from_records: {records}\n  - batch: {{size: 2, pad_to: 1024}}\n"
    )
    report = tw.doctor(file)
    assert report.ok
    assert {f.check for g, f in report.verdicts if g.startswith("val") and f.level == "warning"} == {
        "order changes",
        "padding wasted",
    }
    assert [f for g, f in report.verdicts if g.startswith("train") and f.level == "warning"] == []
    assert tw.doctor(f"{file}:train").ok
    command = CliRunner().invoke(cli, ["doctor", f"{file}:val", "val.batch.pad_to=80", "--json"])
    assert command.exit_code == 0, command.output
    assert "padding wasted" not in {f["check"] for f in json.loads(command.stdout)["findings"]}


def test_settings_of_another_trainer_go_to_its_face_and_are_told_from_records(tmp_path, monkeypatch):
    """The face of MindSpeed-MM reads its own words; a JSON object without them is no file of settings."""
    import thalweg.bind.mindspeed as face

    class Settings:
        names = ("train",)

        def feed(self, name):
            return feed().shuffle().batch(2)

    asked = []
    file = tmp_path / "data.json"
    file.write_text(json.dumps({"dataset_param": {"dataset_type": "huggingface"}}))
    monkeypatch.setattr(face, "load_config", lambda path: asked.append(path) or Settings(), raising=False)
    assert tw.doctor(file).ok
    assert asked == [str(file)]
    file.write_text(json.dumps([*TALKS]))
    assert tw.doctor(file).facts["samples"] == 60
    assert asked == [str(file)]
    (tmp_path / "own.json").write_text(json.dumps({"train": [{"from_files": str(file)}, {"batch": {"size": 2}}]}))
    assert "no batch" not in str(tw.doctor(tmp_path / "own.json"))
    assert asked == [str(file)]


def test_feeds_by_name_are_looked_at_together():
    report = tw.doctor({"train": feed(), "val": feed(lambda s: s["labels"].pop())})
    assert report.facts["feeds"] == "train, val"
    assert {g for g, f in report.verdicts if f.level == "error"} == {"val: masks"}


def test_filters_by_sample_and_by_table_choose_what_is_looked_at():
    wanted = sum(len(s["input_ids"]) for s in SAMPLES if len(s["input_ids"]) > 64)
    by_table = feed().cache().filter(lambda length: length > 64, columns="length")
    by_sample = feed().filter(lambda s: len(s["input_ids"]) > 64)
    assert tw.doctor(by_table).facts["tokens looked at"] == wanted
    assert tw.doctor(by_sample).facts["tokens looked at"] == wanted


def test_a_tokenizer_with_more_ids_than_the_embedding_table_has_rows_is_a_warning():
    report = tw.doctor(feed(), tokenizer=Letters(), vocab_size=200)
    found = next(f for _, f in report.verdicts if f.check == "ids inside the embedding table")
    assert (found.level, report.ok) == ("warning", True)
    assert "256 ids" in found.what
    assert "200 rows" in found.what
