"""The errors that a newcomer meets first: each says what, where and what to try, and ends with status 1."""

import json
import re

import numpy as np
import pytest
from click.testing import CliRunner

import thalweg as tw
from thalweg.cli import cli
from thalweg.core.errors import ConfigError, InputError, RecordsError
from thalweg.store.records.parts import declare_parts

PIPELINE = """
from thalweg.run import LocalPipelineExecutor
from thalweg.steps import JsonlReader, JsonlWriter

executor = LocalPipelineExecutor([JsonlReader({source!r}), JsonlWriter({out!r})], workers=1, logging_dir={logs!r})
"""


@pytest.fixture
def records(tmp_path):
    with tw.create_records(tmp_path / "records") as writer:
        for n in range(40):
            writer.write({"input_ids": np.arange(1, 20, dtype=np.int32)}, id=str(n))
    return tmp_path / "records"


def invoke(*args):
    return CliRunner().invoke(cli, list(map(str, args)))


@pytest.mark.parametrize(("folder", "words"), [("nowhere", "does not exist"), ("empty", "no files")])
def test_a_missing_or_empty_input_directory_is_named(tmp_path, folder, words):
    (tmp_path / "empty").mkdir()
    file = tmp_path / "pipeline.py"
    places = {name: str(tmp_path / name) for name in ("out", "logs")}
    file.write_text(PIPELINE.format(source=str(tmp_path / folder), **places))
    result = invoke("run", file)
    assert result.exit_code == 1
    assert words in result.stderr
    assert str(tmp_path / folder) in result.stderr
    assert "  try    " in result.stderr
    told = json.loads(invoke("run", file, "--json").stdout)["error"]
    assert told["code"] == "TW200"
    assert told["where"] == str(tmp_path / folder)
    assert not (tmp_path / "logs" / "completions").exists()


@pytest.mark.parametrize("folder", ["nowhere", "empty"])
def test_missing_or_empty_records_are_named(tmp_path, folder):
    (tmp_path / "empty").mkdir()
    with pytest.raises(RecordsError, match="there is no record set") as caught:
        tw.from_records(tmp_path / folder)
    assert caught.value.where == str(tmp_path / folder)
    assert caught.value.fix
    result = invoke("inspect", tmp_path / folder)
    assert result.exit_code == 1
    assert str(tmp_path / folder) in result.stderr


def test_what_lies_where_a_record_set_is_expected_is_told_with_what_to_type(tmp_path, records):
    (tmp_path / "raw").mkdir()
    for k in range(3):
        (tmp_path / "raw" / f"{k}.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "raw" / ".hidden").touch()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.odd").touch()

    def told(path, command="verify"):
        result = invoke(command, path)
        assert result.exit_code == 1
        assert str(path) in result.stderr
        return result.stderr

    said = told(tmp_path / "raw")
    assert "data in the format jsonl" in said
    for words in (f"thalweg inspect {tmp_path / 'raw' / '0.jsonl'}", "tw.from_files(", f"thalweg convert {tmp_path}"):
        assert words in said
    assert "tw.from_files(" in told(tmp_path / "raw" / "1.jsonl")
    for command in ("verify", "inspect"):
        assert "files such as notes.odd" in told(tmp_path / "other", command)
    assert str(records) in told(records.parent)

    assert invoke("convert", tmp_path / "raw", tmp_path / "made", "--to", "jsonl").exit_code == 0
    assert "data in the format jsonl" in told(tmp_path / "made")
    (tmp_path / "made" / "part-00001.jsonl").unlink()
    said = told(tmp_path / "made")
    assert "a conversion that is not finished: 2 of 3 pieces are there" in said
    assert "run the same `thalweg convert` again" in said
    declare_parts(tmp_path / "parts", 2)
    for command in ("verify", "inspect"):
        said = told(tmp_path / "parts", command)
        assert "unfinished: 2 of 2 parts are missing" in said
        assert "thalweg convert" in said


def test_an_unknown_column_is_answered_with_the_nearest(records):
    with pytest.raises(ConfigError, match="did you mean 'input_ids'"):
        tw.from_records(records, columns=["input_id"])
    with pytest.raises(RecordsError, match="did you mean 'input_ids'"):
        tw.open_records(records, columns=["input_id"])
    with pytest.raises(ConfigError, match="no column 'text'"):
        tw.from_records(records).map(dict, input_columns=["text"])


@pytest.mark.parametrize("capacity", [0, -1, 2.5, "1k"])
def test_a_capacity_below_one_or_no_number_is_refused_where_it_is_written(records, capacity):
    with pytest.raises(ConfigError, match="capacity must be an integer of at least 1"):
        tw.from_records(records).pack(capacity)


