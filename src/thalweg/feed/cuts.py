"""What a cut leaves of documents that are longer than a row.

Decides how the tokens in the loss are counted after a cut: from the spans or labels that are stored. What becomes of
long documents is `plan.pack_cut`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.core.sample import IGNORE_INDEX, LABELS, LOSS_SPANS, Ragged
from thalweg.feed.mapped import Leaf
from thalweg.plan.labels import count_labels, cut_spans

Ints = NDArray[np.int64]


class LabelsAfterCut:
    """Counts the tokens in the loss that samples keep when they are cut to their first tokens.

    Args:
        leaves: the sources.
        source: int32 (n,), source of each sample.
        index: int64 (n,), its index there.
    """

    def __init__(self, leaves: Sequence[Leaf], source: NDArray[np.int32], index: Ints) -> None:
        self.leaves, self.source, self.index = leaves, source, index

    def __call__(self, rows: Ints, stop: int) -> Ints:
        """Count for some of the samples, int64 (k,)."""
        out = np.full(len(rows), max(stop - 1, 0), np.int64)
        for s, leaf in enumerate(self.leaves):
            mine = np.flatnonzero(self.source[rows] == s)
            if len(mine):
                out[mine] = np.minimum(_kept(leaf, self.index[rows[mine]], stop), out[mine])
        return out


def _kept(leaf: Leaf, index: Ints, stop: int) -> Ints:
    columns = leaf.source.columns
    wanted = next((c for c in (LABELS, LOSS_SPANS) if columns is None or c in columns), None)
    everything = np.full(len(index), stop, np.int64)
    if wanted is None:
        return everything
    values: Any = leaf.source.read(index, [wanted] if columns is not None else [LABELS, LOSS_SPANS])
    labels, spans = values.get(LABELS), values.get(LOSS_SPANS)
    if labels is not None:
        return np.array([np.count_nonzero(np.asarray(row)[1:stop] != IGNORE_INDEX) for row in labels], np.int64)
    if spans is None:
        return everything
    if not isinstance(spans, Ragged):
        spans = Ragged.from_rows([np.asarray(row, np.int32).reshape(-1, 2) for row in spans], np.int32)
    return count_labels(cut_spans(spans, np.zeros_like(everything), everything), everything)
