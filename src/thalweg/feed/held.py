"""Samples in memory as a source: what a cache without a path holds, and what a rehearsal is given.

Decides how samples that are already made are read by index. Knows no function, order or rank.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.core.sample import IGNORE_INDEX, INPUT_IDS, LABELS, LOSS_SPANS, Sample
from thalweg.core.state import digest
from thalweg.feed.source import Columns, columns_of, hash_ids

Ints = NDArray[np.int64]


class Held:
    """Samples in memory, with their own ids.

    Args:
        rows: the samples.
        ids: of each.
        lineage: of the data that they were made of.
        fingerprint: identity of their content; None takes the ids.
    """

    def __init__(
        self,
        rows: Sequence[Sample],
        ids: Sequence[str],
        lineage: Mapping[str, Any] | None = None,
        fingerprint: str | None = None,
    ) -> None:
        self.rows, self._ids = list(rows), list(ids)
        self.lineage: Mapping[str, Any] = lineage or {}
        self.fingerprint = fingerprint or digest(self._ids)
        tokens = all(INPUT_IDS in r for r in self.rows)
        self.lengths: NDArray[np.int32] | None = None
        self.facts: Mapping[str, NDArray[Any]] = {}
        if tokens:
            self.lengths = np.array([len(r[INPUT_IDS]) for r in self.rows], np.int32)
            self.facts = {"length": self.lengths, "label_tokens": np.array([_trained(r) for r in self.rows], np.int32)}

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Columns of the first sample."""
        return tuple(self.rows[0]) if self.rows else None

    def read(self, indices: Ints, columns: Sequence[str] | None = None) -> Columns:
        """Read samples."""
        rows = [self.rows[i] for i in indices.tolist()]
        return columns_of(rows if columns is None else [{c: r[c] for c in columns if c in r} for r in rows])

    def ids(self, indices: Ints) -> list[str]:
        """Give ids."""
        return [self._ids[i] for i in indices.tolist()]

    def id_hashes(self, indices: Ints) -> NDArray[np.uint64]:
        """Hash ids."""
        return hash_ids(self.ids(indices))


def _trained(row: Sample) -> int:
    """Count the tokens of a sample that are in the loss; the first never is."""
    n = len(row[INPUT_IDS])
    if row.get(LABELS) is not None:
        return int(np.count_nonzero(np.asarray(row[LABELS])[1:] != IGNORE_INDEX))
    if row.get(LOSS_SPANS) is not None:
        spans = np.maximum(np.asarray(row[LOSS_SPANS]).reshape(-1, 2), 1)
        return int((spans[:, 1] - spans[:, 0]).sum())
    return max(n - 1, 0)


def bytes_of(value: Any) -> int:
    """Give the bytes of a value's content: arrays, text, and what holds them."""
    if isinstance(value, Mapping):
        return sum(map(bytes_of, value.values()))
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, list | tuple):
        return sum(map(bytes_of, value)) + 8 * len(value)
    return int(getattr(value, "nbytes", 8))
