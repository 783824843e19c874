"""Lays out the documents of several micro-batches that were read in one call.

Decides when that is the same as laying out each alone: one flat row, or rows of one fixed width, and nothing unusual
in between. Saves most of the cost a call. Knows no plan and no step.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.core.sample import IGNORE_INDEX
from thalweg.feed.batch import Collator
from thalweg.feed.gather import Documents
from thalweg.plan.labels import count_labels, loss_mask, span_bounds
from thalweg.plan.rows import RowArrays, positions

Ints = NDArray[np.int64]


def can(collator: Collator, documents: Documents, bounds: Sequence[int]) -> bool:
    """Say whether several micro-batches can be laid out together: rows bounds[i] to bounds[i + 1] each."""
    if collator.dialect is None or documents.tokens is None or documents.samples is not None:
        return False
    if collator.row_maps:
        return False
    pack = collator.pack
    if pack is not None and (pack.align != 1 or pack.max_docs is not None or pack.overlong == "alone"):
        return False
    if not len(documents.tokens.values) or collator.multiple != 1:
        return False
    if collator.stage.pad != "none":
        return pack is not None
    edges = documents.tokens.offsets[documents.offsets[np.asarray(bounds)]]
    return bool((edges[1:] > edges[:-1]).all())  # a flat row without a token still has one place


def lay_out_together(
    collator: Collator, documents: Documents, bounds: Sequence[int], width: int | None = None
) -> Iterator[RowArrays]:
    """Give the arrays of rows bounds[i] to bounds[i + 1], for each i.

    One flat row is laid out when it is asked for: the memory of the batch before is still in the cache then, which
    halves the cost. Rows of one width are laid out at once and are views of shared arrays.

    Args:
        collator: decides padding and width; `can` said yes.
        documents: of all micro-batches.
        bounds: first row of each micro-batch, and the end.
        width: tokens of a row; None takes the stage's.
    """
    if collator.stage.pad == "none":
        return _flat_rows(documents, bounds)
    return _wide_rows(collator.arrays(documents, 0, width), documents, bounds)


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


def _flat_rows(documents: Documents, bounds: Sequence[int]) -> Iterator[RowArrays]:
    tokens = documents.tokens
    assert tokens is not None
    docs = documents.offsets[np.asarray(bounds)]
    lengths, starts = tokens.lengths, tokens.offsets[:-1]
    full = lengths > 0
    if not full.all():
        docs_full = np.append(0, np.cumsum(full))[docs]
        lengths, starts = lengths[full], starts[full]
    else:
        docs_full = docs
    counts, longest = _label_counts(documents, docs, None), _longest(lengths, docs_full)
    sums = np.append(0, np.cumsum(tokens.lengths))[documents.offsets]
    sizes = np.diff(sums)
    weight = (sizes > 0).astype(np.float32)
    in_loss = None if documents.labels is not None else _in_loss(documents)
    d, e = docs_full.tolist(), tokens.offsets[docs].tolist()
    for i in range(len(bounds) - 1):
        a, b, p, q = d[i], d[i + 1], e[i], e[i + 1]
        first = starts[a:b] - p
        ids, labels = _flat_pair(documents, p, q, first, in_loss)
        ends = np.empty(b - a + 1, np.int32)
        ends[:-1], ends[-1] = first, q - p
        yield RowArrays(
            input_ids=ids[None],
            labels=labels[None],
            position_ids=positions(lengths[a:b])[None],
            cu_seqlens=ends,
            max_seqlen=longest[i],
            lengths=np.array([q - p]),
            weight=weight[bounds[i] : bounds[i + 1]],
            num_tokens=q - p,
            num_label_tokens=counts[i],
            row_tokens=sizes[bounds[i] : bounds[i + 1]],
            packed=True,
            pad="none",
        )


def _flat_pair(
    documents: Documents, p: int, q: int, first: Ints, in_loss: NDArray[np.bool_] | None
) -> tuple[Ints, Ints]:
    """Give ids and labels of tokens p to q."""
    assert documents.tokens is not None
    values = documents.tokens.values[p:q]
    ids = values.astype(np.int64)
    if in_loss is not None:
        labels = np.full(q - p, IGNORE_INDEX, np.int64)
        np.copyto(labels, values, where=in_loss[p:q])
        return ids, labels
    labels = (values if documents.labels is None else documents.labels.values[p:q]).astype(np.int64)
    labels[first] = IGNORE_INDEX
    return ids, labels


def _in_loss(documents: Documents) -> NDArray[np.bool_] | None:
    """Say which tokens are in the loss, where spans say it."""
    if documents.spans is None:
        return None
    assert documents.tokens is not None
    tokens = documents.tokens
    return loss_mask(span_bounds(documents.spans, tokens.lengths, tokens.offsets[:-1]), len(tokens.values))


def _longest(sizes: NDArray[Any], cuts: Ints) -> list[int]:
    """Give the longest segment between borders; 0 where there is none."""
    if not len(sizes):
        return [0] * (len(cuts) - 1)
    most = np.maximum.reduceat(sizes, np.minimum(cuts[:-1], len(sizes) - 1))
    out: list[int] = np.where(np.diff(cuts) > 0, most, 0).tolist()
    return out


def _label_counts(documents: Documents, docs: Ints, laid: NDArray[np.int64] | None) -> list[int]:
    """Count the tokens in the loss of each micro-batch; `laid`: labels as they were laid out in rows."""
    assert documents.tokens is not None
    if documents.labels is None:
        counts = np.zeros(len(documents.tokens) + 1, np.int64)
        np.cumsum(count_labels(documents.spans, documents.tokens.lengths), out=counts[1:])
        return _steps(counts[docs])
    if laid is not None:
        real = np.zeros(laid.size + 1, np.int64)
        np.cumsum(laid.reshape(-1) != IGNORE_INDEX, out=real[1:])
        return _steps(real[np.searchsorted(documents.offsets, docs) * laid.shape[1]])
    values, tokens = documents.labels.values, documents.tokens
    real = np.zeros(len(values) + 1, np.int64)
    np.cumsum(values != IGNORE_INDEX, out=real[1:])
    starts = tokens.offsets[:-1][tokens.lengths > 0]  # the first token of a document is never in the loss
    firsts = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.bincount(starts[values[starts] != IGNORE_INDEX], minlength=len(values)), out=firsts[1:])
    ends = tokens.offsets[docs]
    return _steps(real[ends] - firsts[ends])


def _steps(sums: Ints) -> list[int]:
    out: list[int] = np.diff(sums).tolist()
    return out
