"""What a run is: its ranks, inputs, units and the configuration and code of each step, as plain data.

Decides when two launches are the same run, and says the difference when they are not. Knows no directory.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from string import Template
from typing import Any, cast

import numpy as np

from thalweg.core.state import digest
from thalweg.core.uses import uses
from thalweg.run.credentials import HIDDEN, is_credential, is_place, masked
from thalweg.steps.folder import Folder

SHOWN = 12  # differences named in a message
_SKIP = {"stats", "tally", "progress", "arguments", "planned", "written"}


def describe(value: Any, depth: int = 0) -> Any:
    """Write any configuration value as JSON-like data without addresses or times."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, float):
        return repr(value)
    if depth > 8:
        return f"<{type(value).__name__}>"
    if isinstance(value, bytes):
        return blake2b(value, digest_size=8).hexdigest()
    if isinstance(value, Folder):
        return masked(value.path)
    if isinstance(value, Template):
        return value.template
    if isinstance(value, re.Pattern):
        return [value.pattern, value.flags]
    if isinstance(value, Mapping):
        return {str(k): named(str(k), v, depth + 1) for k, v in value.items()}
    if is_place(value):
        return masked(value[0])
    if isinstance(value, set | frozenset):
        return sorted((describe(v, depth + 1) for v in value), key=repr)
    if isinstance(value, Sequence):
        return [describe(v, depth + 1) for v in value]
    if inspect.ismodule(value):
        return f"module {value.__name__}"
    if isinstance(value, np.ndarray):
        return [str(value.dtype), list(value.shape), blake2b(value.tobytes(), digest_size=8).hexdigest()]
    if inspect.isclass(value):
        return f"class {value.__qualname__}"
    if callable(value) and (hasattr(value, "__code__") or hasattr(value, "__func__")):
        return _function(value, depth)
    return _object(value, depth)


def named(name: str, value: Any, depth: int = 0) -> Any:
    """Describe a value that has a name; a credential is left out, so that a new one is no other run."""
    return HIDDEN if is_credential(name, value) else describe(value, depth)


def _function(fn: Any, depth: int) -> dict[str, Any]:
    plain = getattr(fn, "__func__", fn)
    code, given = plain.__code__, plain.__defaults__ or ()
    cells = zip(code.co_freevars, (c.cell_contents for c in plain.__closure__ or ()), strict=True)
    defaults = zip(code.co_varnames[code.co_argcount - len(given) : code.co_argcount], given, strict=True)
    captured = [named(name, v, depth + 1) for name, v in [*cells, *defaults] if v is not plain]
    out = {"function": plain.__qualname__, "code": code_digest(plain), "captured": captured}
    values, functions = uses(plain)
    if values:
        out["uses"] = {name: named(name, v, depth + 1) for name, v in values.items()}
    if functions:
        out["calls"] = {f"{name}.code": code_digest(f) for name, f in functions.items()}
    return out


def _object(value: Any, depth: int) -> Any:
    if any(c.__name__ == "DataFolder" for c in type(value).__mro__):  # a folder of the datatrove package
        return masked(str(value.resolve_paths("")))
    config: dict[str, Any] = {"class": type(value).__qualname__}
    if isinstance(getattr(value, "digest", None), str):  # it says itself what decides its results
        return config | {"digest": value.digest}
    identity, arguments = getattr(value, "identity", None), getattr(value, "arguments", None)
    if isinstance(identity, Mapping):
        arguments = dict(cast("Mapping[str, Any]", identity))
    held = arguments if isinstance(arguments, dict) else getattr(value, "__dict__", {})
    for name, given in held.items():
        if name not in _SKIP and not name.startswith("_"):
            kept = getattr(value, name, None)
            config[name] = named(name, kept if isinstance(kept, Folder) else given, depth + 1)  # folders: absolute
    if _is_users(type(value)):
        config["code"] = code_digest(type(value))
    return config


def _is_users(cls: type) -> bool:
    module = inspect.getmodule(cls)
    path = getattr(module, "__file__", None) or ""
    return "site-packages" not in path and not (cls.__module__ or "").startswith(("thalweg.", "datatrove.", "builtins"))


def code_digest(code: Any) -> str:
    """Hash the source of a function or class; of a lambda, whose line may hold other things, the compiled code."""
    text: str | None = None
    if getattr(code, "__name__", "") != "<lambda>":
        with suppress(OSError, TypeError):
            text = inspect.getsource(code)
    if text is None:
        compiled = getattr(code, "__code__", None)
        text = "" if compiled is None else repr((compiled.co_code, compiled.co_names, _constants(compiled)))
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _constants(compiled: Any) -> list[Any]:
    return [c.co_code if hasattr(c, "co_code") else repr(c) for c in compiled.co_consts]


def step_ids(pipeline: list[Any]) -> list[str]:
    """Name each step by its place and class, so that two of one class are told apart."""
    return [f"{place}:{_class_name(step)}" for place, step in enumerate(pipeline)]


def _class_name(step: Any) -> str:
    if isinstance(step, Sequence) and not isinstance(step, str):
        return "documents"
    return getattr(step, "__name__", None) or type(step).__name__


def describe_pipeline(pipeline: list[Any]) -> dict[str, Any]:
    """Describe the configuration and code of every step, by id."""
    return {name: _step(step) for name, step in zip(step_ids(pipeline), pipeline, strict=True)}


def _step(step: Any) -> Any:
    if isinstance(step, Sequence) and not isinstance(step, str):
        documents: Any = step
        ids = [getattr(d, "id", None) or repr(d) for d in documents]
        return {"documents": len(ids), "ids": digest(ids)}
    return describe(step)


def flatten(value: Any, path: str = "") -> dict[str, Any]:
    """Write nested data as one level: "steps.1:LambdaFilter.filter_function.code" -> value."""
    if isinstance(value, Mapping) and value:
        flat: dict[str, Any] = {}
        for key, inner in value.items():
            flat |= flatten(inner, f"{path}.{key}" if path else str(key))
        return flat
    return {path: value}


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Name what differs between two run manifests, in words; empty where nothing does."""
    found = _input_differences(old.get("inputs", {}), new.get("inputs", {}))
    before = flatten({k: v for k, v in old.items() if k != "inputs"})
    after = flatten({k: v for k, v in new.items() if k != "inputs"})
    missing = object()
    for key in dict.fromkeys([*before, *after]):
        a, b = before.get(key, missing), after.get(key, missing)
        if a == b:
            continue
        if a is missing or b is missing:
            found.append(f"{key}: {'new' if a is missing else 'gone'}")
        elif key.endswith(".code"):
            found.append(f"{key.removesuffix('.code')}: its code changed")
        else:
            found.append(f"{key}: {_short(a)} -> {_short(b)}")
    return found


def _input_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    found: list[str] = []
    for step in dict.fromkeys([*old, *new]):
        before = {f[0]: tuple(f[1:]) for f in old.get(step, {}).get("files", ())}
        after = {f[0]: tuple(f[1:]) for f in new.get(step, {}).get("files", ())}
        for word, names in (("added", after.keys() - before.keys()), ("removed", before.keys() - after.keys())):
            found += [f"input file {word}: {name or step}" for name in sorted(names)]
        found += [
            f"input file changed: {n or step}" for n in sorted(before.keys() & after.keys()) if before[n] != after[n]
        ]
        if old.get(step, {}).get("units") != new.get(step, {}).get("units") and before == after:
            found.append(f"units of {step}: cut differently")
    return found


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
