"""Functions and objects by their names in a file, both ways: "module:name", {ChatEncoder: {...}}, {"mod:Class": {...}}.

Decides what has a name, and that an object which has none is refused rather than written down wrongly. Knows no
stage.
"""

import dataclasses
import weakref
from collections.abc import Mapping
from fractions import Fraction
from inspect import signature
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np

from thalweg.core.errors import ConfigError
from thalweg.store.settings import find_code, is_code, parameters_of, refuse_unknown

# classes that a file names without their module; each is called with the settings below its name
KNOWN = {
    "ChatEncoder": "thalweg.encode.chat:ChatEncoder",
    "TextEncoder": "thalweg.encode.text:TextEncoder",
    "MediaCollator": "thalweg.encode.media.batches:MediaCollator",
    "Media": "thalweg.encode.media.models:media_of",
    "Limits": "thalweg.encode.media.families:Limits",
    "Sampling": "thalweg.encode.media.videos:Sampling",
    "Folder": "thalweg.encode.media.references:Folder",
}
_made: dict[int, tuple[Any, Any]] = {}  # id -> (what keeps the object known, its name in the file)


def build(value: Any, where: str) -> Any:
    """Make the value that a file means: named objects are made, all else stays as it is.

    Raises:
        ConfigError: an unknown setting of a named object; code that is not there.
    """
    if isinstance(value, list):
        return [build(v, where) for v in value]
    if not isinstance(value, Mapping):
        return value
    if len(value) == 1:
        (pair,) = value.items()
        name, settings = pair
        known = KNOWN.get(name)
        if known is not None or is_code(name):
            return _call(name, find_code(known or name, where), settings, where)
    return {k: build(v, where) for k, v in value.items()}


def code(value: Any, where: str) -> Any:
    """Make the function or object that stands where code is expected: "module:name", or as `build`."""
    if is_code(value):
        found = find_code(value, where)
        return found if isinstance(found, FunctionType | type) else _remember(found, value)
    return build(value, where)


def _call(name: str, kind: Any, settings: Any, where: str) -> Any:
    if settings is not None and not isinstance(settings, Mapping):
        raise ConfigError(f"{name} takes settings by name", where=where, fix=f"write {name}: {{name: value}}")
    given = {k: build(v, where) for k, v in (settings or {}).items()}
    if not _takes_any(kind):
        refuse_unknown(given, parameters_of(kind), f"{name} takes no", where)
    try:
        made = kind(**given)
    except TypeError as error:
        raise ConfigError(f"{name} cannot be made: {error}", where=where) from error
    return _remember(made, {name: dict(settings or {})})


def _takes_any(kind: Any) -> bool:
    return any(p.kind is p.VAR_KEYWORD for p in signature(kind).parameters.values())


def _remember(made: Any, name: Any) -> Any:
    """Keep the name of an object that was made by a file, as long as the object lives."""
    key = id(made)
    try:
        weakref.finalize(made, _made.pop, key, None)
        _made[key] = (None, name)
    except TypeError:  # what cannot be referred to weakly (a list) is kept: settings are few
        _made[key] = (made, name)
    return made


def written(value: Any, where: str = "to_config") -> Any:
    """Write a value as a file names it: the reverse of `code` and `build`.

    Raises:
        ConfigError: an object without a name: a lambda, a function inside another, data in memory.
    """
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if id(value) in _made:
        return _made[id(value)][1]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Fraction):
        return int(value) if value.denominator == 1 else float(value)
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(k): written(v, where) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [written(v, where) for v in value]
    name = type(value).__name__
    if name in KNOWN:
        return {name: _arguments(value, where)}
    module, path = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if isinstance(value, FunctionType | type) and module != "__main__" and path and "<" not in path:
        return f"{module}:{path}"
    said = path or name
    raise ConfigError(
        f"{said} has no name that a file could say", where=where,
        fix='put it into a module and name it "module:name"; data in memory into records or files',
    )  # fmt: skip


def _arguments(value: Any, where: str) -> dict[str, Any]:
    """Name what an object was told that is not its default."""
    kind = find_code(KNOWN[type(value).__name__], where)
    if dataclasses.is_dataclass(value):
        told: Any = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        plain = kind()
        defaults = {name: getattr(plain, name) for name in told}
    else:
        told = getattr(value, "_arguments", None)
        defaults = {p.name: p.default for p in signature(kind).parameters.values()}
    if told is None:
        raise ConfigError(
            f"this {type(value).__name__} was made of objects, not of settings", where=where,
            fix="make it of a path, as a file would",
        )  # fmt: skip
    return {k: written(v, where) for k, v in told.items() if k not in defaults or v != defaults[k]}
