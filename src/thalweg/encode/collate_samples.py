"""Samples as columns: what the rows of a batch are laid out from, and media in the order of their tokens.

Decides which columns run along the tokens, which are media and joined, and which name a sample and stay out of the
batch; a column that is none of these is refused by name. Knows no rows and no dialect.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.core.errors import ConfigError, SampleError
from thalweg.core.sample import INPUT_IDS, LABELS, LOSS_SPANS, Ragged, Sample, offsets_of

ABOUT = frozenset({"id", "source", "unit", "row", "index"})  # name the sample; they go to batch.info
ROPE = "position_ids"  # int (3, n) of a sample: multimodal positions
ALIGNED = frozenset({"mm_token_type_ids", "token_type_ids"})  # int (n,), 0 on padding
DERIVED = frozenset({"attention_mask"})  # made anew from places; a sample's own says nothing


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Columns of the documents of some rows, in row order: the keywords of `plan.rows.lay_out`, and media.

    Args:
        tokens: int of each document.
        spans: int (k, 2) of each document, or None.
        labels: int of each document, unshifted, or None; at most one of spans and labels.
        rope: int (n, 3) of each document, or None.
        aligned: further token-aligned columns.
        media: arrays joined over all documents along their first axis, in token order.
    """

    tokens: Ragged
    spans: Ragged | None = None
    labels: Ragged | None = None
    rope: Ragged | None = None
    aligned: dict[str, Ragged] = field(default_factory=dict[str, Ragged])
    media: dict[str, NDArray[Any]] = field(default_factory=dict[str, NDArray[Any]])


def columns_of(samples: Sequence[Sample]) -> Columns:
    """Turn samples into columns.

    Args:
        samples: dicts with input_ids (n,); optional labels (n,), loss_spans (k, 2), position_ids (3, n) or
            (n,), token-aligned columns, and media arrays with one leading axis of items or patches.

    Raises:
        SampleError: a sample without input_ids, or a token-aligned column of another length.
        ConfigError: a column that can't be collated.
    """
    names = list(dict.fromkeys(name for sample in samples for name in sample))
    for i, sample in enumerate(samples):
        if INPUT_IDS not in sample:
            raise SampleError(f"sample {i} has no {INPUT_IDS!r}, only {sorted(sample)}", fix="encode before you batch")
    tokens = Ragged.from_rows([s[INPUT_IDS] for s in samples], np.int32)
    known = {INPUT_IDS, LABELS, LOSS_SPANS, ROPE} | ALIGNED | ABOUT | DERIVED
    aligned = {n: _aligned(n, [s.get(n) for s in samples], tokens) for n in names if n in ALIGNED}
    labels = spans = None
    if LABELS in names:
        labels = _aligned(LABELS, [s.get(LABELS) for s in samples], tokens)
    elif LOSS_SPANS in names:
        spans = _spans([s.get(LOSS_SPANS) for s in samples], tokens)
    media = {n: join(n, (s.get(n) for s in samples)) for n in names if n not in known}
    return Columns(tokens, spans, labels, _rope(samples, tokens), aligned, media)


def _aligned(name: str, rows: list[Any], tokens: Ragged) -> Ragged:
    """Put a token-aligned column end to end; a sample without it has zeros (labels: its tokens)."""
    sizes = tokens.lengths.tolist()
    arrays: list[NDArray[Any]] = []
    for i, (row, n) in enumerate(zip(rows, sizes, strict=True)):
        absent = tokens[i] if name == LABELS else np.zeros(n, np.int64)
        array = absent if row is None else np.asarray(row).reshape(-1)
        if len(array) != n:
            raise SampleError(f"column {name!r} of sample {i} has {len(array)} values for {n} tokens")
        arrays.append(array)
    return Ragged(np.concatenate(arrays, dtype=np.int64) if arrays else np.empty(0, np.int64), tokens.offsets)


def _spans(rows: list[Any], tokens: Ragged) -> Ragged:
    pairs = [
        np.array([[0, n]], np.int32) if row is None else np.asarray(row, np.int32).reshape(-1, 2)
        for row, n in zip(rows, tokens.lengths.tolist(), strict=True)
    ]
    offsets = offsets_of([len(p) for p in pairs])
    return Ragged(np.concatenate(pairs) if pairs else np.empty((0, 2), np.int32), offsets)


def _rope(samples: Sequence[Sample], tokens: Ragged) -> Ragged | None:
    """Give multimodal positions (n, 3) of each document; a text-only one counts alike in all three."""
    three = [np.asarray(s[ROPE]) if ROPE in s else None for s in samples]
    if not any(p is not None and p.ndim > 1 for p in three):
        return None  # one position a token: rows restart them anyway
    out: list[NDArray[np.int64]] = []
    for i, (p, n) in enumerate(zip(three, tokens.lengths.tolist(), strict=True)):
        if p is None or p.ndim == 1 or not n:
            out.append(np.arange(n).repeat(3).reshape(n, 3))
            continue
        flat = p.reshape(-1, p.shape[-1])
        if flat.shape[0] not in {3, 4} or flat.shape[1] != n:
            raise SampleError(f"{ROPE!r} of sample {i} has shape {p.shape} for {n} tokens", fix="give (3, n)")
        out.append(flat[-3:].T.astype(np.int64))
    return Ragged(np.concatenate(out), tokens.offsets)


def join(name: str, values: Iterable[Any]) -> NDArray[Any]:
    """Join a media column over samples along its first axis, in the order of their tokens.

    Args:
        name: of the column, for the error.
        values: an array of each sample, None where it has none.

    Raises:
        ConfigError: values that are not numeric arrays with one leading axis and otherwise equal shapes.
    """
    arrays = [np.asarray(v) for v in values if v is not None]
    bad = next((a for a in arrays if a.dtype.kind not in "biuf" or a.ndim == 0), None)
    if bad is not None:
        raise ConfigError(
            f"column {name!r} can't be collated: a sample has {bad.dtype} {bad.shape}",
            fix=f"remove it with map(..., remove_columns=[{name!r}]), or give collate= a function",
        )
    shapes = {a.shape[1:] for a in arrays}
    if len(shapes) > 1:
        raise ConfigError(
            f"column {name!r} can't be collated: samples have shapes {sorted(map(str, shapes))} behind the first axis",
            fix="make them equal in a map, or give collate= a function",
        )
    return np.concatenate(arrays) if len(arrays) != 1 else arrays[0]


def samples_of(columns: Mapping[str, Any], count: int) -> list[Sample]:
    """Turn columns back into samples, for collate="raw" and for functions.

    Args:
        columns: column -> Ragged or sequence, of `count` values each.
        count: number of samples.
    """
    return [{name: values[i] for name, values in columns.items()} for i in range(count)]
