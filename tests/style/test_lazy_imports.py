"""Imports made while running go downwards too: a name in a string must not climb where a statement may not."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "thalweg"
# From the top of the house down; rooms of one set don't know each other. The same order stands in pyproject.toml.
FLOORS = [
    {"testing"},
    {"cli"},
    {"check"},
    {"bind"},
    {"run", "feed"},
    {"steps"},
    {"encode"},
    {"store"},
    {"work"},
    {"plan"},
    {"core"},
]
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}


def targets(path):
    """Modules of ours that a file loads by name, as far as the name is written there."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        called = (
            isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "import_module"
        )
        if called and node.args:
            first = node.args[0]
            first = first.values[0] if isinstance(first, ast.JoinedStr) and first.values else first
            if isinstance(first, ast.Constant) and str(first.value).startswith("thalweg."):
                yield str(first.value)


def climbs(here, target):
    """True where loading target from a file in room `here` goes up, or across to a room that must stay unknown."""
    there = target.split(".")[1]
    return there != here and (FLOOR[there] < FLOOR[here] or (FLOOR[there] == FLOOR[here]))


FILES = sorted(p for room in FLOOR for p in (SOURCE / room).rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(SOURCE).as_posix())
def test_names_loaded_while_running_stay_on_the_way_down(path):
    here = path.relative_to(SOURCE).parts[0]
    assert [t for t in targets(path) if climbs(here, t) or (here == "feed" and t.startswith("thalweg.steps"))] == []


def test_a_climb_is_seen(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text('from importlib import import_module\nimport_module("thalweg.cli.run")\n')
    assert [climbs("feed", t) for t in targets(bad)] == [True]
    assert climbs("feed", "thalweg.run.local")
    assert not climbs("feed", "thalweg.store.records")
