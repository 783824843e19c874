"""Nested values as bytes: lists, dicts, and what no typed column holds. MessagePack with three extensions.

Decides how such a value is written and that it comes back equal, type for type; refuses what would not.
Tuples come back as lists. Knows no file.
"""

import json
from typing import Any

import msgspec
import numpy as np

from thalweg.core.errors import SampleError

_ARRAY, _BIG = 1, 2


def _hook(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "iufb":
        kind = value.dtype.str.encode()
        head = bytes([len(kind), value.ndim, isinstance(value, np.generic)]) + kind
        shape = np.asarray(value.shape, np.int64).tobytes()
        return msgspec.msgpack.Ext(_ARRAY, head + shape + np.ascontiguousarray(value).tobytes())
    name = type(value).__name__
    raise SampleError(f"a value of type {name!r} has no place in a record", fix="make it numbers, text or lists")


def _ext(code: int, data: memoryview) -> Any:
    raw = bytes(data)
    if code == _BIG:
        return int.from_bytes(raw, "little", signed=True)
    if code != _ARRAY:
        raise SampleError(f"extension {code} of a nested value is unknown", fix="upgrade thalweg")
    name, rank, scalar = raw[0], raw[1], raw[2]
    shape = np.frombuffer(raw, np.int64, rank, offset=3 + name)
    array = np.frombuffer(raw, raw[3 : 3 + name].decode(), offset=3 + name + 8 * rank).reshape(shape)
    return array[()] if scalar else array


def utf8(text: str) -> bytes:
    """Write text as UTF-8.

    Raises:
        SampleError: it holds a lone surrogate; the character is named.
    """
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise SampleError(
            f"text with a lone surrogate at character {error.start} is no Unicode",
            fix='repair it: text.encode("utf-8", "replace").decode()',
        ) from error


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_hook)
_DECODER = msgspec.msgpack.Decoder(ext_hook=_ext)


def encode(value: Any) -> bytes:
    """Write a nested value.

    Raises:
        SampleError: a part of it (a set, a date, a Decimal, text that is no Unicode) would not come back as it was.
    """
    try:
        data = _ENCODER.encode(value)
        if _DECODER.decode(data) == value:
            return data
    except (OverflowError, ValueError, TypeError) as error:
        if isinstance(error, SampleError):
            raise
    return _ENCODER.encode(_checked(value))


def decode(data: Any) -> Any:
    """Read what `encode` wrote."""
    return _DECODER.decode(data)


def _checked(value: Any) -> Any:
    """Copy a value part by part: big integers get their extension, anything that would change its type is refused."""
    if value is None or isinstance(value, float | bool | bytes | np.ndarray | np.generic):
        return value
    if isinstance(value, int):
        if -(2**63) <= value < 2**64:
            return value
        return msgspec.msgpack.Ext(_BIG, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))
    if isinstance(value, str):
        utf8(value)
        return value
    if isinstance(value, list | tuple):
        return [_checked(v) for v in value]
    if isinstance(value, dict):
        return {_checked(k): _checked(v) for k, v in value.items()}
    return _hook(value)


def plain_json(value: Any) -> bytes:
    """Write a value as JSON, exactly.

    Raises:
        SampleError: bytes, arrays, NaN or infinity: JSON has no such values.
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise SampleError(f"no JSON value: {error}", fix="choose a format that holds it, such as records") from error
