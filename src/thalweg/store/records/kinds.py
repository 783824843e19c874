"""The types of a column: their words, which type a value has, and which type holds two.

A kind is what comes back: "int32" (a numpy scalar), "int", "float", "bool", "str", "bytes" (Python values),
"int32[*]", "float32[*,3]" (arrays), "json" (lists, dicts and whatever else differs from row to row) and "null".
Decides these words and the join of two of them. Knows no file and no Arrow.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.core.errors import ConfigError, SampleError, nearest
from thalweg.core.sample import INPUT_IDS, LABELS, LOSS_SPANS

PYTHON = ("int", "float", "bool", "str", "bytes", "json", "null")
DTYPES = (
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "bool_"),
)
_WORD = re.compile(r"([a-z0-9_]+)(?:\[([*\d, ]*)\])?")
_MAX_RANK = 32


@dataclass(frozen=True, slots=True)
class Kind:
    """One type. `base` is a word of PYTHON or DTYPES; `dims`: extents of an array, -1 for any; () for no array."""

    base: str
    dims: tuple[int, ...] = ()

    def __str__(self) -> str:
        """Write as the word that `parse` reads."""
        if not self.dims:
            return self.base
        return f"{self.base.rstrip('_')}[{','.join('*' if d < 0 else str(d) for d in self.dims)}]"

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type as handed over; int64 and float64 for Python numbers."""
        return np.dtype({"int": "int64", "float": "float64", "bool": "bool", "bool_": "bool"}.get(self.base, self.base))

    @property
    def is_array(self) -> bool:
        """Whether values are numpy arrays of rank 1 or more."""
        return bool(self.dims)

    @property
    def is_number(self) -> bool:
        """Whether values are scalars of a fixed width."""
        return not self.dims and self.base not in ("str", "bytes", "json", "null")


JSON, NULL = Kind("json"), Kind("null")
# Names with a fixed meaning have a fixed type, also when a list or another integer width is written.
STANDARD = {INPUT_IDS: Kind("int32", (-1,)), LABELS: Kind("int64", (-1,)), LOSS_SPANS: Kind("int32", (-1, 2))}


@lru_cache(maxsize=4096)
def parse(word: str) -> Kind:
    """Read the word of a type.

    Raises:
        ConfigError: it is none; the nearest one is named.
    """
    match = _WORD.fullmatch(word.strip())
    base, dims = (match[1], match[2]) if match else (word, None)
    if dims is None and base in (*PYTHON, *DTYPES):
        return Kind(base)
    if dims is not None and base in (*DTYPES, "bool"):
        extents = tuple(-1 if d.strip() == "*" else int(d) for d in dims.split(","))
        return Kind("bool_" if base == "bool" else base, extents)
    raise ConfigError(
        f"{word!r} is no type of a column", fix=nearest(base, [*PYTHON, *DTYPES]) + '; arrays: "int32[*]"'
    )


def of(value: Any) -> Kind:
    """Give the kind of one value.

    Raises:
        SampleError: a value that has no place in a record, such as an object or an array of objects.
    """
    if isinstance(value, np.ndarray):
        name = "bool_" if value.dtype == bool else value.dtype.name
        if name not in DTYPES:
            raise SampleError(
                f"an array of dtype {value.dtype} has no place in a record", fix="make it numbers, or a list"
            )
        return Kind(name, (-1,) * value.ndim) if value.ndim else Kind(name)
    kind = _PYTHON_KIND.get(type(value))
    if kind is not None:
        return _INT if kind is _INT and -(2**63) <= value < 2**63 else JSON if kind is _INT else kind
    if isinstance(value, np.generic):
        return of(np.asarray(value))
    for base in (str, bytes, list, tuple, dict):
        if isinstance(value, base):
            return _PYTHON_KIND[base]
    raise SampleError(
        f"a value of type {type(value).__name__!r} has no place in a record", fix="make it numbers, text or lists"
    )


_INT = Kind("int")
_PYTHON_KIND: dict[type, Kind] = {
    int: _INT,
    float: Kind("float"),
    bool: Kind("bool"),
    str: Kind("str"),
    bytes: Kind("bytes"),
    bytearray: Kind("bytes"),
    list: JSON,
    tuple: JSON,
    dict: JSON,
    type(None): NULL,
}


def join(a: Kind, b: Kind) -> Kind:
    """Give the kind that holds values of both without changing one: itself, or "json"."""
    if b in (a, NULL):
        return a
    if a == NULL:
        return b
    if a.is_array and a.base == b.base and len(a.dims) == len(b.dims):
        return Kind(a.base, tuple(x if x == y else -1 for x, y in zip(a.dims, b.dims, strict=True)))
    return JSON


def conform(value: Any, kind: Kind) -> Any:
    """Turn a value into a declared kind where nothing is lost: lists to arrays, integers to other widths.

    Raises:
        SampleError: it does not fit. An integer outside the type is refused, never wrapped around.
    """
    if value is None or kind in (JSON, NULL):
        return value
    if kind.is_array or kind.base in DTYPES:
        return _to_array(value, kind)
    found = of(value)
    if found == kind or (kind.base == "float" and found.base == "int" and int(float(value)) == value):
        return float(value) if kind.base == "float" else value
    if kind.base in ("int", "float", "bool") and isinstance(value, np.generic) and of(value.item()) == kind:
        return value.item()
    raise SampleError(f"{_short(value)} is no {kind}", fix="declare another type in schema=, or leave it out")


def _to_array(value: Any, kind: Kind) -> Any:
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise SampleError(f"{_short(value)} is no {kind}: {error}") from error
    rank = len(kind.dims)
    if array.size == 0 and array.ndim <= 1 < rank and not isinstance(value, np.ndarray):
        array = array.reshape(0, *(max(d, 0) for d in kind.dims[1:]))
    if array.ndim != rank or any(d not in (-1, n) for d, n in zip(kind.dims, array.shape, strict=True)):
        raise SampleError(f"an array of shape {array.shape} is no {kind}", fix="declare another shape in schema=")
    if array.dtype == kind.dtype:
        return array if rank else array[()]
    out = _cast(array, kind)
    return out if rank else out[()]


def _cast(array: NDArray[Any], kind: Kind) -> NDArray[Any]:
    want = kind.dtype
    if array.size == 0:
        return array.astype(want)
    if want.kind in "iu" and array.dtype.kind in "iu":
        limits = np.iinfo(want)
        if int(array.min()) < limits.min or int(array.max()) > limits.max:
            bad = next(int(v) for v in array.flat if not limits.min <= int(v) <= limits.max)
            raise SampleError(f"{bad} is outside {want.name} [{limits.min}, {limits.max}]")
        return array.astype(want)
    if want.kind == "f" and array.dtype.kind in "iuf":
        out = array.astype(want)
        if np.array_equal(out.astype(array.dtype), array, equal_nan=array.dtype.kind == "f"):
            return out
        if array.dtype.kind == "f":  # a narrower float is asked for by name: rounding is what it means
            return out
    raise SampleError(f"values of dtype {array.dtype} don't fit {kind}", fix="declare another type in schema=")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
