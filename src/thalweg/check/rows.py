"""Batches of any library as rows: where documents begin and end, what is padding, where labels stand.

Decides how keys of Hugging Face, Megatron, torchtitan, LLaMA-Factory and LMMS Engine are read. Judges nothing.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.check.evidence import Row, Segment
from thalweg.core.sample import IGNORE_INDEX

Ints = NDArray[np.int64]
TOKENS = ("input_ids", "tokens", "input")


def rows_of(batch: Any) -> list[Row]:
    """Give the rows of a batch; none where it has no token ids of shape (B, L)."""
    values = flattened(batch)
    name = next((n for n in TOKENS if values.get(n) is not None), None)
    if name is None:
        return []
    ids = array(values[name])
    if ids.ndim != 2:
        return []
    info = getattr(batch, "info", None)
    shifted = bool(getattr(info, "labels_shifted", name != "input_ids"))
    labels = array(values["labels"]) if values.get("labels") is not None else None
    if labels is not None and values.get("loss_mask") is not None:
        labels = np.where(array(values["loss_mask"]) > 0, labels, IGNORE_INDEX)
    positions = positions_of(values)
    attention = _attention(values.get("attention_mask"), ids.shape)
    cuts = values.get("cu_seq_lens_q") if ids.shape[0] == 1 else None
    out: list[Row] = []
    for r in range(len(ids)):
        own = labels[r] if labels is not None and labels.shape == ids.shape else None
        place = positions[r] if positions is not None else None
        mask = attention[r] if attention is not None else None
        edges = _edges(ids[r], own, mask, place, None if cuts is None else array(cuts).reshape(-1).tolist())
        out.append(Row(ids[r], own, mask, place, edges, shifted))
    return out


def flattened(batch: Any) -> Mapping[str, Any]:
    """Give a batch as one mapping: torchtitan gives (inputs, labels)."""
    if isinstance(batch, tuple) and len(batch) == 2 and isinstance(batch[0], Mapping):
        return {**batch[0], "labels": batch[1]}
    return batch if isinstance(batch, Mapping) else {}


def array(value: Any) -> NDArray[Any]:
    """Give numbers as numpy, tensors of any device included."""
    if hasattr(value, "detach"):
        tensor = value.detach().cpu()
        return np.asarray(tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor)
    if isinstance(value, list | tuple) and value and hasattr(value[0], "detach"):
        return np.asarray([array(v) for v in value])
    return np.asarray(value)


def positions_of(values: Mapping[str, Any]) -> Ints | None:
    """Give text positions int64 (B, L): the first row of (3 or 4, B, L)."""
    given = values.get("position_ids", values.get("positions"))
    if given is None:
        return None
    found: Ints = array(given)
    return found[0] if found.ndim == 3 else found if found.ndim == 2 else None


def _attention(given: Any, shape: tuple[int, ...]) -> Ints | None:
    """Give what a mask says of each token, int64 (B, L): 0, 1 or the number of its document; None if nothing."""
    if given is None or isinstance(given, Mapping):
        return None
    mask = array(given)
    if mask.shape == shape:
        numbers: Ints = mask.astype(np.int64)
        return numbers
    if mask.ndim == 4 and mask.shape[-1] == shape[1] and mask.shape[0] == shape[0]:
        return np.stack([_numbered(one[0]) for one in mask])
    return None


def _numbered(mask: NDArray[Any]) -> Ints:
    """Number the documents of a (L, L) mask from 1; 0 where a token sees not even itself."""
    seen = mask if mask.dtype == bool else mask > -1 if mask.min(initial=0) < -1 else mask > 0
    own = np.diagonal(seen)
    begins = np.append(True, ~np.diagonal(seen, -1)) & own
    numbers: Ints = np.where(own, np.cumsum(begins), 0)
    return numbers


def _edges(
    ids: Ints, labels: Ints | None, attention: Ints | None, positions: Ints | None, cuts: list[int] | None
) -> tuple[tuple[int, int], ...]:
    """Find where documents begin and end, padding left out."""
    if attention is not None:
        on = np.flatnonzero(attention)
        if not len(on):
            return ()
        low, high = int(on[0]), int(on[-1]) + 1
        if attention.max() > 1:
            starts = {low, *(np.flatnonzero(np.diff(attention)) + 1).tolist()}
            return tuple(
                (a, b) for a, b in pairwise(sorted({*starts, high})) if a >= low and b <= high and attention[a]
            )
    else:
        low, high = 0, len(ids)
    if positions is not None:
        high = _without_zeros(positions, labels, low, high)
    starts = {low}
    if cuts is not None:
        starts |= {c for c in cuts if low < c < high}
    if positions is not None:
        starts |= {int(s) for s in np.flatnonzero(positions == 0) if low < s < high}
    edges = [(a, b) for a, b in pairwise(sorted({*starts, high})) if b > a]
    if attention is None and len(edges) > 1 and positions is not None:
        real = real_tokens(ids, labels if labels is not None else np.full(len(ids), IGNORE_INDEX), positions)
        edges = [(a, b) for a, b in edges if real[a]]
    return tuple(edges)


def _without_zeros(positions: Ints, labels: Ints | None, low: int, high: int) -> int:
    """Give the end of a row without padding whose positions are all 0."""
    on = np.flatnonzero(positions[low:high])
    last = low + int(on[-1]) + 1 if len(on) else high
    trained = labels is not None and bool((labels[last:high] != IGNORE_INDEX).any())
    return high if trained else last


def real_tokens(tokens: NDArray[Any], labels: NDArray[Any], positions: NDArray[Any]) -> NDArray[np.bool_]:
    """Find padding in a packed row: its last document, where that is one id over and over and never in the loss."""
    start = int(np.flatnonzero(positions == 0)[-1]) if (positions == 0).any() else 0
    tail, real = slice(start, len(tokens)), np.ones(len(tokens), bool)
    if start and (tokens[tail] == tokens[start]).all() and (labels[tail] == IGNORE_INDEX).all():
        real[tail] = False
    return real


def segments_of(rows: Sequence[Row], at: int, names: Sequence[Sequence[str]] = ()) -> list[Segment]:
    """Give the documents of rows.

    Args:
        rows: of one batch.
        at: number of the first row among all.
        names: of the documents of each row, where they are known.
    """
    out: list[Segment] = []
    for r, row in enumerate(rows):
        known = names[r] if r < len(names) else ()
        for d, (a, b) in enumerate(row.edges):
            name = known[d] if d < len(known) else f"row {at + r}, tokens {a} to {b}"
            part = slice(a, b)
            out.append(
                Segment(
                    name,
                    row.ids[part],
                    None if row.labels is None else row.labels[part],
                    None if row.attention is None else row.attention[part],
                    row.shifted,
                    at + r,
                    d == 0,
                )
            )
    return out
