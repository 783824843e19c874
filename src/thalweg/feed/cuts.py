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
        ends = np.full(len(rows), stop, np.int64)
        return labels_of_pieces(self.leaves, self.source[rows], self.index[rows], np.zeros_like(ends), ends)


def labels_of_pieces(leaves: Sequence[Leaf], source: NDArray[np.int32], index: Ints, start: Ints, stop: Ints) -> Ints:
    """Count the tokens in the loss of pieces of samples from the spans or labels that are stored, int64 (k,).

    Args:
        leaves: the sources.
        source: int32 (k,), source of each piece's sample.
        index: int64 (k,), its index there.
        start: int64 (k,), first token of each piece; never in the loss, for nothing in the piece precedes it.
        stop: int64 (k,), end of each piece.
    """
    most: Ints = np.maximum(stop - start - 1, 0)
    out = most.copy()
    for s, leaf in enumerate(leaves):
        mine = np.flatnonzero(source == s)
        if len(mine):
            out[mine] = np.minimum(_kept(leaf, index[mine], start[mine], stop[mine]), most[mine])
    return out


def _kept(leaf: Leaf, index: Ints, start: Ints, stop: Ints) -> Ints:
    columns = leaf.source.columns
    wanted = next((c for c in (LABELS, LOSS_SPANS) if columns is None or c in columns), None)
    everything = stop - start
    if wanted is None:
        return everything
    values: Any = leaf.source.read(index, [wanted] if columns is not None else [LABELS, LOSS_SPANS])
    labels, spans = values.get(LABELS), values.get(LOSS_SPANS)
    if labels is not None:
        pairs = zip(labels, start.tolist(), stop.tolist(), strict=True)
        return np.array([np.count_nonzero(np.asarray(row)[a + 1 : b] != IGNORE_INDEX) for row, a, b in pairs], np.int64)
    if spans is None:
        return everything
    if not isinstance(spans, Ragged):
        spans = Ragged.from_rows([np.asarray(row, np.int32).reshape(-1, 2) for row in spans], np.int32)
    return count_labels(cut_spans(spans, start, stop), everything)
