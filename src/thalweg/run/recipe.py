"""Pipelines in YAML: names of steps with their arguments, checked strictly.

    pipeline:
      - JsonlReader: {data_folder: raw}
      - LengthFilter: {min_length: 200}
      - LambdaFilter: {filter_function: "my_code:keep"}      # a function of a module
      - JsonlWriter: {output_folder: out}
    executor: {LocalPipelineExecutor: {tasks: 8, workers: 2, logging_dir: logs/a}}

Decides how a name becomes a step. Knows no step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg import run, steps
from thalweg.core.errors import ConfigError
from thalweg.run.executor import PipelineExecutor
from thalweg.store.settings import (
    find_code,
    import_beside,
    is_code,
    one_name,
    parameters_of,
    read_settings,
    refuse_unknown,
)

_TOP = ("pipeline", "executor")
_STEP = "- JsonlReader: {data_folder: raw}"


def load_recipe(path: str) -> PipelineExecutor:
    """Build the executor that a file describes.

    Raises:
        ConfigError: an unknown word, with the nearest right one; a wrong shape; code that is not there.
    """
    data = read_settings(path)
    refuse_unknown(data, _TOP, "unknown word", path)
    for key in _TOP:
        if key not in data:
            raise ConfigError(f"{key!r} is missing", where=path, fix=f"say {key}: ...")
    import_beside(path)
    pipeline = [_build(entry, steps, f"{path}, step {k}") for k, entry in enumerate(data["pipeline"])]
    executor = _build(data["executor"], run, f"{path}, executor", pipeline=pipeline)
    if not isinstance(executor, PipelineExecutor):
        raise ConfigError("the executor is none", where=path, fix="say LocalPipelineExecutor or another executor")
    return executor


def _build(entry: Any, room: Any, where: str, **given: Any) -> Any:
    name, settings = one_name(entry, where, _STEP)
    if settings is not None and not isinstance(settings, Mapping):
        raise ConfigError("a step is a name with its arguments", where=where, fix=f"write {_STEP}")
    if ":" in name:
        return find_code(name, where)
    refuse_unknown([name], room.__all__, "unknown name", where)
    kind = getattr(room, name)
    refuse_unknown(settings or (), parameters_of(kind), f"{name} takes no", where)
    values = {key: _value(value, where) for key, value in (settings or {}).items()}
    return kind(**given, **values)


def _value(value: Any, where: str) -> Any:
    if is_code(value):
        return find_code(value, where)
    if isinstance(value, Mapping) and len(value) == 1 and next(iter(value)) in steps.__all__:
        return _build(value, steps, where)  # a writer inside a filter
    return value
