"""The front of the command line: what is listed, how an error looks, and that a start is light."""

import json
import re
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from thalweg import __version__
from thalweg.cli import COMMANDS, Entry, cli
from thalweg.core.errors import ThalwegError


@pytest.fixture
def failing(monkeypatch):
    """A command `fail` whose error has all parts."""
    module = type(sys)("thalweg_test_fail")
    module.__spec__ = type("Spec", (), {})()

    @click.command()
    @click.option("--json", "as_json", is_flag=True)
    def command(as_json):
        error = ThalwegError("no file matches", where="/data/raw", fix="name a directory that has files")
        error.add_note("while listing")
        raise error

    module.command = command
    monkeypatch.setitem(sys.modules, "thalweg_test_fail", module)
    monkeypatch.setitem(COMMANDS, "fail", Entry("thalweg_test_fail", "Fail."))


@pytest.mark.usefixtures("failing")
def test_help_lists_the_commands_that_exist_and_no_other(monkeypatch):
    monkeypatch.setitem(COMMANDS, "ghost", Entry("thalweg.cli.ghost", "Not in this installation."))
    result = CliRunner().invoke(cli, ["--help"])
    assert result.exit_code == 0
    assert "fail" in result.stdout
    assert "ghost" not in result.stdout
    assert CliRunner().invoke(cli, ["ghost"]).exit_code == 2


def test_every_listed_command_loads_and_takes_json():
    for name in cli.list_commands(click.Context(cli)):
        command = cli.get_command(click.Context(cli), name)
        assert any("--json" in option.opts for option in command.params), name


def test_json_without_a_command_lists_the_commands():
    data = json.loads(CliRunner().invoke(cli, ["--json"]).stdout)
    assert data["version"] == __version__
    assert list(data["commands"]) == cli.list_commands(click.Context(cli))


@pytest.mark.usefixtures("failing")
def test_unknown_command_names_the_nearest():
    result = CliRunner().invoke(cli, ["fial"])
    assert result.exit_code == 2
    assert "Did you mean 'fail'?" in result.stderr


@pytest.mark.usefixtures("failing")
def test_an_error_is_one_block_with_what_where_note_and_what_to_try():
    result = CliRunner().invoke(cli, ["fail"])
    assert result.exit_code == 1
    assert result.stdout == ""
    assert re.sub(r", line \d+", ", line N", result.stderr).splitlines() == [
        "error TW000  no file matches",
        "  where  /data/raw",
        "  note   while listing",
        f"  note   called in {__file__}, line N",
        "  try    name a directory that has files",
    ]


@pytest.mark.usefixtures("failing")
def test_an_error_with_json_is_one_document_on_stdout():
    result = CliRunner().invoke(cli, ["fail", "--json"])
    assert result.exit_code == 1
    assert json.loads(result.stdout)["error"]["fix"] == "name a directory that has files"
    assert result.stderr == ""


@pytest.mark.usefixtures("failing")
def test_json_before_a_command_says_where_it_belongs():
    result = CliRunner().invoke(cli, ["--json", "fail"])
    assert result.exit_code == 2
    assert "after the command" in result.stderr


def test_help_imports_no_heavy_library():
    code = (
        "import sys\n"
        "sys.argv = ['thalweg', '--help']\n"
        "from thalweg.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'numpy', 'pyarrow', 'fsspec', 'rich', 'torch', 'transformers', 'yaml'} & set(sys.modules)\n"
        "sys.exit(','.join(sorted(heavy)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_version_is_the_packages():
    assert CliRunner().invoke(cli, ["--version"]).stdout == f"thalweg {__version__}\n"
