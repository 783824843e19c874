"""Identity of a user's function: its source or byte code, and the values that it captured.

Decides when two functions count as the same across processes and runs. Never uses `id` or `hash`. Knows no feed.
"""

import inspect
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import xxhash

from thalweg.core.state import digest
from thalweg.core.uses import uses


def code_of(fn: Any, depth: int = 0) -> str:
    """Digest a function, a partial or a callable object; equal across processes for equal code and captures."""
    if isinstance(fn, partial):
        return digest(
            [
                "partial",
                code_of(fn.func, depth + 1),
                [value_of(v, depth + 1) for v in fn.args],
                _items(fn.keywords, depth),
            ]
        )
    code = getattr(fn, "__code__", None)
    if code is None:
        own = getattr(fn, "fingerprint", None)
        if isinstance(own, str):
            return own
        if inspect.isbuiltin(fn) or inspect.isclass(fn):
            return f"{getattr(fn, '__module__', '')}.{getattr(fn, '__qualname__', fn)}"
        call = getattr(type(fn), "__call__", None)  # noqa: B004  (its code is wanted, not whether it can be called)
        state: dict[str, Any] = getattr(fn, "__dict__", {})
        inner = code_of(call, depth + 1) if getattr(call, "__code__", None) is not None else str(type(fn))
        return digest([type(fn).__qualname__, inner, _items(state, depth)])
    captured = [value_of(c.cell_contents, depth + 1) for c in getattr(fn, "__closure__", None) or () if _filled(c)]
    defaults = [value_of(v, depth + 1) for v in getattr(fn, "__defaults__", None) or ()]
    values, functions = uses(fn)
    reached = [[n, value_of(v, depth + 1)] for n, v in values.items()]
    reached += [[n, str(_code(f.__code__))] for n, f in functions.items()]
    return digest([_code(code), captured, defaults, reached])


def _filled(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def _code(code: Any) -> list[Any]:
    constants = [_code(c) if hasattr(c, "co_code") else repr(c) for c in code.co_consts]
    return [code.co_code.hex(), list(code.co_names), constants]


def _items(values: dict[str, Any], depth: int) -> list[Any]:
    return [[k, value_of(v, depth + 1)] for k, v in sorted(values.items())]


def value_of(value: Any, depth: int = 0) -> str:
    """Digest a captured value; objects deep inside count by their type."""
    if depth > 4:
        return type(value).__qualname__
    if value is None or isinstance(value, str | bytes | int | float | bool):
        return repr(value)
    if isinstance(value, list | tuple | set | frozenset):
        parts = [value_of(v, depth + 1) for v in value]
        return digest([type(value).__name__, sorted(parts) if isinstance(value, set | frozenset) else parts])
    if isinstance(value, dict):
        return digest([[repr(k), value_of(v, depth + 1)] for k, v in value.items()])
    if isinstance(value, ModuleType):
        return value.__name__
    if isinstance(value, np.ndarray):
        return digest([str(value.dtype), list(value.shape), xxhash.xxh3_64_hexdigest(np.ascontiguousarray(value).data)])
    own = getattr(value, "fingerprint", None)
    if isinstance(own, str):
        return own
    if callable(value):
        return code_of(value, depth + 1)
    return digest([type(value).__qualname__, _items(getattr(value, "__dict__", {}), depth)])


def draws_at_random(fn: Any) -> bool:
    """Say whether a plain function's own code reaches for a global random generator."""
    code, scope = getattr(fn, "__code__", None), getattr(fn, "__globals__", {})
    if code is None:
        return False
    modules = [getattr(scope.get(name), "__name__", "") for name in code.co_names]
    if any(m in ("random", "numpy.random", "secrets") for m in modules):
        return True
    numpy_random = any(m in ("numpy", "torch") for m in modules) and bool(
        {"random", "rand", "randn", "randint"} & set(code.co_names)
    )
    drawn = any(getattr(scope.get(name), "__module__", "") in ("random", "numpy.random") for name in code.co_names)
    return numpy_random or drawn
