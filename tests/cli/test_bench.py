"""`thalweg bench`: lists, runs, and says clearly where it cannot."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from thalweg.cli import bench
from thalweg.core.errors import ConfigError

HERE = Path(__file__).resolve().parents[2] / "benchmarks"

TINY = '''"""Counts to {n}."""
import json, sys
assert sys.argv[1:] == {words!r}, sys.argv
print(json.dumps({{"benchmark": "{n}"}}) if "--json" in sys.argv else "a table of {n}")
sys.exit({code})
'''


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    (folder / "harness.py").touch()
    monkeypatch.chdir(tmp_path)

    def add(name, words=(), code=0):
        (folder / f"bench_{name}.py").write_text(TINY.format(n=name, words=list(words), code=code))

    return add


def invoke(*words):
    return CliRunner().invoke(bench.command, words)


def test_list_names_each_benchmark_with_its_first_line(checkout):
    checkout("one"), checkout("two")
    done = invoke("--list", "--json")
    assert [(e["name"], e["about"]) for e in json.loads(done.output)] == [
        ("one", "Counts to one."),
        ("two", "Counts to two."),
    ]
    assert "two  Counts to two." in invoke("--list").output


def test_named_benchmarks_run_with_the_words_given(checkout):
    checkout("one", words=["--smoke", "--rounds", "2", "--only", "x", "--json"])
    checkout("two", code=9)
    done = invoke("one", "--smoke", "--rounds", "2", "--only", "x", "--json")
    assert done.exit_code == 0
    assert json.loads(done.output) == [{"benchmark": "one"}]


def test_one_that_fails_does_not_stop_the_others_and_fails_the_command(checkout):
    checkout("one", words=["--json"], code=3), checkout("two", words=["--json"])
    done = invoke("--json")
    assert done.exit_code == 1
    assert "failed: one" in done.output
    assert '"two"' in done.output


def test_an_unknown_name_gets_the_nearest(checkout):
    checkout("loader")
    with pytest.raises(ConfigError, match="did you mean 'loader'"):
        bench.command.main(["loder"], standalone_mode=False)


def test_without_a_checkout_it_says_where_benchmarks_are(tmp_path):
    with pytest.raises(ConfigError, match=r"part of the source tree.*clone the repository"):
        bench.find_benchmarks(tmp_path)


def test_every_benchmark_of_this_checkout_says_what_it_measures():
    there = bench.modules(bench.find_benchmarks(HERE))
    assert "first" in there
    assert all(about.endswith((".", ":", "?")) for _, about in there.values())
