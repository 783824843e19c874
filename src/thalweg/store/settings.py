"""Settings in files: YAML or JSON read strictly, and code found by its name.

Decides which files hold settings, that a key said twice is an error, that words such as `no` and dates stay text,
and how "module:name" is found beside a file. Knows no word of any file.
"""

import inspect
import json
import re
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from thalweg.core.errors import ConfigError, InputError, nearest

SUFFIXES = (".yaml", ".yml", ".json")


class _Strict(yaml.SafeLoader):
    """YAML as people mean it: `no`, `on` and dates are text, 20e9 is a number, a key stands once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Refuse a key that is there already."""
        self.flatten_mapping(node)
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


def _resolvers() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    """Take from YAML 1.1 what surprises: booleans by other words than true and false, dates, numbers in base 60."""
    dropped = {"tag:yaml.org,2002:" + kind for kind in ("bool", "timestamp", "int", "float")}
    kept = {c: [r for r in rs if r[0] not in dropped] for c, rs in yaml.SafeLoader.yaml_implicit_resolvers.items()}
    for c in "tTfF":
        kept.setdefault(c, []).append(("tag:yaml.org,2002:bool", re.compile(r"(true|True|TRUE|false|False|FALSE)$")))
    whole = re.compile(r"[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F]+)$")
    broken = re.compile(r"[-+]?([0-9][0-9_]*(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?$|[-+]?\.inf$|\.nan$")
    for c in "-+0123456789.":
        kept.setdefault(c, []).extend([("tag:yaml.org,2002:int", whole), ("tag:yaml.org,2002:float", broken)])
    return kept


_Strict.yaml_implicit_resolvers = _resolvers()


def read_settings(path: str | Path) -> dict[str, Any]:
    """Read a file of settings.

    Raises:
        InputError: there is no such file.
        ConfigError: it is not YAML or JSON, says a key twice, or holds something else than names with values.
    """
    file = Path(path)
    if not file.is_file():
        raise InputError("there is no such file", where=str(path), fix="check the path")
    data = parse_settings(file.read_text(encoding="utf-8"), str(path), as_json=file.suffix == ".json")
    if not isinstance(data, dict):
        raise ConfigError("the file holds no settings", where=str(path), fix="begin with a name and a colon")
    return {str(k): v for k, v in data.items()}


def parse_settings(text: str, where: str, *, as_json: bool = False) -> Any:
    """Read settings from text, as `read_settings` reads a file.

    Raises:
        ConfigError: it is not YAML or JSON, or says a key twice.
    """
    try:
        if as_json:
            return json.loads(text, object_pairs_hook=_once)
        return yaml.load(text, _Strict)  # noqa: S506 - a safe loader, made stricter
    except yaml.YAMLError as error:
        raise ConfigError(f"this is not YAML: {error}", where=where) from error
    except json.JSONDecodeError as error:
        raise ConfigError(f"this is not JSON: {error}", where=where) from error
    except _TwiceError as error:
        raise ConfigError(f"the key {error.args[0]!r} stands twice", where=where, fix="take one out") from error


class _TwiceError(Exception):
    """A key that stands twice."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in pairs:
        if key in out:
            raise _TwiceError(key)
        out[key] = value
    return out


def refuse_unknown(words: Iterable[Any], known: Iterable[str], what: str, where: str) -> None:
    """Refuse the first word that is not known, with the nearest that is.

    Raises:
        ConfigError: "what 'word'".
    """
    choices = list(known)
    for word in words:
        if word not in choices:
            raise ConfigError(f"{what} {word!r}", where=where, fix=nearest(str(word), choices))


def one_name(entry: Any, where: str, example: str) -> tuple[str, Any]:
    """Take `name` or `{name: settings}` apart.

    Raises:
        ConfigError: another shape.
    """
    if isinstance(entry, str):
        return entry, None
    if isinstance(entry, Mapping) and len(entry) == 1:
        (pair,) = entry.items()
        return str(pair[0]), pair[1]
    raise ConfigError("this is no name with its settings", where=where, fix=f"write {example}")


def parameters_of(kind: Callable[..., Any]) -> list[str]:
    """Name what a function or class can be told, through the bases to which it hands further words."""
    if not isinstance(kind, type):
        named = inspect.signature(kind).parameters.values()
        return [p.name for p in named if p.kind not in {p.VAR_KEYWORD, p.VAR_POSITIONAL} and p.name != "self"]
    found: list[str] = []
    for base in kind.__mro__:
        if "__init__" not in vars(base):
            continue
        parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
        found += [p.name for p in parameters if p.kind not in {p.VAR_KEYWORD, p.VAR_POSITIONAL} and p.name != "self"]
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return found


def is_code(value: Any) -> bool:
    """Say whether a value is the name of code: "module:name"."""
    if not isinstance(value, str) or value.count(":") != 1:
        return False
    module, _, name = value.partition(":")
    return module.replace(".", "").isidentifier() and name.replace(".", "").isidentifier()


def find_code(name: str, where: str) -> Any:
    """Find "module:name".

    Raises:
        ConfigError: there is no such module, or no such name in it; the nearest is said.
    """
    module, _, path = name.partition(":")
    try:
        found: Any = import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"module {module!r} cannot be loaded: {error}", where=where, fix="put it beside the file"
        ) from error
    for attribute in path.split("."):
        if not hasattr(found, attribute):
            raise ConfigError(f"{module} has no {attribute!r}", where=where, fix=nearest(attribute, dir(found)))
        found = getattr(found, attribute)
    return found


def import_beside(path: str | Path) -> None:
    """Let modules that lie beside a file be imported, from now on: worker processes import them too."""
    folder = str(Path(path).resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
