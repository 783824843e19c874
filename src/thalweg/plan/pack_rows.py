"""What a packing plan is: rows as a permutation of document indices and offsets. Tokens are never part of it.

Decides how rows, pieces of documents and row lengths are written down and checked. Knows no policy.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from thalweg.core.errors import InputError
from thalweg.core.sample import offsets_of

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Which part of its document stands at each place of a plan: tokens [start, stop).

    Args:
        start: int64 (n,), 0 where the piece is the first of its document.
        stop: int64 (n,), above start.
    """

    start: Ints
    stop: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Packed rows: row i holds the documents order[offsets[i]:offsets[i + 1]], in token order.

    Args:
        order: int64 (n,), document indices, row after row.
        offsets: int64 (r + 1,), rising from 0 to n.
        pieces: parts of documents, one for each place of `order`; None where all documents are whole.
        capacities: int64 (r,), tokens that each row may hold; None where all rows have the capacity asked for.
    """

    order: Ints
    offsets: Ints
    pieces: Pieces | None = None
    capacities: Ints | None = None

    def __len__(self) -> int:
        """Count the rows."""
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> Ints:
        """Give the document indices of one row; negative rows count from the end."""
        n = len(self)
        if not -n <= row < n:
            raise IndexError(f"row {row} of {n}")
        row %= n
        return self.order[self.offsets[row] : self.offsets[row + 1]]

    def __iter__(self) -> Iterator[Ints]:
        """Give the document indices of each row in order."""
        for a, b in pairwise(self.offsets.tolist()):
            yield self.order[a:b]

    @property
    def documents(self) -> Ints:
        """Documents (or pieces) of each row, int64 (r,)."""
        return np.diff(self.offsets)

    def piece_lengths(self, lengths: ArrayLike) -> Ints:
        """Give the tokens at each place of `order`, int64 (n,); lengths: of all documents."""
        if self.pieces is not None:
            return self.pieces.stop - self.pieces.start
        return np.asarray(lengths)[self.order].astype(np.int64, copy=False)

    def tokens(self, lengths: ArrayLike) -> Ints:
        """Give the tokens of each row, int64 (r,)."""
        return np.diff(offsets_of(self.piece_lengths(lengths))[self.offsets])

    def take(self, rows: ArrayLike) -> "Rows":
        """Give some rows in another order, as a plan of their own."""
        wanted = np.asarray(rows, np.int64)
        at, offsets = ranges(self.offsets, wanted)
        pieces = None if self.pieces is None else Pieces(self.pieces.start[at], self.pieces.stop[at])
        return Rows(self.order[at], offsets, pieces, None if self.capacities is None else self.capacities[wanted])


def ranges(offsets: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """Give the places of some rows end to end, int64 (m,), and the offsets of those rows then.

    Args:
        offsets: int64 (r + 1,), where each row begins among all places.
        rows: int64 (k,), the rows wanted, in the order wanted.
    """
    counts = np.diff(offsets)[rows]
    out = offsets_of(counts)
    at = np.repeat(offsets[:-1][rows] - out[:-1], counts)
    at += np.arange(len(at))
    return at, out


def checked(lengths: ArrayLike, capacity: int) -> NDArray[np.integer]:
    """Give lengths as an integer array, or refuse what can't be packed.

    Raises:
        InputError: lengths are not a flat array of integers, or one is below 1 or above the capacity.
    """
    array = np.asarray(lengths)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise InputError(f"lengths must be a flat array of integers, got {array.dtype} {array.shape}")
    if array.size == 0:
        return array.astype(np.int64)
    if array.min() < 1 or array.max() > capacity:
        bad = int(np.flatnonzero((array < 1) | (array > capacity))[0])
        raise InputError(
            f"document {bad} has {array[bad]} tokens and rows take 1 to {capacity}",
            fix="use plan.pack.plan(..., overlong=...), which decides on long ones and leaves out empty ones",
        )
    return array


def padded(lengths: NDArray[np.integer], align: int) -> NDArray[np.integer]:
    """Give lengths rounded up to a multiple of `align`."""
    return lengths if align == 1 else -(-lengths // align) * align
