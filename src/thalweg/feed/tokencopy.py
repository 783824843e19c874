"""Tokens that lie in mapped memory, and the positions of their rows, copied in one call that holds no lock.

Decides what is made ready beforehand, in the thread that plans, so that a thread beside it can copy while the training
loop runs Python. Knows no plan and no padding.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.core.sample import Ragged, offsets_of
from thalweg.plan.rows import counting
from thalweg.store.records.gather import ready
from thalweg.store.records.token_ids import Places


class TokenCopy:
    """What is to be copied.

    Args:
        found: where the tokens of documents lie.
        segments: int64 (s,), places of each segment of their rows, for positions; None: no positions.
        dtype: of the positions.
        rows: rows of one width that the segments fill; None: they lie in flat rows.
    """

    def __init__(
        self, found: Places, segments: NDArray[np.int64] | None, dtype: np.dtype[Any], *, rows: int | None = None
    ) -> None:
        self._offsets, self._width = offsets_of(found.sizes), np.dtype(found.width)
        self._dtype, self._rows = dtype, rows
        parts = [(found.addresses, found.sizes * np.int64(self._width.itemsize))]
        self._ahead = 0  # bytes of positions, which come first: theirs is the wider type
        self._template: NDArray[Any] | None = None  # kept until it was copied from
        if segments is not None:
            self._template = counting(int(segments.max()), dtype)
            starts = np.full(len(segments), self._template.__array_interface__["data"][0], np.int64)
            parts.insert(0, (starts, segments * np.int64(dtype.itemsize)))
            self._ahead = int(segments.sum()) * dtype.itemsize
        self._copy = ready(*parts)

    def __call__(self) -> tuple[Ragged, NDArray[Any] | None]:
        """Give the tokens, int32, and the positions: (T,) or (rows, L); None where not asked for."""
        made = self._copy()
        tokens = Ragged(made[self._ahead :].view(self._width).astype(np.int32, copy=False), self._offsets)
        if self._template is None:
            return tokens, None
        flat = made[: self._ahead].view(self._dtype)
        return tokens, flat if self._rows is None else flat.reshape(self._rows, -1)
