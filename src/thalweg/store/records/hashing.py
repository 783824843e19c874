"""Row hashes and the fingerprint of rows in order.

A row's hash depends on its keys and values alone: not on the width at rest, on blocks, shards or paths. The
fingerprint of rows is a polynomial in their hashes, so that of A followed by B follows from those of A and B.
Decides both. Knows no file.
"""

from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

Print: TypeAlias = tuple[int, int, int]  # rows, and two polynomials modulo 2**64

EMPTY: Print = (0, 0, 0)
_MASK = 2**64 - 1
_BASES = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)  # odd, so powers never vanish
_POWERS: dict[int, NDArray[np.uint64]] = {}
_NULL, _TRUE, _FALSE = (xxh3_64_intdigest(t) for t in (b"null", b"true", b"false"))
_SEEDS = {name: xxh3_64_intdigest(name.encode()) for name in ("int", "float", "str", "bytes", "json")}


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scramble 64-bit words one to one (the finaliser of splitmix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def of_spans(data: memoryview, offsets: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Hash each byte range data[offsets[i]:offsets[i + 1]] with xxh3_64; uint64 (n,)."""
    bounds = offsets.tolist()
    pieces = map(data.__getitem__, map(slice, bounds[:-1], bounds[1:]))
    return np.fromiter(map(xxh3_64_intdigest, pieces), np.uint64, len(bounds) - 1)


def tagged(hashes: NDArray[np.uint64], tag: int) -> NDArray[np.uint64]:
    """Make the hash of bytes that of a value of some type."""
    return mix(hashes ^ np.uint64(tag))


def of_text(texts: Iterable[str | None]) -> NDArray[np.uint64]:
    """Hash the UTF-8 of each text with xxh3_64, 0 for None; uint64 (n,)."""
    return np.array([0 if t is None else xxh3_64_intdigest(t.encode()) for t in texts], np.uint64)


def of_numbers(values: NDArray[Any], base: str) -> NDArray[np.uint64]:
    """Hash scalars of one kind by their bits (-0.0 is not 0.0); uint64 (n,)."""
    if base in ("bool", "bool_"):
        return np.where(values.astype(bool), np.uint64(_TRUE), np.uint64(_FALSE)) ^ np.uint64(base == "bool_")
    seed = np.uint64(_SEEDS.get(base) or xxh3_64_intdigest(base.encode()))
    if values.dtype.kind == "f":
        bits = np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}").astype(np.uint64)
    else:
        bits = values.astype(np.int64).view(np.uint64) if values.dtype.kind == "i" else values.astype(np.uint64)
    return mix(bits ^ seed)


def array_tag(base: str, rank: int) -> int:
    """Give the tag of an array: its element type and rank."""
    return xxh3_64_intdigest(f"{base}:{rank}".encode())


def of_value(value: Any, encode: Callable[[Any], bytes]) -> int:
    """Hash one value, as the vectorised functions do; `encode` writes nested values to bytes."""
    if value is None:
        return _NULL
    if value is True or value is False:
        return _TRUE if value else _FALSE
    if type(value) is str:
        return _one(value.encode(), TEXT_TAG)
    if type(value) is bytes:
        return _one(value, BYTES_TAG)
    if type(value) is int and -(2**63) <= value < 2**63:
        return int(of_numbers(np.array([value], np.int64), "int")[0])
    if type(value) is float:
        return int(of_numbers(np.array([value], np.float64), "float")[0])
    if isinstance(value, np.ndarray | np.generic):
        base = "bool_" if value.dtype == bool else value.dtype.name
        if value.ndim == 0:
            return int(of_numbers(np.array([value]), base)[0])
        content = _one(np.ascontiguousarray(value).tobytes(), array_tag(base, value.ndim))
        return content ^ xxh3_64_intdigest(np.asarray(value.shape, np.int64).tobytes()) if value.ndim > 1 else content
    return _one(encode(value), JSON_TAG)


def _one(data: bytes, tag: int) -> int:
    return int(tagged(np.array([xxh3_64_intdigest(data)], np.uint64), tag)[0])


def of_shapes(shapes: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Hash shapes int64 (n, rank), to be combined with the hashes of the contents by exclusive or; uint64 (n,)."""
    return np.array([xxh3_64_intdigest(row) for row in np.ascontiguousarray(shapes)], np.uint64)


NULL_HASH = np.uint64(_NULL)
TEXT_TAG, BYTES_TAG, JSON_TAG = _SEEDS["str"], _SEEDS["bytes"], _SEEDS["json"]


def of_rows(n: int, columns: Iterable[tuple[str, NDArray[np.uint64], NDArray[np.bool_] | None]]) -> NDArray[np.uint64]:
    """Combine columns into row hashes, independent of their order.

    Args:
        n: number of rows.
        columns: name, value hashes uint64 (n,), and which rows have the key at all (None: all).
    """
    rows = np.zeros(n, np.uint64)
    for name, hashes, present in columns:
        term = mix(hashes + np.uint64(xxh3_64_intdigest(name.encode())))
        rows += term if present is None else np.where(present, term, np.uint64(0))
    return mix(rows)


def of_order(rows: NDArray[np.uint64]) -> Print:
    """Give the fingerprint of rows in order."""
    n = len(rows)
    f, g = (int((rows * _powers(k, n)).sum(dtype=np.uint64)) for k in range(2))
    return (n, f, g)


def _powers(which: int, n: int) -> NDArray[np.uint64]:
    """Powers of a base, falling to 1: uint64 (n,)."""
    have = _POWERS.get(which)
    if have is None or len(have) < n:
        factors = np.full(max(n, 8192), _BASES[which], np.uint64)
        factors[0] = 1
        have = _POWERS[which] = np.ascontiguousarray(np.cumprod(factors, dtype=np.uint64)[::-1])
    return have[len(have) - n :]


def followed_by(a: Print, b: Print) -> Print:
    """Give the fingerprint of the rows of `a` followed by those of `b`."""
    f, g = ((x * pow(base, b[0], 2**64) + y) & _MASK for x, y, base in zip(a[1:], b[1:], _BASES, strict=True))
    return (a[0] + b[0], f, g)


def text(print_: Print) -> str:
    """Write a fingerprint as 16 hex digits."""
    return blake2b(repr(print_).encode(), digest_size=8).hexdigest()
