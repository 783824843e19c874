"""Targets of commands: `file.py:name` is imported, never run, and a wrong name is answered with the nearest."""

import sys

import pytest

from thalweg.check.target import load_target, split_target
from thalweg.core.errors import ConfigError, InputError

FILE = """
from neighbour_of_target import VALUE
feed = [VALUE]
def make():
    return "made"
if __name__ == "__main__":
    raise SystemExit("run as a script")
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    (tmp_path / "neighbour_of_target.py").write_text("VALUE = 7\n")
    (tmp_path / "my_data_target.py").write_text(FILE)
    return tmp_path / "my_data_target.py"


def test_a_name_is_found_with_its_neighbours_and_nothing_is_run(file):
    assert load_target(f"{file}:feed") == [7]


def test_a_function_without_arguments_is_called(file):
    assert load_target(f"{file}:make") == "made"


def test_a_wrong_name_names_the_nearest(file):
    with pytest.raises(ConfigError, match="did you mean 'feed'"):
        load_target(f"{file}:fed")


def test_a_missing_file_and_a_file_without_a_name_say_so(file):
    with pytest.raises(InputError, match="no such file"):
        load_target(f"{file.parent / 'none.py'}:feed")
    with pytest.raises(ConfigError, match=":feed"):
        load_target(str(file))


def test_an_error_of_the_file_is_its_own_with_a_note(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "broken_target.py").write_text("1 / 0\n")
    with pytest.raises(ZeroDivisionError) as caught:
        load_target(f"{tmp_path / 'broken_target.py'}:feed")
    assert "broken_target.py" in caught.value.__notes__[0]
    assert "broken_target" not in sys.modules


@pytest.mark.parametrize("path", ["records/web", "s3://bucket/set", "C:/data", "data.yaml", "file.py"])
def test_a_path_is_no_target(path):
    assert split_target(path) is None
