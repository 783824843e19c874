"""The columns of a batch, as the first look at one wants them: names, shapes, dtypes, figures, and what is missing.

Decides which figures are given, and what of a first batch is plainly wrong. Knows no tokenizer.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from thalweg.check.finding import Finding
from thalweg.check.rows import TOKENS, array, flattened
from thalweg.core.sample import IGNORE_INDEX, INPUT_IDS


def figures(batch: Any) -> dict[str, str]:
    """Give name -> dtype, shape, range, mean and share of zeros of each column of a batch or sample."""
    return {f"column {name}": _figures(value) for name, value in flattened(batch).items()}


def _figures(value: Any) -> str:
    if value is None or isinstance(value, str | bytes | bool | int | float):
        return f"{type(value).__name__} {str(value)[:40]}"
    try:
        values = array(value)
    except ValueError:
        values = np.empty(0, object)
    if values.dtype.kind not in "biuf":
        return f"{type(value).__name__} of {len(value)}" if hasattr(value, "__len__") else type(value).__name__
    shape = "x".join(map(str, values.shape)) or "one value"
    if not values.size:
        return f"{values.dtype} {shape}, empty"
    off = values == IGNORE_INDEX
    used = values[~off] if off.any() else values
    text = f"{values.dtype} {shape}"
    if off.any():
        text += f", {off.mean():.1%} off the loss (-100)"
    if used.size:
        text += f", {_number(used.min())} to {_number(used.max())}, mean {_number(used.mean())}"
        text += f", {(used == 0).mean():.1%} zero"
    return text


def _number(value: Any) -> str:
    return f"{int(value):,}" if float(value).is_integer() and abs(float(value)) < 1e15 else f"{float(value):.4g}"


def out_of_place(title: str, sample: Mapping[str, Any]) -> list[Finding]:
    """Find labels that are more or fewer than the tokens of a sample, and spans of the loss that go beyond them."""
    ids = sample.get(INPUT_IDS)
    if ids is None or np.ndim(ids) != 1:
        return []
    n, labels, spans = len(ids), sample.get("labels"), sample.get("loss_spans")
    if labels is not None and len(labels) != n:
        what = f"{len(labels):,} labels for {n:,} tokens: those without one are shown as context"
        return [Finding("error", what, where=title, fix="cut or extend both together; thalweg doctor counts them")]
    beyond = [] if labels is not None or spans is None else spans_beyond(spans, n)
    if beyond:
        what = f"loss span {beyond[0]} goes beyond the {n:,} tokens"
        return [Finding("error", what, where=title, fix="0 <= start < end <= number of tokens; write it anew")]
    return []


def spans_beyond(spans: Any, n: int) -> list[list[int]]:
    """Give the spans [start, end] of the loss that do not lie inside n tokens."""
    every: list[list[int]] = np.asarray(spans, np.int64).reshape(-1, 2).tolist()
    return [[a, b] for a, b in every if not 0 <= a <= b <= n]


def plainly_wrong(batch: Any) -> list[Finding]:
    """Find what a first look must show: no tokens, a mask of zeros, labels all off the loss."""
    values: Mapping[str, Any] = flattened(batch)
    found: list[Finding] = []
    name = next((n for n in TOKENS if values.get(n) is not None), None)
    if name is not None and not array(values[name]).size:
        found.append(Finding("error", "the batch is empty", fix="look at the filters, and at what precedes batch"))
    mask = values.get("attention_mask")
    if mask is not None and not isinstance(mask, Mapping) and array(mask).size and not array(mask).any():
        found.append(Finding("error", "the attention mask is zero everywhere", fix="make it 1 on real tokens"))
    labels = values.get("labels")
    if labels is not None and array(labels).size and (array(labels) == IGNORE_INDEX).all():
        fix = "see which part of a sample is trained: thalweg doctor says more"
        found.append(Finding("error", "every label is -100: nothing of this batch is trained", fix=fix))
    return found
