"""What an import costs and shows: nothing heavy, every public name there, downwards only."""

import importlib
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

import thalweg

ROOT = Path(__file__).resolve().parents[2]
HEAVY = [
    "torch",
    "pyarrow",
    "transformers",
    "tokenizers",
    "datasets",
    "fsspec",
    "ray",
    "numpy",
    "rich",
    "yaml",
    "asyncio",
]


def loaded_by(code):
    """Names of heavy libraries that are loaded after the code."""
    code = f"{code}\nimport sys, json\nprint(json.dumps([m for m in {HEAVY!r} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_importing_thalweg_loads_nothing_heavy():
    assert loaded_by("import thalweg") == set()


def test_importing_every_command_loads_no_model_library():
    """A command's module may load numpy; torch, transformers and their like wait for what needs them."""
    from thalweg.cli import COMMANDS

    names = [entry.module for entry in COMMANDS.values() if importlib.util.find_spec(entry.module)]
    heavy = loaded_by("\n".join(f"import {name}" for name in names))
    assert heavy & {"torch", "transformers", "tokenizers", "datasets", "ray"} == set()


def test_core_and_plan_need_numpy_alone():
    names = [
        f"thalweg.{p.relative_to(ROOT / 'src' / 'thalweg').with_suffix('').as_posix().replace('/', '.')}"
        for room in ("core", "plan")
        for p in sorted((ROOT / "src" / "thalweg" / room).glob("*.py"))
        if p.stem != "__init__"
    ]
    assert loaded_by("\n".join(f"import {name}" for name in names)) <= {"numpy"}


@pytest.mark.parametrize("name", thalweg.__all__)
def test_every_public_name_is_there_and_says_what_it_is(name):
    value = getattr(thalweg, name)
    if not name.startswith("__") and not inspect.ismodule(value):
        assert inspect.getdoc(value), name
    assert name in dir(thalweg)


def packages():
    folders = sorted({p.parent for p in (ROOT / "src" / "thalweg").rglob("__init__.py")})
    return [".".join(("thalweg", *f.relative_to(ROOT / "src" / "thalweg").parts)) for f in folders]


@pytest.mark.parametrize("package", packages())
def test_every_name_that_a_package_offers_is_there_with_a_docstring(package):
    module = importlib.import_module(package)
    for name in getattr(module, "__all__", []):
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value), f"{package}.{name}"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'from_record'"):
        _ = thalweg.from_record


def test_imports_go_downwards_only():
    """The contract of ARCHITECTURE.md, as lint-imports reads it from pyproject.toml."""
    code = "from importlinter.cli import lint_imports_command as c; c(['--no-cache'])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_new_folder_turns_the_import_contract_red(tmp_path):
    """exhaustive = true: a room that ARCHITECTURE.md does not name is refused."""
    package = tmp_path / "src" / "thalweg"
    for room in (
        "core",
        "plan",
        "work",
        "store",
        "encode",
        "steps",
        "run",
        "feed",
        "bind",
        "check",
        "cli",
        "testing",
        "utils",
    ):
        (package / room).mkdir(parents=True)
        (package / room / "__init__.py").touch()
    (package / "__init__.py").touch()
    text = (ROOT / "pyproject.toml").read_text()
    begin = text.index("[tool.importlinter]")
    end = text.index("[[tool.importlinter.contracts]]", text.index("[[tool.importlinter.contracts]]") + 1)
    (tmp_path / "pyproject.toml").write_text(text[begin:end])
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'src')!r})\n"
    code += "from importlinter.cli import lint_imports_command as c; c(['--no-cache'])"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "utils" in done.stdout + done.stderr