def test_a_place_outside_its_world_is_refused(records, monkeypatch):
    feed = tw.from_records(records).pack(64).batch(2)
    with pytest.raises(ConfigError, match="dp_rank 2 does not fit dp_size 2"):
        tw.Topology(rank=2, world=2)
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ConfigError, match="dp_rank 5 does not fit dp_size 4"):
        tw.Loader(feed)
    monkeypatch.delenv("WORLD_SIZE")
    with pytest.raises(ConfigError, match="only one of RANK and WORLD_SIZE"):
        tw.Loader(feed)


def test_a_global_batch_that_the_world_does_not_divide_names_one_that_it_does(records):
    feed = tw.from_records(records).pack(64).batch(2)
    with pytest.raises(ConfigError, match="a multiple of 6") as caught:
        tw.Loader(feed, topology=tw.Topology(rank=0, world=3), global_batch_size=8)
    assert "3 ranks x 2 rows" in caught.value.what


def test_a_missing_extra_names_its_pip_command(monkeypatch):
    from thalweg.core import extras

    def absent(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(extras, "import_module", absent)
    result = invoke("demo", "--smoke")
    assert result.exit_code == 1
    assert "thalweg demo needs the package 'torch'" in result.stderr
    assert 'pip install "thalweg[torch]"' in result.stderr


def test_input_errors_are_value_errors_too():
    assert issubclass(InputError, ValueError)


FEED = "import thalweg as tw\nfeed = tw.from_records({records!r}).batch(2)\n"


@pytest.fixture
def feed_file(tmp_path, records):
    (tmp_path / "feeds.py").write_text(FEED.format(records=str(records)))
    return f"{tmp_path / 'feeds.py'}:feed"


@pytest.mark.parametrize("words", [("--world", "0"), ("--world", "2,-1"), ("--accumulation", "0")])
def test_no_ranks_and_no_micro_batches_are_refused_by_name(feed_file, words):
    result = invoke("simulate", feed_file, *words)
    assert result.exit_code == 1
    assert f"{words[0][2:]} must be at least 1" in result.stderr
    assert "  try    " in result.stderr


@pytest.mark.parametrize("command", ["inspect", "why"])
def test_a_rank_outside_the_world_is_refused_in_the_words_of_the_options(feed_file, command):
    for rank, world, words in ((9, 8, "ranks are 0 to 7"), (1, 1, "0 alone, unless --world"), (0, 0, "1 or more")):
        result = invoke(command, feed_file, "--step", 0, "--rank", rank, "--world", world)
        assert result.exit_code == 1
        assert f"--world {world}" in result.stderr
        assert words in result.stderr
        assert "dp_rank" not in result.stderr


@pytest.mark.parametrize("name", ["simulate", "inspect", "doctor", "profile"])
def test_a_page_that_cannot_be_written_is_refused_before_the_work(tmp_path, name):
    page = tmp_path / "nowhere" / "page.html"
    result = invoke(name, tmp_path / "not_even_there.py:feed", "--html", page)  # the work would fail first
    assert result.exit_code == 1
    assert f"there is no folder {page.parent}" in result.stderr
    assert f"--html {page}" in result.stderr
    assert "mkdir" in result.stderr


def test_more_ranks_than_rows_are_said_with_what_would_fit(feed_file):
    said = invoke("simulate", feed_file, "--world", "1,64").output
    assert "1 rank, 760 to 760 tokens" in said
    assert "64 ranks: no step fits: the epoch has 40 rows, and a step takes 128; --world 20 or fewer" in said
    assert "1 ranks" not in said
    too_many = invoke("simulate", feed_file, "--accumulation", "50").output
    assert "a smaller batch or --accumulation would have one" in too_many


def test_records_whose_labels_are_fewer_than_their_tokens_are_shown_and_said(tmp_path):
    with tw.create_records(tmp_path / "short") as writer:
        writer.write({"input_ids": np.arange(1, 6), "labels": np.arange(1, 4)}, id="a")
    result = invoke("inspect", tmp_path / "short", "-n", "1")
    assert result.exit_code == 0
    assert "3 labels for 5 tokens" in " ".join(result.output.split())
    assert "⟨5⟩" in result.output


@pytest.mark.parametrize("command", [["doctor"], ["profile"], ["inspect"]])
def test_an_error_of_the_users_own_file_is_one_document_where_json_is_asked_for(tmp_path, command):
    file = tmp_path / "my_feed_that_fails.py"
    file.write_text("feed = [][1]\n")
    done = invoke(*command, f"{file}:feed", "--json")
    assert (done.exit_code, "IndexError" in done.stderr) == (1, True)
    told = json.loads(done.stdout)["error"]
    assert told["what"] == "IndexError: list index out of range"
    assert str(file) in told["notes"][0]
    assert invoke(*command, f"{file}:feed").stdout == ""


@pytest.mark.parametrize("command", ["inspect", "doctor", "simulate", "run", "explain"])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = (1\n", "was never closed"),
        ("x = 1\ny = x / 0\n", "division by zero"),
        ("import nowhere_at_all\n", "No module"),
    ],
)
def test_a_users_file_that_fails_shows_its_own_lines_and_none_of_ours(tmp_path, command, text, words):
    file = tmp_path / "data.py"
    file.write_text(text)
    target = file if command in {"run", "explain"} else f"{file}:feed"
    result = invoke(command, target)
    assert result.exit_code == 1
    assert words in result.stderr
    assert str(file) in result.stderr
    assert not re.search(r"click|src/thalweg|runpy|importlib", result.stderr), result.stderr
    assert words in json.loads(invoke(command, target, "--json").stdout)["error"]["what"]


