"""Pipelines in files: a Python script that runs executors, or `file.py:name` that names one.

Decides how a file is run and which executors are meant. Knows no command line.
"""

from __future__ import annotations

import runpy
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thalweg.core.errors import ConfigError, InputError, nearest
from thalweg.core.stats import PipelineStats
from thalweg.run.executor import LAUNCH, PipelineExecutor, merge_stats
from thalweg.store.settings import import_beside

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from thalweg.run.plan import Plan


@contextmanager
def launching(
    *, describe: Callable[[Any, Plan], None] | None = None, quiet: bool = False, **overrides: Any
) -> Generator[None]:
    """Apply settings to every executor that runs inside the block."""
    before = (LAUNCH.describe, LAUNCH.overrides, LAUNCH.quiet, LAUNCH.executors)
    LAUNCH.describe, LAUNCH.quiet, LAUNCH.executors = describe, quiet, []
    LAUNCH.overrides = {name: value for name, value in overrides.items() if value is not None}
    try:
        yield
    finally:
        LAUNCH.describe, LAUNCH.overrides, LAUNCH.quiet, LAUNCH.executors = before


def run_target(target: str) -> list[tuple[PipelineExecutor, PipelineStats]]:
    """Run what a target names: a script with all its executors, or one executor of a file.

    Args:
        target: "FILE.yaml"; "FILE.py", run as a script (executors that it defines and does not run are run after
            it); or "FILE.py:name", loaded as a module.

    Returns: each executor that ran, with the statistics of all its ranks.

    Raises:
        InputError: there is no such file.
        ConfigError: the file has no executor, or none of that name.
    """
    path, _, name = target.partition(":") if ".py:" in target else (target, "", "")
    if Path(path).is_file() and Path(path).suffix not in {".py", ".yaml", ".yml"}:
        raise InputError("this is no Python file, nor YAML", where=path, fix="give FILE.py, FILE.py:name or FILE.yaml")
    if Path(path).is_dir():
        raise InputError(
            "a directory is no pipeline", where=path, fix="give a Python file with a pipeline, or file.py:name"
        )
    if not Path(path).is_file():
        raise InputError("there is no such file", where=path, fix="give a Python file with a pipeline, or file.py:name")
    with _modules_beside(path):
        return _run(path, name)


@contextmanager
def _modules_beside(path: str) -> Generator[None]:
    """Let a file import what lies beside it while it is loaded and run: workers that start meanwhile do so too."""
    before = sys.path[:]
    import_beside(path)
    try:
        yield
    finally:
        sys.path[:] = before


def _run(path: str, name: str) -> list[tuple[PipelineExecutor, PipelineStats]]:
    if path.endswith((".yaml", ".yml")):
        from thalweg.run.recipe import load_recipe  # noqa: PLC0415  (only where a file asks for it)

        made = load_recipe(path)
        return [(made, made.run())]
    if name:
        found = load(path, name)
        return [(found, found.run())]
    values = runpy.run_path(path, run_name="__main__")
    for executor in _unrun(values):
        executor.run()
    if not LAUNCH.executors:
        raise ConfigError(
            "the file runs no executor and defines none",
            where=path,
            fix="build a LocalPipelineExecutor at the top level of the file",
        )
    ran = list(LAUNCH.executors)
    if LAUNCH.describe is not None:
        return [(e, PipelineStats()) for e in ran]
    return [(e, merge_stats(e.home)) for e in ran]


def load(path: str, name: str) -> PipelineExecutor:
    """Load one executor of a file, without running the file as a script.

    Raises:
        ConfigError: there is none of that name.
    """
    values = runpy.run_path(path, run_name="thalweg_pipeline")
    found = values.get(name)
    if not isinstance(found, PipelineExecutor):
        known = [k for k, v in values.items() if isinstance(v, PipelineExecutor)]
        raise ConfigError(f"{name!r} is no executor", where=path, fix=nearest(name, known) if known else None)
    return found


def _unrun(values: dict[str, Any]) -> list[PipelineExecutor]:
    """Executors at a script's top level that nothing has run, those that others depend on left out."""
    defined = [v for v in values.values() if isinstance(v, PipelineExecutor) and v not in LAUNCH.executors]
    inner = {id(v.depends) for v in defined if v.depends is not None}
    return [v for v in dict.fromkeys(defined) if id(v) not in inner]
