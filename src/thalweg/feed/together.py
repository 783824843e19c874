"""Lays out the documents of several micro-batches in one pass, and cuts the arrays into one view a batch.

Decides when that is the same as laying out each alone: one flat row, or rows of one fixed width, and nothing unusual
in between. Saves most of the cost a call. Knows no plan and no step.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from thalweg.core.sample import IGNORE_INDEX
from thalweg.feed.batch import Collator
from thalweg.feed.gather import Documents
from thalweg.plan.labels import count_labels, loss_mask, span_bounds
from thalweg.plan.rows import RowArrays

Ints = NDArray[np.int64]


def can(collator: Collator, documents: Documents) -> bool:
    """Say whether several micro-batches can be laid out together."""
    if collator.dialect is None or documents.tokens is None or documents.samples is not None:
        return False
    if collator.row_maps:
        return False
    pack = collator.pack
    if pack is not None and (pack.align != 1 or pack.max_docs is not None or pack.overlong == "alone"):
        return False
    if not len(documents.tokens.values) or collator.multiple != 1:
        return False
    return bool(collator.stage.pad == "none" or pack is not None)


def lay_out_together(
    collator: Collator, documents: Documents, bounds: Sequence[int], width: int | None = None
) -> list[RowArrays]:
    """Give the arrays of rows bounds[i] to bounds[i + 1], for each i, as views of shared arrays.

    Args:
        collator: decides padding and width; `can` said yes.
        documents: of all micro-batches.
        bounds: first row of each micro-batch, and the end.
        width: tokens of a row; None takes the stage's.
    """
    flat = collator.stage.pad == "none"
    whole = _flat(documents) if flat else collator.arrays(documents, 0, width)
    docs = documents.offsets[np.asarray(bounds)]  # documents before each micro-batch
    assert documents.tokens is not None
    ends = documents.tokens.offsets[docs]
    places = ends if flat else np.asarray(bounds) * whole.input_ids.shape[1]
    cuts = np.searchsorted(whole.cu_seqlens, places)
    labels = _label_counts(documents, docs, whole)
    sizes = np.diff(whole.cu_seqlens)
    longest = np.maximum.reduceat(sizes, np.minimum(cuts[:-1], len(sizes) - 1)).tolist()
    out: list[RowArrays] = []
    p, c, e = places.tolist(), cuts.tolist(), ends.tolist()
    for i in range(len(bounds) - 1):
        a, b = bounds[i], bounds[i + 1]
        rows = slice(p[i], p[i + 1]) if flat else slice(a, b)
        out.append(
            RowArrays(
                input_ids=_cut(whole.input_ids, rows, flat=flat),
                labels=_cut(whole.labels, rows, flat=flat),
                position_ids=_cut(whole.position_ids, rows, flat=flat),
                cu_seqlens=whole.cu_seqlens[c[i] : c[i + 1] + 1] - whole.cu_seqlens[c[i]],
                max_seqlen=longest[i],
                lengths=np.array([e[i + 1] - e[i]]) if flat else whole.lengths[a:b],
                weight=whole.weight[a:b],
                num_tokens=e[i + 1] - e[i],
                num_label_tokens=labels[i],
                row_tokens=whole.row_tokens[a:b],
                packed=whole.packed,
                pad=whole.pad,
            )
        )
    return out


def _flat(documents: Documents) -> RowArrays:
    """Lay all documents out as one flat row, in as few passes over memory as there are arrays."""
    tokens = documents.tokens
    assert tokens is not None
    lengths = tokens.lengths
    full = lengths > 0
    starts = tokens.offsets[:-1] if full.all() else tokens.offsets[:-1][full]
    ids = tokens.values.astype(np.int64)
    if documents.labels is not None:
        labels = documents.labels.values.astype(np.int64)
        labels[starts] = IGNORE_INDEX
    elif documents.spans is not None:
        mask = loss_mask(span_bounds(documents.spans, lengths, tokens.offsets[:-1]), len(ids))
        labels = np.full(len(ids), IGNORE_INDEX, np.int64)
        np.copyto(labels, ids, where=mask)
    else:
        labels = tokens.values.astype(np.int64)
        labels[starts] = IGNORE_INDEX
    ends = np.append(starts, len(ids)).astype(np.int32)
    sizes = np.add.reduceat(lengths, documents.offsets[:-1]) if len(lengths) else lengths
    return RowArrays(
        input_ids=ids[None],
        labels=labels[None],
        position_ids=positions(lengths[full])[None],
        cu_seqlens=ends,
        max_seqlen=int(lengths.max(initial=0)),
        lengths=np.array([len(ids)]),
        weight=(sizes > 0).astype(np.float32),
        num_tokens=len(ids),
        num_label_tokens=0,  # counted for each micro-batch
        packed=True,
        pad="none",
        row_tokens=sizes,
    )


_counting = np.arange(8192)  # positions from 0, copied from for every document


def positions(lengths: Ints) -> Ints:
    """Give 0, 1, ... anew for each length, int64 (sum of lengths,): slices of one template joined, 0.6 ns a token."""
    global _counting  # noqa: PLW0603  (a template that only grows; any thread may replace it by a longer one)
    longest = int(lengths.max(initial=0))
    if longest > len(_counting):
        _counting = np.arange(longest)
    template = memoryview(_counting.data).cast("B")
    return np.frombuffer(bytearray().join([template[: 8 * n] for n in lengths.tolist()]), np.int64)


def _cut(values: NDArray[np.int64], rows: slice, *, flat: bool) -> NDArray[np.int64]:
    return values[:, rows] if flat else values[rows]


def _label_counts(documents: Documents, docs: Ints, whole: RowArrays) -> list[int]:
    """Count the tokens in the loss of each micro-batch."""
    assert documents.tokens is not None
    if documents.labels is not None:
        real = np.zeros(whole.labels.size + 1, np.int64)
        np.cumsum(whole.labels.reshape(-1) != IGNORE_INDEX, out=real[1:])
        width = whole.labels.shape[1]
        if whole.labels.shape[0] == 1:
            return _steps(real[documents.tokens.offsets[docs]])
        rows = np.searchsorted(documents.offsets, docs)
        return _steps(real[rows * width])
    counts = np.zeros(len(documents.tokens) + 1, np.int64)
    np.cumsum(count_labels(documents.spans, documents.tokens.lengths), out=counts[1:])
    return _steps(counts[docs])


def _steps(sums: Ints) -> list[int]:
    out: list[int] = np.diff(sums).tolist()
    return out
