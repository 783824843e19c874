"""How many bytes a value holds, near enough to bound memory and cheap enough to ask of every item.

Decides what counts. Knows arrays by their `nbytes`, never by their library.
"""

from typing import Any

_PLAIN = frozenset({int, float, bool, complex, type(None)})
_FLAT = frozenset({str, bytes, bytearray})


def size_of(value: Any) -> int:
    """Estimate the bytes that a value keeps in memory, containers included.

    Numbers count 32, text and bytes their length and 64, arrays and tensors their `nbytes` and 128; pictures their
    pixels. Anything else counts 64: an object that hides a buffer should have `nbytes`.
    """
    kind = type(value)
    if kind in _PLAIN:
        return 32
    if kind in _FLAT:
        return len(value) + 64
    if kind is dict:
        return 64 + sum(map(size_of, value.values())) + 64 * len(value)
    if kind is list or kind is tuple:
        if value and type(value[0]) in _PLAIN:
            return 64 + 40 * len(value)
        return 64 + sum(map(size_of, value))
    nbytes = getattr(value, "nbytes", None)
    if isinstance(nbytes, int):
        return nbytes + 128
    pixels, bands = getattr(value, "size", None), getattr(value, "getbands", None)
    if bands is not None and isinstance(pixels, tuple):
        return int(pixels[0] * pixels[1] * len(bands()))
    return 64
