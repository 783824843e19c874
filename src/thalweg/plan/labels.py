"""Which tokens are in the loss: spans over tokens, and the two label conventions derived from them.

Unshifted labels (the model shifts inside) stand on the token itself; shifted ones stand one place to the left, on
the token that predicts it. Decides that a document's first token is never in the loss, since nothing precedes it.
Knows no tokenizer and no template.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.core.errors import SampleError
from thalweg.core.sample import IGNORE_INDEX, Ragged, offsets_of

Ints = NDArray[np.int64]


def span_bounds(spans: Ragged, lengths: Ints, starts: Ints) -> Ints:
    """Give the loss as places: [start, stop) pairs end to end, int64 (2 k,), rising.

    Args:
        spans: int (k, 2) of each document, half-open, rising, without overlap; counted in the document.
        lengths: int64 (n,), tokens of each document.
        starts: int64 (n,), place of each document's first token.

    Raises:
        SampleError: a span outside its document, out of order or overlapping the one before; the document is named.
    """
    pairs = spans.values.reshape(-1, 2).astype(np.int64)
    owner = np.repeat(np.arange(len(spans)), spans.lengths)
    bounds = (pairs + starts[owner, None]).reshape(-1)
    wrong = (pairs[:, 0] < 0) | (pairs[:, 1] > lengths[owner]) | (pairs[:, 1] < pairs[:, 0])
    if len(bounds) and (wrong.any() or (bounds[1:] < bounds[:-1]).any()):
        bad = int(np.flatnonzero(wrong | np.append(False, bounds[2::2] < bounds[1:-1:2]))[0])
        raise SampleError(
            f"loss span {pairs[bad].tolist()} of document {owner[bad]} does not fit its {lengths[owner[bad]]} tokens",
            fix="give half-open spans in rising order that do not overlap",
        )
    second = np.minimum(starts[owner] + 1, starts[owner] + lengths[owner])  # the first token has no predecessor
    clipped: Ints = np.maximum(bounds, np.repeat(second, 2))
    return clipped


def loss_mask(bounds: Ints, size: int) -> NDArray[np.bool_]:
    """Give the loss as a mask, bool (size,), from rising [start, stop) pairs."""
    edges = np.zeros(len(bounds) + 2, np.int64)
    edges[1:-1], edges[-1] = bounds, size
    runs = np.diff(edges)
    mask: NDArray[np.bool_] = np.repeat(np.arange(len(runs), dtype=np.int64) % 2 == 1, runs)
    return mask


def labels_from_spans(tokens: NDArray[np.integer], offsets: Ints, spans: Ragged | None) -> Ints:
    """Give unshifted labels: the token where it is in the loss, else -100.

    Args:
        tokens: int (T,), documents end to end.
        offsets: int64 (n + 1,), document i is tokens[offsets[i]:offsets[i + 1]].
        spans: int (k, 2) of each document; None: every token of every document.

    Returns:
        int64 (T,); -100 on the first token of each document.

    Raises:
        SampleError: a span that does not fit its document.
    """
    lengths, starts = np.diff(offsets), np.asarray(offsets[:-1], np.int64)
    if spans is None:
        labels = tokens.astype(np.int64)
        labels[starts[lengths > 0]] = IGNORE_INDEX
        return labels
    return np.where(loss_mask(span_bounds(spans, lengths, starts), len(tokens)), tokens, np.int64(IGNORE_INDEX))


def spans_from_labels(labels: NDArray[np.integer], offsets: Ints) -> Ragged:
    """Give the spans of labels that are not -100, int32 (k, 2) of each document; a span never crosses a border.

    Args:
        labels: int (T,), unshifted, documents end to end.
        offsets: int64 (n + 1,), borders of the documents.
    """
    size = len(labels)
    on = np.zeros(size + 2, np.int8)
    on[1:-1] = labels != IGNORE_INDEX
    before, after = on[:-1], on[1:]  # at place p: the token before and the token at p
    border = np.zeros(size + 1, np.bool_)
    border[offsets] = True
    starts = np.flatnonzero((after == 1) & ((before == 0) | border))
    stops = np.flatnonzero((before == 1) & ((after == 0) | border))
    owner = np.searchsorted(offsets, starts, side="right") - 1
    base = np.asarray(offsets, np.int64)[owner]
    pairs = np.stack([starts - base, stops - base], axis=1).astype(np.int32)
    bounds = np.zeros(len(offsets), np.int64)
    np.cumsum(np.bincount(owner, minlength=len(offsets) - 1), out=bounds[1:])
    return Ragged(pairs, bounds)


def cut_spans(spans: Ragged, start: Ints, stop: Ints) -> Ragged:
    """Give the spans of one piece [start, stop) of each document, counted from the piece's first token.

    Args:
        spans: int (k, 2) of each document.
        start: int64 (n,).
        stop: int64 (n,).
    """
    owner = np.repeat(np.arange(len(spans)), spans.lengths)
    pairs = spans.values.reshape(-1, 2).astype(np.int64)
    pairs = np.clip(pairs, start[owner, None], stop[owner, None]) - start[owner, None]
    kept = pairs[:, 1] > pairs[:, 0]
    bounds = offsets_of(np.bincount(owner[kept], minlength=len(spans)))
    return Ragged(pairs[kept].astype(np.int32), bounds)


def count_labels(spans: Ragged | None, lengths: Ints) -> Ints:
    """Count the tokens of each document in the loss after the shift, int64 (n,): its first token is never counted."""
    if spans is None:
        return np.maximum(np.asarray(lengths, np.int64) - 1, 0)
    pairs = np.maximum(spans.values.reshape(-1, 2).astype(np.int64), 1)
    owner = np.repeat(np.arange(len(spans)), spans.lengths)
    return np.bincount(owner, pairs[:, 1] - pairs[:, 0], len(lengths)).astype(np.int64)


def shift(labels: NDArray[Any], fill: int = IGNORE_INDEX) -> NDArray[Any]:
    """Give labels that stand on the token that predicts them: one place to the left in each row, `fill` at its end.

    Right for packed rows as they are: the first token of a document is off the loss, so the last token of the one
    before it predicts nothing.

    Args:
        labels: int (..., L), unshifted.
        fill: value of the last place.

    Returns:
        (..., L), a fresh array of the same type.
    """
    out = np.full(labels.shape, fill, labels.dtype)
    out[..., :-1] = labels[..., 1:]
    return out
