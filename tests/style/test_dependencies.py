"""Dependencies: each has a lower bound and no upper one, and docs/dependencies.md says why it is there."""

import re
import tomllib
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
# Checkers and test tools are not described one by one.
RUNTIME = PROJECT["dependencies"] + [need for extra, needs in EXTRAS.items() if extra != "dev" for need in needs]


def test_every_dependency_has_a_lower_bound_and_no_upper_one():
    own = [need for need in [*PROJECT["dependencies"], *chain(*EXTRAS.values())] if not need.startswith("thalweg[")]
    assert [need for need in own if not re.fullmatch(r"[A-Za-z0-9._-]+(\[[a-z0-9,]+\])?>=[0-9.]+(; .+)?", need)] == []


def test_every_dependency_is_explained():
    page = (ROOT / "docs" / "dependencies.md").read_text().lower()
    names = {re.split(r"[\[><=;]", need)[0].lower() for need in RUNTIME} - {"thalweg"}
    assert {name for name in names if name not in page} == set()
    assert {extra for extra in EXTRAS if f"`{extra}`" not in page} == set()
