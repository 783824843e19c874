"""The map from promises to tests finds what it should, and no test names a line that is not there."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


def load_show():
    spec = importlib.util.spec_from_file_location("show", HERE / "show.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["show"] = module
    spec.loader.exec_module(module)
    return module


show = load_show()


def test_every_line_of_every_list_is_read_once():
    lines = show.read_lists()
    by_list = {letter: [int(n[1:]) for n in lines if n[0] == letter] for letter in "ABCDE"}
    assert {letter: len(numbers) for letter, numbers in by_list.items()} == {
        "A": 57,
        "B": 47,
        "C": 50,
        "D": 45,
        "E": 59,
    }
    assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in by_list.values())
    cases = [n for n in lines if n[0] == "K"]
    assert len(cases) == (HERE / "lists" / "cases.md").read_text().count("\n### K")
    assert {"K01", "K30", "K49"} <= set(cases)
    assert all(line.text for line in lines.values())


def test_a_row_with_several_lines_is_cut_and_references_are_not_lines():
    lines = show.read_lists()
    assert lines["B5"].text == ".image_max_pixels"
    assert lines["B6"].text.startswith(".image_min_pixels: area clamp")
    assert "see A36" in lines["A44"].text
    assert lines["C41"].text.startswith("2: imbalanced ranks")


SOURCE = """
# A1 above the test
# more words, A2 not first
def test_above():
    pass

@decorated
def test_inside():
    x = 1  # A3, K30: trailing
    # A4 A5
    text = "# A6"

# C1
class TestAll:
    def test_one(self):
        pass
    # C2
    def test_two(self):
        pass

# E1
helper = 1

# see A7
def test_none():
    pass

# A99
def test_unknown():
    pass
"""


@pytest.fixture
def collected(tmp_path):
    (tmp_path / "plan").mkdir()
    (tmp_path / "plan" / "test_it.py").write_text(SOURCE)
    return show.collect(tmp_path, HERE / "lists")


def test_comments_above_inside_and_behind_a_test_name_lines_and_strings_do_not(collected):
    lines, _ = collected
    named = {name: line.tests for name, line in lines.items() if line.tests}
    inside, both = (
        ["plan/test_it.py::test_inside"],
        ["plan/test_it.py::TestAll::test_one", "plan/test_it.py::TestAll::test_two"],
    )
    assert named == {
        "A1": ["plan/test_it.py::test_above"],
        "A3": inside,
        "A4": inside,
        "A5": inside,
        "K30": inside,
        "C1": both,
        "C2": both[1:],
    }


def test_unknown_lines_and_comments_beside_no_test_are_told(collected):
    _, wrong = collected
    assert [text.partition(": ")[2] for text in wrong] == ["E1 stands beside no test", "there is no line A99"]


def test_the_tests_of_this_repository_name_only_lines_that_exist():
    _, wrong = show.collect()
    assert wrong == []


def test_the_command_prints_each_line_and_exits_0():
    done = subprocess.run([sys.executable, HERE / "show.py", "--json"], capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    assert report["of"] == len(report["lines"]) == len(show.read_lists())
    words = [sys.executable, HERE / "show.py", "K", "--missing"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "lines are named by a test" in done.stdout
    assert "\nA1" not in done.stdout
