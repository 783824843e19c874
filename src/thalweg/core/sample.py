"""What a sample and a column of many samples are.

A sample is a dict of column name to value. Decides the names of the standard columns and the form in which many
rows of one column travel (`Ragged`). Knows no file, tokenizer or tensor.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Sample: TypeAlias = dict[str, Any]

INPUT_IDS = "input_ids"  # int32 (n,)
LABELS = "labels"  # int64 (n,), unshifted, IGNORE_INDEX off the loss; online only
LOSS_SPANS = "loss_spans"  # int32 (k, 2): half-open token ranges in the loss; at rest instead of labels
IGNORE_INDEX = -100


class Absent:
    """The mark of a row that does not have the key at all; None is a value. One to a process, however it is copied."""

    def __repr__(self) -> str:
        """Name itself."""
        return "ABSENT"

    def __reduce__(self) -> str:
        """Pickle and copy as the one that there is."""
        return "ABSENT"


ABSENT = Absent()


def offsets_of(sizes: Sequence[int] | NDArray[Any]) -> NDArray[np.int64]:
    """Give the borders of ranges of these sizes end to end, int64 (k + 1,)."""
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """Rows of different lengths in one flat array.

    Args:
        values: (T, ...) the rows end to end.
        offsets: int64 (n + 1,), rising from 0 to T; row i is values[offsets[i]:offsets[i + 1]].
    """

    values: NDArray[Any]
    offsets: NDArray[np.int64]

    def __len__(self) -> int:
        """Count the rows."""
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> NDArray[Any]:
        """Give a view of one row; negative rows count from the end."""
        n = len(self)
        if not -n <= row < n:
            raise IndexError(f"row {row} of {n}")
        row %= n
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    def __iter__(self) -> Iterator[NDArray[Any]]:
        """Give a view of each row in order."""
        bounds = self.offsets.tolist()
        for a, b in pairwise(bounds):
            yield self.values[a:b]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Length of each row, int64 (n,)."""
        return self.offsets[1:] - self.offsets[:-1]

    @classmethod
    def from_rows(cls, rows: Sequence[Any], dtype: Any = None) -> "Ragged":
        """Lay rows end to end (one copy). No rows give an empty column of `dtype`."""
        arrays = [np.asarray(r, dtype=dtype) for r in rows]
        values = np.concatenate(arrays) if arrays else np.empty(0, dtype or np.int32)
        return cls(values, offsets_of([len(a) for a in arrays]))
