"""Equality of what flows: arrays, tensors, dicts, batches with their info, errors.

Decides when two values are the same and names the first place where they differ. Knows no node and no loader.
"""

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from thalweg.core.batch import Batch


def difference(a: Any, b: Any, at: str = "value") -> str | None:
    """Say where two values differ first, such as "value['labels'][0, 3]: 5 against -100"; None where they are equal.

    Arrays must agree in dtype, shape and every element, tensors likewise; NaN equals NaN; dicts in any key order;
    errors by type and message.
    """
    if isinstance(a, Batch) and isinstance(b, Batch):
        return difference(dict(a), dict(b), at) or difference(a.info, b.info, f"{at}.info")
    array_a, array_b = _array(a), _array(b)
    if array_a is not None and array_b is not None:
        return _arrays(array_a, array_b, at)
    if type(a) is not type(b):
        return f"{at}: {_short(a)} against {_short(b)}"
    if isinstance(a, Mapping):
        return _mappings(a, b, at)
    if isinstance(a, list | tuple):
        return _sequences(a, b, at)
    if isinstance(a, BaseException):
        return None if str(a) == str(b) else f"{at}: {a!r} against {b!r}"
    if is_dataclass(a) and not isinstance(a, type):
        return _mappings(
            {f.name: getattr(a, f.name) for f in fields(a)}, {f.name: getattr(b, f.name) for f in fields(a)}, at
        )
    if isinstance(a, float) and math.isnan(a) and math.isnan(b):
        return None
    return None if a == b else f"{at}: {_short(a)} against {_short(b)}"


def _array(value: Any) -> Any:
    """An array as it is, a tensor as an array; None for anything else."""
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    if hasattr(value, "detach") and hasattr(value, "numpy"):
        tensor = value.detach().cpu()
        return tensor.float().numpy() if str(tensor.dtype) == "torch.bfloat16" else tensor.numpy()
    return None


def _arrays(a: Any, b: Any, at: str) -> str | None:
    if a.dtype != b.dtype or a.shape != b.shape:
        return f"{at}: {a.dtype} {a.shape} against {b.dtype} {b.shape}"
    unequal = a != b
    if a.dtype.kind in "fc":
        unequal &= ~(np.isnan(a) & np.isnan(b))
    if not unequal.any():
        return None
    first = tuple(int(i) for i in np.argwhere(unequal)[0])
    place = "[" + ", ".join(map(str, first)) + "]" if first else ""
    x, y = (_short(v.item() if isinstance(v, np.generic) else v) for v in (a[first], b[first]))
    return f"{at}{place}: {x} against {y}, {int(unequal.sum())} elements differ"


def _mappings(a: Mapping[Any, Any], b: Mapping[Any, Any], at: str) -> str | None:
    if a.keys() != b.keys():
        return f"{at}: keys {sorted(map(str, a))} against {sorted(map(str, b))}"
    for key in a:
        found = difference(a[key], b[key], f"{at}[{key!r}]")
        if found:
            return found
    return None


def _sequences(a: Any, b: Any, at: str) -> str | None:
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        found = difference(x, y, f"{at}[{i}]")
        if found:
            return found
    return None if len(a) == len(b) else f"{at}: {len(a)} items against {len(b)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
