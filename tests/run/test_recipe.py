"""Pipelines in YAML: the same run as in Python, and unknown words answered with the nearest right one."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from thalweg.cli import cli
from thalweg.core.errors import ConfigError, RunError
from thalweg.run import LocalPipelineExecutor
from thalweg.run.recipe import load_recipe
from thalweg.steps import JsonlReader, JsonlWriter

GOOD = """
pipeline:
  - JsonlReader: {data_folder: IN}
  - LambdaFilter: {filter_function: "my_rules:even", on_error: skip}
  - LengthFilter: {min_length: 3, exclusion_writer: {JsonlWriter: {output_folder: OUT/short}}}
  - JsonlWriter: {output_folder: OUT/kept, compression: null}
executor: {LocalPipelineExecutor: {tasks: 3, workers: 1, logging_dir: OUT/log}}
"""


@pytest.fixture
def recipe(tmp_path, corpus):
    (tmp_path / "my_rules.py").write_text("def even(doc):\n    return doc.metadata['n'] % 2 == 0\n")

    def write(text):
        path = tmp_path / "recipe.yaml"
        path.write_text(text.replace("IN", str(corpus)).replace("OUT", str(tmp_path)))
        return str(path)

    return write


def test_a_file_runs_is_explained_and_is_watched_by_the_commands(recipe, tmp_path):
    path = recipe(GOOD)
    told = json.loads(CliRunner().invoke(cli, ["explain", path, "--json"]).stdout)["runs"][0]
    assert (told["tasks"], told["to_run"], told["inputs"]["0:JsonlReader"]["units"]) == (3, 3, 8)
    assert not (tmp_path / "kept").exists()
    done = json.loads(CliRunner().invoke(cli, ["run", path, "--json"]).stdout)["runs"][0]
    assert done["stats"]["steps"][1]["tally"]["dropped"] == {"filtered": 200}
    rows = [json.loads(line) for p in (tmp_path / "kept").iterdir() for line in p.read_text().splitlines()]
    assert len(rows) == 200
    # D44 D45: what a rerun would do, how far a run is, what its ranks logged
    told = json.loads(CliRunner().invoke(cli, ["explain", path, "--json"]).stdout)["runs"][0]
    assert (told["complete"], told["to_run"], told["refused"]) == (3, 0, [])
    (state,) = json.loads(CliRunner().invoke(cli, ["status", str(tmp_path / "log"), "--json"]).stdout)
    assert (state["complete"], state["documents"], state["bytes"] == state["size"]) == (3, 400, True)
    table = CliRunner().invoke(cli, ["stats", str(tmp_path / "log")])
    assert table.exit_code == 0
    assert "filtered: 200" in table.stdout
    logs = json.loads(CliRunner().invoke(cli, ["logs", str(tmp_path / "log"), "--rank", "1", "--json"]).stdout)
    assert "rank 1 is complete" in logs["1"]
    assert CliRunner().invoke(cli, ["logs", str(tmp_path / "log"), "--failed"]).stdout == "no rank has failed\n"


@pytest.mark.parametrize("target", ["recipe.yaml", "pipeline.py", "pipeline.py:executor"])
def test_a_module_beside_the_file_is_there_in_worker_processes_too(tmp_path, corpus, target):
    (tmp_path / "rules_beside.py").write_text("def even(doc):\n    return doc.metadata['n'] % 2 == 0\n")
    text = GOOD.replace("my_rules", "rules_beside").replace("workers: 1", "workers: 2")
    (tmp_path / "recipe.yaml").write_text(text.replace("IN", str(corpus)).replace("OUT", str(tmp_path)))
    (tmp_path / "pipeline.py").write_text(
        "from rules_beside import even\n"
        "from thalweg.run import LocalPipelineExecutor\n"
        "from thalweg.steps import JsonlReader, JsonlWriter, LambdaFilter\n"
        f"steps = [JsonlReader({str(corpus)!r}), LambdaFilter(even), JsonlWriter({str(tmp_path / 'kept')!r})]\n"
        f"executor = LocalPipelineExecutor(steps, tasks=2, workers=2, logging_dir={str(tmp_path / 'log')!r})\n"
    )
    command = [sys.executable, "-m", "thalweg.cli", "run", str(tmp_path / target), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["runs"][0]["stats"]["steps"][1]["tally"]["dropped"] == {"filtered": 200}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("LengthFilter", "LenghtFilter"), "unknown name 'LenghtFilter'.*did you mean 'LengthFilter'"),
        (("min_length", "min_lenght"), "takes no 'min_lenght'.*did you mean 'min_length'"),
        (("executor:", "executer:"), "unknown word 'executer'.*did you mean 'executor'"),
        (("my_rules:even", "my_rules:evn"), "my_rules has no 'evn'.*did you mean 'even'"),
        (("tasks: 3", "task: 3"), "takes no 'task'.*did you mean 'tasks'"),
        (("{min_length: 3,", "[{min_length: 3},"), "not YAML"),
    ],
)
def test_an_unknown_word_is_named_with_the_nearest_right_one(recipe, change, message):
    with pytest.raises(ConfigError, match=message):
        load_recipe(recipe(GOOD.replace(*change)))


# D44
def test_one_directory_stands_for_the_runs_below_it_and_following_ends_when_all_ranks_have_ended(tmp_path, corpus):
    def breaks(data, rank, world_size):
        if rank == 1:
            raise ValueError("never")
        yield from data

    good = [JsonlReader(str(corpus)), JsonlWriter(str(tmp_path / "out"))]
    LocalPipelineExecutor(good, 2, 1, str(tmp_path / "logs/b/good")).run()
    with pytest.raises(RunError):
        LocalPipelineExecutor([JsonlReader(str(corpus)), breaks], 2, 1, str(tmp_path / "logs/a")).run()
    said = CliRunner().invoke(cli, ["status", str(tmp_path / "logs"), "--follow", "--json"])
    assert said.exit_code == 1
    states = json.loads(said.stdout)
    assert [(s["path"][len(str(tmp_path)) :], s["complete"], s["failed"]) for s in states] == [
        ("/logs/a", 1, [1]),
        ("/logs/b/good", 2, []),
    ]
    assert CliRunner().invoke(cli, ["status", str(tmp_path / "logs/b"), "--follow"]).exit_code == 0
    said = CliRunner().invoke(cli, ["status", str(tmp_path / "logs")]).stdout.splitlines()
    assert f"failed: 1 (see thalweg logs {tmp_path}/logs/a --failed)" in said[0]
    assert "thalweg logs" not in said[1]


def test_one_rank_is_said_as_one(recipe, tmp_path):
    path = recipe(GOOD.replace("tasks: 3", "tasks: 1"))
    said = [CliRunner().invoke(cli, words).output for words in (["explain", path], ["run", path])]
    said += [CliRunner().invoke(cli, [name, str(tmp_path / "log")]).output for name in ("stats", "status")]
    assert "1 task, 1 worker" in said[0]
    assert "1 of 1 rank complete" in said[1]
    assert f"{tmp_path}/log: 1 rank\n" in said[2]
    assert "1/1 rank, 400 documents" in said[3]
    assert not [text for text in said if "1 ranks" in text or "1 tasks" in text]


# D44
def test_logs_of_failed_ranks_are_those_of_ranks_that_failed_and_of_no_other_missing_one(tmp_path, corpus):
    def breaks(data, rank, world_size):
        if rank == 1:
            raise ValueError("never")
        yield from data

    log = tmp_path / "log"
    with pytest.raises(RunError):
        LocalPipelineExecutor([JsonlReader(str(corpus)), breaks], 3, 1, str(log), local_tasks=2).run()
    (log / "logs/task_00002.log").write_text("INFO thalweg.run: rank 2 of 3 begins\n")  # and was killed
    shown = json.loads(CliRunner().invoke(cli, ["logs", str(log), "--failed", "--json"]).stdout)
    assert [*shown] == ["1"]
    assert "ValueError: never" in shown["1"]
    every = json.loads(CliRunner().invoke(cli, ["logs", str(log), "--json"]).stdout)
    assert [*every] == ["0", "1", "2"]
