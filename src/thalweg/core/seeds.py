"""Random numbers that depend on what they are for, never on who draws them or when.

A key is a tuple of str, int, float, bool or None. Decides how a key becomes a number. Never uses Python's `hash`,
which changes with PYTHONHASHSEED.
"""

from hashlib import blake2b
from typing import TypeAlias

import numpy as np

Key: TypeAlias = str | int | float | bool | None


def digest(*key: Key, size: int = 16) -> bytes:
    """Hash a key to `size` bytes (BLAKE2b, RFC 7693); 1 and "1" and True differ."""
    return blake2b(repr(key).encode("utf-8", "surrogatepass"), digest_size=size).digest()


def key64(*key: Key) -> int:
    """Hash a key to an integer in [0, 2**64)."""
    return int.from_bytes(digest(*key, size=8), "little")


def generator(*key: Key) -> np.random.Generator:
    """Give a numpy Generator that depends on the key alone."""
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest(*key), "little")))
