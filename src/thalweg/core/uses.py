"""What a function uses besides its arguments: module-level values and functions, found by their names in its code.

Decides what belongs to the identity of a user's function: a threshold at the top of a script changes what its
functions do as much as their own lines. Hashes nothing.
"""

from collections.abc import Iterator, Mapping
from dis import get_instructions
from types import CodeType, FunctionType
from typing import Any

_SCALARS = (str, bytes, int, float, complex, bool, type(None))
_CHANGES = {
    "add",
    "append",
    "appendleft",
    "clear",
    "discard",
    "extend",
    "insert",
    "pop",
    "remove",
    "setdefault",
    "update",
}
MOST = 10_000  # elements of a container that still counts as a setting and not as data


def uses(fn: Any) -> tuple[dict[str, Any], dict[str, FunctionType]]:
    """Give the settings and functions of a function's own module that it reaches, directly or through one another.

    Args:
        fn: a plain function; anything else uses nothing that can be found.

    Returns:
        (name -> number, text or container of them; name -> function), each without `fn` itself. A container that one of
        the functions itself changes is a note that it keeps (calls, results so far), not a setting, and left out.
    """
    values: dict[str, Any] = {}
    kept: set[str] = set()
    functions: dict[str, FunctionType] = {}
    todo = [fn] if isinstance(fn, FunctionType) else []
    while todo:
        one = todo.pop()
        kept |= set(_changed(one.__code__))
        for name in _names(one.__code__):
            value = one.__globals__.get(name, uses)
            if isinstance(value, FunctionType):
                if value.__module__ == one.__module__ and value is not fn and name not in functions:
                    functions[name] = value
                    todo.append(value)
            elif is_setting(value) and not name.startswith("__"):
                values[name] = value
    settings = {name: value for name, value in sorted(values.items()) if name not in kept}
    return settings, dict(sorted(functions.items()))


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _changed(code: CodeType) -> Iterator[str]:
    """Name module-level values that the code changes in place: NAME.append(...) and its like, NAME[key] = ..."""
    steps = list(get_instructions(code))
    for at, step in enumerate(steps):
        if step.opname == "LOAD_GLOBAL":
            after = steps[at + 1 : at + 3]
            method = after and after[0].opname in {"LOAD_METHOD", "LOAD_ATTR"} and after[0].argval in _CHANGES
            if method or (len(after) == 2 and after[1].opname == "STORE_SUBSCR"):
                yield str(step.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _changed(constant)


def is_setting(value: Any, depth: int = 0) -> bool:
    """Say whether a value is plain data of a size that people write as a setting."""
    if isinstance(value, _SCALARS):
        return True
    if depth > 3 or not isinstance(value, list | tuple | set | frozenset | dict) or len(value) > MOST:
        return False
    inside = [*value.keys(), *value.values()] if isinstance(value, Mapping) else list(value)
    return all(is_setting(v, depth + 1) for v in inside)
