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

import inspect
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from thalweg import run, steps
from thalweg.core.errors import ConfigError, nearest
from thalweg.run.executor import PipelineExecutor

_TOP = ("pipeline", "executor")


def load_recipe(path: str) -> PipelineExecutor:
    """Build the executor that a file describes.

    Raises:
        ConfigError: an unknown word, with the nearest right one; a wrong shape; code that is not there.
    """
    with Path(path).open(encoding="utf-8") as file:
        try:
            data = yaml.safe_load(file)
        except yaml.YAMLError as error:
            raise ConfigError(f"this is not YAML: {error}", where=path) from error
    if not isinstance(data, Mapping):
        raise ConfigError("the file holds no settings", where=path, fix="begin with pipeline: and executor:")
    for key in data:
        if key not in _TOP:
            raise ConfigError(f"unknown word {key!r}", where=path, fix=nearest(str(key), _TOP))
    for key in _TOP:
        if key not in data:
            raise ConfigError(f"{key!r} is missing", where=path, fix=f"say {key}: ...")
    folder = str(Path(path).resolve().parent)
    sys.path.insert(0, folder)
    try:
        pipeline = [_build(entry, steps, f"{path}, step {k}") for k, entry in enumerate(data["pipeline"])]
        executor = _build(data["executor"], run, f"{path}, executor", pipeline=pipeline)
    finally:
        sys.path.remove(folder)
    if not isinstance(executor, PipelineExecutor):
        raise ConfigError("the executor is none", where=path, fix="say LocalPipelineExecutor or another executor")
    return executor


def _build(entry: Any, room: Any, where: str, **given: Any) -> Any:
    name, settings = _one(entry, where)
    if ":" in name:
        return _code(name, where)
    known = room.__all__
    if name not in known:
        raise ConfigError(f"unknown name {name!r}", where=where, fix=nearest(name, known))
    kind = getattr(room, name)
    accepted = _parameters(kind)
    for key in settings:
        if key not in accepted:
            raise ConfigError(f"{name} takes no {key!r}", where=where, fix=nearest(key, accepted))
    values = {key: _value(value, where) for key, value in settings.items()}
    return kind(**given, **values)


def _parameters(kind: type) -> list[str]:
    """Name what a class can be told, through the bases to which it hands further words."""
    found: list[str] = []
    for base in kind.__mro__:
        if "__init__" not in vars(base):
            continue
        parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
        found += [p.name for p in parameters if p.kind not in {p.VAR_KEYWORD, p.VAR_POSITIONAL} and p.name != "self"]
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return found


def _one(entry: Any, where: str) -> tuple[str, dict[str, Any]]:
    if isinstance(entry, str):
        return entry, {}
    if isinstance(entry, Mapping) and len(entry) == 1:
        (pair,) = entry.items()
        name, settings = pair
        if settings is None or isinstance(settings, Mapping):
            return str(name), dict(settings or {})
    raise ConfigError("a step is a name with its arguments", where=where, fix="write - JsonlReader: {data_folder: raw}")


def _value(value: Any, where: str) -> Any:
    if isinstance(value, str) and value.count(":") == 1 and "/" not in value and " " not in value:
        module, _, name = value.partition(":")
        if module.replace(".", "").isidentifier() and name.isidentifier():
            return _code(value, where)
    if isinstance(value, Mapping) and len(value) == 1 and next(iter(value)) in steps.__all__:
        return _build(value, steps, where)  # a writer inside a filter
    return value


def _code(name: str, where: str) -> Any:
    module, _, attribute = name.partition(":")
    try:
        found = import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"module {module!r} cannot be loaded: {error}", where=where, fix="put it beside the file"
        ) from error
    if not hasattr(found, attribute):
        raise ConfigError(f"{module} has no {attribute!r}", where=where, fix=nearest(attribute, dir(found)))
    return getattr(found, attribute)