def test_the_line_of_a_users_file_that_says_something_wrong_is_named(tmp_path, records):
    file = tmp_path / "data.py"
    file.write_text(f"import thalweg as tw\n\nfeed = tw.from_records({str(records)!r}).batch(2).shuffle()\n")
    result = invoke("inspect", f"{file}:feed")
    assert "shuffle after batch" in result.stderr
    assert f"called in {file}, line 3" in result.stderr


def test_what_the_system_refuses_is_a_sentence(records):
    result = invoke("convert", records, "/proc/nowhere/set")
    assert result.exit_code == 1
    assert result.stderr.startswith("error TW200"), result.stderr
    assert "  where  /proc/nowhere" in result.stderr
    assert "  try    " in result.stderr


@pytest.mark.parametrize(("command", "more"), [("simulate", []), ("why", ["--step", "0"])])
def test_data_alone_or_nothing_in_the_place_of_a_feed_is_named_for_what_it_is(tmp_path, records, command, more):
    assert "data alone has no order to ask" in invoke(command, records, *more).stderr
    assert "nothing is there" in invoke(command, tmp_path / "nowhere", *more).stderr


def test_a_name_that_is_missing_is_answered_with_names_of_the_file_itself(tmp_path):
    file = tmp_path / "data.py"
    file.write_text("import os\nfrom json import loads\nfrom pathlib import Path\nfeed = [1]\ndef made(): ...\n")
    assert "  try    one of 'feed', 'made'\n" in invoke("inspect", f"{file}:").stderr


@pytest.mark.parametrize("args", [["inspect"], ["why", "x", "--rank", "y"], ["stats", "x", "--no-such"], ["insepct"]])
def test_wrong_arguments_are_one_document_where_json_is_asked_for(args):
    done = invoke(*args, "--json")
    assert done.exit_code == 2
    assert json.loads(done.stdout)["error"]["what"] in " ".join(done.stderr.split())


def test_a_directory_is_no_pipeline(tmp_path):
    assert "a directory is no pipeline" in invoke("run", tmp_path).stderr


def test_a_directory_of_runs_stands_for_them_all_and_logs_ask_for_one(tmp_path):
    (tmp_path / "raw.jsonl").write_text('{"text": "one"}\n')
    for name in ("a", "b"):
        file = tmp_path / f"{name}.py"
        places = {"out": str(tmp_path / "out" / name), "logs": str(tmp_path / "logs" / name)}
        file.write_text(PIPELINE.format(source=str(tmp_path / "raw.jsonl"), **places))
        assert invoke("run", file, "--quiet").exit_code == 0
    logs = tmp_path / "logs"
    told = json.loads(invoke("stats", logs, "--json").stdout)
    assert [stats["steps"][0]["tally"]["made"] for stats in told.values()] == [1, 1]
    assert list(told) == [str(logs / "a"), str(logs / "b")]
    assert f"thalweg logs {logs / 'a'}" in invoke("logs", logs).stderr
    followed = json.loads(invoke("status", logs, "--follow", "--json").stdout)
    assert [run["complete"] for run in followed] == [1, 1]


def test_an_epoch_without_a_row_is_said_to_be_one(tmp_path):
    path = tmp_path / "data.py"
    path.write_text("import thalweg as tw\nfeed = tw.from_dataset([{'input_ids': [1]}]).take(0).batch(2)\n")
    assert invoke("simulate", f"{path}:feed").output.endswith("1 rank: no step fits: the epoch has no row\n")


@pytest.mark.parametrize(
    "words", [("why", "--step", "-1"), ("why", "--step", "0", "--seed", "-1"), ("simulate", "--seed", "-1")]
)
def test_steps_and_seeds_below_0_are_refused(feed_file, words):
    command, *options = words
    result = invoke(command, feed_file, *options)
    assert result.exit_code == 2
    assert "-1" in result.stderr
