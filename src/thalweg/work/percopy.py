"""A function of its own for each worker thread, where it holds something that threads may not share.

Decides what is copied: tokenizers (fast ones raise "Already borrowed" when two threads change their settings), and
anything that has a method `for_worker`. All else a function captured stays shared, as threads share it.
"""

import copy
from collections.abc import Callable, Mapping
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any

_LIBRARIES = ("tokenizers", "transformers", "fastokens")
_DEPTH = 3


def for_worker(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Give the function itself, or one whose tokenizers are copies."""
    copied: Callable[..., Any] = _copied(fn, 0)
    return copied


def _is_tokenizer(value: Any) -> bool:
    kind = type(value)
    top = (getattr(kind, "__module__", "") or "").partition(".")[0]
    if kind.__name__.startswith("Tokenizer") or "Tokenizer" in kind.__name__:
        return top in _LIBRARIES
    backend = getattr(value, "_tokenizer", None) if not isinstance(value, type) else None
    return backend is not None and (type(backend).__module__ or "").partition(".")[0] in _LIBRARIES


def _copied(value: Any, depth: int) -> Any:
    if isinstance(value, type) or depth > _DEPTH:
        return value
    own = getattr(value, "for_worker", None)
    if own is not None and callable(own):
        return own()
    if _is_tokenizer(value):
        return copy.deepcopy(value)
    if isinstance(value, FunctionType):
        return _function(value, depth)
    if isinstance(value, MethodType):
        inner = _copied(value.__self__, depth + 1)
        return value if inner is value.__self__ else MethodType(value.__func__, inner)
    if isinstance(value, partial):
        args = [_copied(v, depth + 1) for v in value.args]
        words = {k: _copied(v, depth + 1) for k, v in value.keywords.items()}
        func = _copied(value.func, depth + 1)
        same = func is value.func and all(a is b for a, b in zip(args, value.args, strict=True))
        return value if same and _same(words, value.keywords) else partial(func, *args, **words)
    attributes = getattr(value, "__dict__", None)
    if callable(value) and isinstance(attributes, dict):
        return _object(value, attributes, depth)
    return value


def _same(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    return all(a[k] is b[k] for k in b)


def _object(value: Any, attributes: dict[str, Any], depth: int) -> Any:
    changed = {k: c for k, v in attributes.items() if (c := _copied(v, depth + 1)) is not v}
    if not changed:
        return value
    made = copy.copy(value)
    made.__dict__.update(changed)
    return made


def _function(fn: FunctionType, depth: int) -> FunctionType:
    cells = fn.__closure__ or ()
    inside = [_copied(c.cell_contents, depth + 1) if _filled(c) else None for c in cells]
    names = {n: fn.__globals__[n] for n in fn.__code__.co_names if n in fn.__globals__}
    replaced = {n: copy.deepcopy(v) for n, v in names.items() if _is_tokenizer(v)}
    unchanged = all(not _filled(c) or v is c.cell_contents for c, v in zip(cells, inside, strict=True))
    if unchanged and not replaced:
        return fn
    closure = tuple(CellType(v) if _filled(c) else c for c, v in zip(cells, inside, strict=True))
    scope = {**fn.__globals__, **replaced} if replaced else fn.__globals__
    made = FunctionType(fn.__code__, scope, fn.__name__, fn.__defaults__, closure)
    made.__kwdefaults__ = fn.__kwdefaults__
    return made


def _filled(cell: CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True
