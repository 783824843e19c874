"""From characters to tokens: which tokens hold the words of a span.

Decides the rule for a token across a border: it belongs to the span when it holds at least one byte of it. Byte-level
vocabularies are counted in bytes, all texts of a batch at once; others ask the tokenizer for offsets, or prove that a
text cut at the border has the same tokens. Knows no roles.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from thalweg.core.sample import IGNORE_INDEX
from thalweg.encode.backend import Backend, Flat
from thalweg.encode.errors import EncodeError

Spans: TypeAlias = list[tuple[int, int]]


def by_bytes(flat: Flat, texts: Sequence[str], spans: Sequence[Spans], widths: NDArray[np.int32]) -> list[Spans | None]:
    """Find token spans of many texts by counting bytes.

    Args:
        flat: ids of the texts, end to end, and offsets.
        texts: the texts.
        spans: half-open character spans of each text.
        widths: bytes that each token stands for.

    Returns:
        Half-open token spans of each text, one for each character span; None for a text whose tokens do not have as
        many bytes as the text (its characters were composed, for one).
    """
    ids, offsets = flat
    ends = np.cumsum(widths[ids], dtype=np.int64)
    borders: list[int] = []
    sizes: list[int] = []
    for text, wanted in zip(texts, spans, strict=True):
        base = sum(sizes[-1:])
        if text.isascii():
            borders.extend(base + p for span in wanted for p in span)
            sizes.append(base + len(text))
            continue
        at = done = 0
        for p in (p for span in wanted for p in span):
            done += len(text[at:p].encode()) if p >= at else -len(text[p:at].encode())
            at = p
            borders.append(base + done)
        sizes.append(base + done + len(text[at:].encode()))
    totals = np.concatenate([[0], ends])[offsets]
    exact = np.diff(totals) == np.diff(np.array([0, *sizes]))
    if not exact.all():  # positions are counted from the tokens' own bytes, so later rows stand elsewhere
        return _row_by_row(flat, texts, spans, widths, exact)
    pairs = np.array(borders, np.int64).reshape(-1, 2)
    first = np.searchsorted(ends, pairs[:, 0], side="right")
    last = np.searchsorted(ends, pairs[:, 1], side="left") + 1
    rows = np.repeat(np.arange(len(texts)), [len(s) for s in spans])
    found = np.stack([first, np.where(pairs[:, 1] > pairs[:, 0], last, first)], 1) - offsets[rows, None]
    cut = np.cumsum([0, *map(len, spans)]).tolist()
    listed = [tuple(p) for p in found.tolist()]
    return [listed[a:b] for a, b in pairwise(cut)]


def _row_by_row(
    flat: Flat, texts: Sequence[str], spans: Sequence[Spans], widths: NDArray[np.int32], exact: NDArray[np.bool_]
) -> list[Spans | None]:
    ids, offsets = flat
    if len(texts) == 1:
        return [None]
    out: list[Spans | None] = []
    for i, text in enumerate(texts):
        row = ids[offsets[i] : offsets[i + 1]]
        one = (row, np.array([0, len(row)]))
        out.append(by_bytes(one, [text], [spans[i]], widths)[0] if exact[i] else None)
    return out


def by_offsets(places: NDArray[np.int64], spans: Spans) -> Spans:
    """Find token spans by each token's characters.

    Args:
        places: int64 (n, 2), half-open, as the tokenizer gives them; tokens of one character may share a place.
        spans: half-open character spans.
    """
    out: Spans = []
    for start, stop in spans:
        held = np.flatnonzero((places[:, 1] > start) & (places[:, 0] < stop)) if stop > start else np.empty(0, np.int64)
        at = int(held[0]) if len(held) else int(np.searchsorted(places[:, 0], start))
        out.append((at, int(held[-1]) + 1 if len(held) else at))
    return out


def by_prefix(backend: Backend, text: str, ids: NDArray[np.int32], spans: Spans) -> Spans:
    """Find token spans by encoding the text up to each border.

    Where the cut text's tokens are not the first ones of the whole text, a token lies across the border: it counts
    to the later side, as long as the tokens before it agree and the token after it is proven the same way.

    Raises:
        EncodeError: the tokens around a border cannot be told apart.
    """
    out: Spans = []
    for start, stop in spans:
        first = _agree(backend, text[:start], ids)
        last = _agree(backend, text[:stop], ids)
        if first is None or last is None:
            raise EncodeError(
                "this tokenizer does not show which tokens are the assistant's", reason="border inside a token"
            )
        out.append((first, last))
    return out


def _agree(backend: Backend, head: str, ids: NDArray[np.int32]) -> int | None:
    """Count the tokens of `head`, if they are the first of `ids`."""
    if not head:
        return 0
    mine, _ = backend.encode([head], special=True)
    n = len(mine)
    return n if n <= len(ids) and np.array_equal(mine, ids[:n]) else None


def tidy(spans: Spans, length: int, first: int = 0) -> NDArray[np.int32]:
    """Keep spans within [first, length), in order, touching ones joined. int32 (k, 2)."""
    out: list[list[int]] = []
    if all(first <= a < b <= length for a, b in spans) and all(x[1] < y[0] for x, y in pairwise(spans)):
        return np.array(spans, np.int32).reshape(-1, 2)  # as they come from a template, nearly always
    for a, b in sorted((max(a, first), min(b, length)) for a, b in spans):
        if a >= b:
            continue
        if out and a <= out[-1][1]:
            out[-1][1] = max(b, out[-1][1])
        else:
            out.append([a, b])
    return np.array(out, np.int32).reshape(-1, 2)


def labels_of(ids: NDArray[np.int32], spans: NDArray[Any]) -> NDArray[np.int64]:
    """Give unshifted labels of one row: its ids inside the spans, -100 elsewhere. int64 (n,)."""
    labels = np.full(len(ids), IGNORE_INDEX, np.int64)
    for a, b in spans.tolist():
        labels[a:b] = ids[a:b]
    return labels
