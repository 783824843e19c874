"""A permutation of any size without a table: position -> value and back, in constant memory.

Decides the order of a shuffled source: a keyed Feistel network on a grid of a x b >= n cells, walked again for the
few values outside n (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002). Knows no data, and no
seed but the key that it is given.
"""

from collections.abc import Callable
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.core.seeds import Key, generator

ROUNDS = 4
CHUNK = 1 << 15  # positions computed at once, so that all temporaries stay in the second-level cache
TABLE = 1 << 14  # up to here a drawn table is no larger than the temporaries, and mixed better than by any cipher
NARROW = 1 << 30  # up to here halves have at most 15 bits and all arithmetic fits 32


class Permutation:
    """A bijection of range(n), chosen by the key.

    Args:
        n: size, 0 <= n < 2**60.
        key: str, int, float, bool or None, any number of them.

    Memory does not depend on n. About 10 ns an index in calls of 32,768 positions or more.
    """

    __slots__ = ("_a", "_b", "_keys", "_table", "_word", "n")

    def __init__(self, n: int, *key: Key) -> None:
        if not 0 <= n < 1 << 60:
            raise ValueError(f"a permutation of {n} values")
        self.n = n
        draw = generator("permutation", n, *key)
        self._table: NDArray[np.int64] | None = draw.permutation(n) if n <= TABLE else None
        self._word: Any = np.uint32 if n <= NARROW else np.uint64
        self._b = max(isqrt(max(n - 1, 0)) + 1, 1)
        self._a = -(-n // self._b) or 1
        high = np.iinfo(self._word).max
        self._keys = draw.integers(0, high, (ROUNDS, 3), self._word, endpoint=True) | self._word(1)

    def __call__(self, positions: Any) -> NDArray[np.int64]:
        """Give the values at positions (any shape of integers in [0, n)), int64, same shape."""
        if self._table is not None:
            return self._table[np.asarray(positions, np.int64)]
        return self._chunked(positions, self._forward)

    def inverse(self, values: Any) -> NDArray[np.int64]:
        """Give the positions of values, int64, same shape."""
        if self._table is not None:
            back = np.empty(self.n, np.int64)
            back[self._table] = np.arange(self.n)
            return back[np.asarray(values, np.int64)]
        return self._chunked(values, self._backward)

    def _chunked(self, given: Any, step: Callable[[NDArray[Any]], NDArray[Any]]) -> NDArray[np.int64]:
        asked = np.asarray(given, np.int64)
        flat = asked.reshape(-1)
        out = np.empty(len(flat), np.int64)
        for at in range(0, len(flat), CHUNK):
            part = step(flat[at : at + CHUNK].astype(self._word))
            outside = np.flatnonzero(part >= self.n)
            while len(outside):
                again = step(part[outside])
                part[outside] = again
                outside = outside[again >= self.n]
            out[at : at + CHUNK] = part
        return out.reshape(asked.shape)

    def _forward(self, x: NDArray[Any]) -> NDArray[Any]:
        """Walk the rounds once; x is overwritten."""
        a, b = self._word(self._a), self._word(self._b)
        left = x // b
        right = x - left * b
        hashed, spare = np.empty_like(x), np.empty_like(x)
        for i in range(ROUNDS):
            if i % 2 == 0:
                self._hash(right, i, a, hashed, spare)
                left += hashed
                np.minimum(left, np.subtract(left, a, out=spare), out=left)  # left mod a: unsigned, so below a it wraps
            else:
                self._hash(left, i, b, hashed, spare)
                right += hashed
                np.minimum(right, np.subtract(right, b, out=spare), out=right)
        left *= b
        left += right
        joined: NDArray[Any] = left
        return joined

    def _backward(self, x: NDArray[Any]) -> NDArray[Any]:
        """Undo the rounds."""
        a, b = self._word(self._a), self._word(self._b)
        left = x // b
        right = x - left * b
        hashed, spare = np.empty_like(x), np.empty_like(x)
        for i in reversed(range(ROUNDS)):
            if i % 2 == 0:
                self._hash(right, i, a, hashed, spare)
                left -= hashed
                np.minimum(left, np.add(left, a, out=spare), out=left)
            else:
                self._hash(left, i, b, hashed, spare)
                right -= hashed
                np.minimum(right, np.add(right, b, out=spare), out=right)
        left *= b
        left += right
        joined: NDArray[Any] = left
        return joined

    def _hash(self, half: NDArray[Any], i: int, size: Any, out: NDArray[Any], spare: NDArray[Any]) -> None:
        """Hash a half to [0, size) with the keys of round i: two multiplications and a fold, high bits scaled."""
        add, first, second = self._keys[i]
        bits = self._word(self._word().itemsize * 4)
        np.add(half, add, out=out)
        out *= first
        np.right_shift(out, self._word(bits - 1), out=spare)
        out ^= spare
        out *= second
        out >>= bits
        out *= size
        out >>= bits


WINDOW = 16  # blocks that are mixed with each other in a local permutation


class LocalPermutation:
    """A bijection of range(n) that keeps neighbours near: blocks permuted, then samples within windows of blocks.

    For data that is far away: a window's blocks are read while it lasts, and no others.

    Args:
        n: size.
        block: samples of a block, at least 1; a last, shorter block stays last.
        key: as for `Permutation`.

    `randomness` is the share of the data that a sample may meet within its window: 1.0 is a free permutation.
    """

    __slots__ = ("_blocks", "_key", "_span", "_tail", "_whole", "_windows", "block", "n")

    def __init__(self, n: int, block: int, *key: Key) -> None:
        if block < 1:
            raise ValueError(f"blocks of {block} samples")
        self.n, self.block, self._key = n, block, key
        self._whole = n // block * block
        self._span = WINDOW * block
        self._blocks = Permutation(n // block, "blocks", *key)
        self._tail = Permutation(n - self._whole, "tail", *key)
        self._windows: dict[int, Permutation] = {}

    @property
    def randomness(self) -> float:
        """Share of the data in a window."""
        return min(self._span / self.n, 1.0) if self.n else 1.0

    def _window(self, number: int) -> Permutation:
        if number not in self._windows:
            if len(self._windows) > 4:
                self._windows.clear()
            size = min(self._span, self._whole - number * self._span)
            self._windows[number] = Permutation(size, "window", number, *self._key)
        return self._windows[number]

    def _mixed(self, places: NDArray[np.int64], *, forward: bool) -> NDArray[np.int64]:
        """Permute places within their windows."""
        out = np.empty_like(places)
        numbers = places // self._span
        for number in np.unique(numbers).tolist():
            mine = np.flatnonzero(numbers == number)
            window, start = self._window(number), number * self._span
            inside = places[mine] - start
            out[mine] = start + (window(inside) if forward else window.inverse(inside))
        return out

    def __call__(self, positions: Any) -> NDArray[np.int64]:
        """Give the values at positions, int64, same shape."""
        asked = np.asarray(positions, np.int64)
        flat = asked.reshape(-1)
        out = np.empty_like(flat)
        tail = flat >= self._whole
        out[tail] = self._whole + self._tail(flat[tail] - self._whole)
        mixed = self._mixed(flat[~tail], forward=True)
        out[~tail] = self._blocks(mixed // self.block) * self.block + mixed % self.block
        return out.reshape(asked.shape)

    def inverse(self, values: Any) -> NDArray[np.int64]:
        """Give the positions of values, int64, same shape."""
        asked = np.asarray(values, np.int64)
        flat = asked.reshape(-1)
        out = np.empty_like(flat)
        tail = flat >= self._whole
        out[tail] = self._whole + self._tail.inverse(flat[tail] - self._whole)
        there = flat[~tail]
        places = self._blocks.inverse(there // self.block) * self.block + there % self.block
        out[~tail] = self._mixed(places, forward=False)
        return out.reshape(asked.shape)
