"""Lays out the documents of several micro-batches that were read in one call.

Decides when that is the same as laying out each alone: one flat row, or rows of one fixed width, and nothing unusual
in between. Saves most of the cost a call. Knows no plan and no step.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.core.sample import IGNORE_INDEX, offsets_of
from thalweg.feed.batch import Collator
from thalweg.feed.gather import Documents
from thalweg.plan.labels import count_labels, loss_mask, span_bounds
from thalweg.plan.rows import RowArrays, positions

Ints = NDArray[np.int64]


def can(collator: Collator, documents: Documents, bounds: Sequence[int]) -> bool:
    """Say whether several micro-batches can be laid out together: rows bounds[i] to bounds[i + 1] each."""
    if not collator.together or documents.tokens is None or documents.samples is not None:
        return False
    if not documents.num_tokens:
        return False
    if collator.stage.pad != "none":
        return True
    edges = documents.tokens.offsets[documents.offsets[np.asarray(bounds)]]
    return bool((edges[1:] > edges[:-1]).all())  # a flat row without a token still has one place


def lay_out_together(
    collator: Collator, documents: Documents, bounds: Sequence[int], width: int | None = None
) -> list[RowArrays]:
    """Give the arrays of rows bounds[i] to bounds[i + 1], for each i: views of arrays that they share.

    Args:
        collator: decides padding and width; `can` said yes.
        documents: of all micro-batches.
        bounds: first row of each micro-batch, and the end.
        width: tokens of a row; None takes the stage's.
    """
    if collator.stage.pad == "none":
        return list(_flat_rows(collator, documents, bounds))
    return list(_wide_rows(collator.arrays(documents, 0, width), documents, bounds))


def _wide_rows(whole: RowArrays, documents: Documents, bounds: Sequence[int]) -> Iterator[RowArrays]:
    assert documents.tokens is not None
    docs = documents.offsets[np.asarray(bounds)]  # documents before each micro-batch
    cuts = np.searchsorted(whole.cu_seqlens, np.asarray(bounds) * whole.input_ids.shape[1])
    labels = _label_counts(documents, docs, whole.labels)
    longest = _longest(np.diff(whole.cu_seqlens), cuts)
    c, e = cuts.tolist(), documents.tokens.offsets[docs].tolist()
    for i in range(len(bounds) - 1):
        rows = slice(bounds[i], bounds[i + 1])
        yield RowArrays(
            input_ids=whole.input_ids[rows],
            labels=whole.labels[rows],
            position_ids=whole.position_ids[rows],
            cu_seqlens=whole.cu_seqlens[c[i] : c[i + 1] + 1] - whole.cu_seqlens[c[i]],
            max_seqlen=longest[i],
            lengths=whole.lengths[rows],
            weight=whole.weight[rows],
            num_tokens=e[i + 1] - e[i],
            num_label_tokens=labels[i],
            row_tokens=whole.row_tokens[rows],
            packed=whole.packed,
            pad=whole.pad,
        )


def _flat_rows(collator: Collator, documents: Documents, bounds: Sequence[int]) -> Iterator[RowArrays]:
    tokens = documents.tokens
    assert tokens is not None
    docs = documents.offsets[np.asarray(bounds)]
    marked = documents.labels is not None or documents.spans is not None
    counts = _label_counts(documents, docs, None) if marked else []
    lengths, borders = tokens.lengths, tokens.offsets.astype(np.int32)
    ends, sizes = tokens.offsets[docs], np.diff(tokens.offsets[documents.offsets])
    full = lengths > 0
    if not full.all():  # a document without a token has no segment
        docs, lengths, borders = offsets_of(full)[docs], lengths[full], borders[np.append(full, True)]
    longest, weight, places = _longest(lengths, docs), (sizes > 0).astype(np.float32), np.diff(ends)
    ids, labels, position = _flat_arrays(collator, documents, lengths, borders[:-1])
    if not marked:  # all tokens but the first of each document
        counts = (places - np.diff(docs)).tolist()
    ids, labels, position = ids[None], labels[None], position[None]
    d, e = docs.tolist(), ends.tolist()
    for i in range(len(bounds) - 1):
        rows, part = slice(bounds[i], bounds[i + 1]), slice(e[i], e[i + 1])
        yield RowArrays(
            input_ids=ids[:, part],
            labels=labels[:, part],
            position_ids=position[:, part],
            cu_seqlens=borders[d[i] : d[i + 1] + 1] - e[i],
            max_seqlen=longest[i],
            lengths=places[i : i + 1],
            weight=weight[rows],
            num_tokens=e[i + 1] - e[i],
            num_label_tokens=counts[i],
            row_tokens=sizes[rows],
            packed=True,
            pad="none",
        )


def _flat_arrays(
    collator: Collator, documents: Documents, lengths: Ints, starts: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Give ids, labels and positions of all documents end to end: memory of their own, handed over in parts."""
    tokens, dtype = documents.tokens, collator.dtype
    assert tokens is not None
    ids = tokens.values if documents.own and tokens.values.dtype == dtype else tokens.values.astype(dtype)
    if collator.dialect is not None and collator.dialect.ids_alone:
        return ids, ids, ids
    if documents.labels is not None:
        labels = documents.labels.values.astype(dtype)
    elif documents.spans is not None:
        mask = loss_mask(span_bounds(documents.spans, tokens.lengths, tokens.offsets[:-1]), len(ids))
        labels = np.where(mask, ids, ids.dtype.type(IGNORE_INDEX))
    else:
        labels = ids.copy()
    labels[starts] = IGNORE_INDEX
    return ids, labels, positions(lengths, dtype) if documents.positions is None else documents.positions


def _longest(sizes: NDArray[Any], cuts: Ints) -> list[int]:
    """Give the longest segment between borders, of which each has one."""
    out: list[int] = np.maximum.reduceat(sizes, cuts[:-1]).tolist()
    return out


def _label_counts(documents: Documents, docs: Ints, laid: NDArray[np.int64] | None) -> list[int]:
    """Count the tokens in the loss of each micro-batch; `laid`: labels as they were laid out in rows."""
    assert documents.tokens is not None
    if documents.labels is None:
        counts = offsets_of(count_labels(documents.spans, documents.tokens.lengths))
        return _steps(counts[docs])
    if laid is not None:
        real = offsets_of(laid.reshape(-1) != IGNORE_INDEX)
        return _steps(real[np.searchsorted(documents.offsets, docs) * laid.shape[1]])
    values, tokens = documents.labels.values, documents.tokens
    real = offsets_of(values != IGNORE_INDEX)
    starts = tokens.offsets[:-1][tokens.lengths > 0]  # the first token of a document is never in the loss
    firsts = offsets_of(np.bincount(starts[values[starts] != IGNORE_INDEX], minlength=len(values)))
    ends = tokens.offsets[docs]
    return _steps(real[ends] - firsts[ends])


def _steps(sums: Ints) -> list[int]:
    out: list[int] = np.diff(sums).tolist()
    return out
