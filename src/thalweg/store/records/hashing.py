"""Light hashes of values and rows: the same for equal values, however they are kept.

Of an array of rank 1 only its length and its first, middle and last element enter; the rest is hashed in chunks of
rows, by `fingerprint`. Every other value enters whole. Knows no file.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

_NULL, _TRUE, _FALSE = (xxh3_64_intdigest(t) for t in (b"null", b"true", b"false"))
_U = {k: np.uint64(k) for k in (3, 8, 15, 24, 28, 32, 35, 40, 49)}
_FLIP = np.uint64(0x1CAD21F72C81017C ^ 0xDB979083E96DD4DE)  # of the algorithm's secret: bytes 8 to 24
_PRIME = np.uint64(0x9FB21C651E98DF25)
_SEEDS = {name: xxh3_64_intdigest(name.encode()) for name in ("int", "float", "str", "bytes", "json")}


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scramble 64-bit words one to one (the finaliser of splitmix64); always a new array."""
    x = x ^ (x >> np.uint64(30))
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


@lru_cache(maxsize=4096)
def name_hash(name: str) -> int:
    """Hash the name of a column."""
    return xxh3_64_intdigest(name.encode())


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


def of_row_numbers(rows: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Hash row numbers as the text that is their id by default; uint64 (n,)."""
    if len(rows) and int(rows.max()) >= 10**8:  # longer texts are hashed in another way
        return _one_by_one(rows)
    return _of_digits(rows)


def _one_by_one(rows: NDArray[np.int64]) -> NDArray[np.uint64]:
    return np.fromiter(map(xxh3_64_intdigest, map(b"%d".__mod__, rows.tolist())), np.uint64, len(rows))


@lru_cache(maxsize=1)
def _tables() -> tuple[NDArray[np.uint32], NDArray[np.uint8], NDArray[np.uint64]]:
    """Give by n < 10^4 its four digits, and the number of digits of n * 10^4 + m; by n < 10^3 its hash."""
    n = np.arange(10_000)
    digits = np.array([b"%04d" % k for k in range(10_000)]).view(np.uint32)
    return digits, (np.searchsorted(10 ** np.arange(4), n, "right") + 4).astype(np.uint8), _one_by_one(n[:1000])


def _of_digits(rows: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Give xxh3_64 of the decimal digits of numbers below 10^8: the algorithm's way for 4 to 8 bytes, vectorised.

    Source: the XXH3 algorithm, https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md, seed 0.
    """
    digits, lengths, short = _tables()
    high = rows // 10_000
    last = digits.take(rows - high * 10_000).astype(np.uint64)  # four bytes of text
    hashes = last << _U[32]
    hashes |= digits.take(high)  # with what stands before them
    length = lengths.take(high).astype(np.uint64)
    other = _U[8] - length
    other <<= _U[3]
    hashes >>= other  # without leading zeros
    hashes <<= _U[32]
    hashes += last
    hashes ^= _FLIP
    turned = hashes << _U[49]
    for by, shift in ((15, np.right_shift), (24, np.left_shift), (40, np.right_shift)):
        turned ^= shift(hashes, _U[by], out=other)
    hashes ^= turned
    hashes *= _PRIME
    np.right_shift(hashes, _U[35], out=other)
    other += length
    hashes ^= other
    hashes *= _PRIME
    hashes ^= np.right_shift(hashes, _U[28], out=other)
    few = np.flatnonzero(rows < 1000)
    if len(few):
        hashes[few] = short[rows[few]]
    return hashes


def of_numbers(values: NDArray[Any], base: str) -> NDArray[np.uint64]:
    """Hash scalars of one kind by their bits (-0.0 is not 0.0); uint64 (n,)."""
    if base in ("bool", "bool_"):
        return np.where(values.astype(bool), np.uint64(_TRUE), np.uint64(_FALSE)) ^ np.uint64(base == "bool_")
    seed = np.uint64(_SEEDS.get(base) or xxh3_64_intdigest(base.encode()))
    return mix(bits(values) ^ seed)


def bits(values: NDArray[Any]) -> NDArray[np.uint64]:
    """Give numbers as their bits, -0.0 apart from 0.0; uint64 (n,)."""
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}").astype(np.uint64, copy=True)


_LENGTH = np.uint64(0x9E6C63D0876A9A47)
_FACTORS = [np.uint64(k) for k in (0x9FB21C651E98DF25, 0xD6E8FEB86659FD93, 0x8EBC6AF09C88C6E3)]


def of_arrays(base: str, values: NDArray[Any], offsets: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Hash arrays of rank 1 lightly: type, length, first, middle and last element; uint64 (n,)."""
    lengths = np.diff(offsets)
    out = lengths.view(np.uint64) * _LENGTH
    out += np.uint64(array_tag(base, 1))
    if not len(values):
        return out
    some = slice(None) if lengths.all() else np.flatnonzero(lengths)
    starts, sizes = offsets[:-1][some], lengths[some]
    at = np.empty((3, len(starts)), np.int64)
    at[0] = starts
    np.add(starts, sizes >> 1, out=at[1])
    np.add(starts, sizes - 1, out=at[2])
    found = bits(values.take(at, mode="clip"))  # at once and unchecked: a quarter less than three times by index
    for elements, factor in zip(found, _FACTORS, strict=True):
        elements *= factor  # noqa: PLW2901  (in place)
        out[some] += elements
    return out


@lru_cache(maxsize=4096)
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
        if value.ndim == 1:
            return int(of_arrays(base, np.ascontiguousarray(value), np.array([0, value.size], np.int64))[0])
        content = _one(np.ascontiguousarray(value).tobytes(), array_tag(base, value.ndim))
        return content ^ xxh3_64_intdigest(np.asarray(value.shape, np.int64).tobytes())
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
        term = mix(hashes + np.uint64(name_hash(name)))
        rows += term if present is None else np.where(present, term, np.uint64(0))
    return mix(rows)
