"""From characters to tokens: which tokens hold the words of a span.

Decides the rule for a token across a border: it belongs to the span when it holds at least one byte of it. Byte-level
vocabularies are counted in bytes, all texts of a batch at once; others ask the tokenizer for offsets, or prove that a
text cut at the border has the same tokens. Knows no roles.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from thalweg.core.sample import IGNORE_INDEX
from thalweg.encode.backend import Backend, Flat
from thalweg.encode.errors import EncodeError

Spans: TypeAlias = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Found:
    """Token spans of many texts.

    Args:
        pairs: int64 (s, 2), half-open, counted from the start of each text; those of a text that is not `exact` say
            nothing.
        rows: int64 (s,), the text of each pair.
        bounds: the pairs of text i are bounds[i] to bounds[i + 1].
        exact: bool (n,), False for a text whose tokens do not have as many bytes as the text (its characters were
            composed, for one).
    """

    pairs: NDArray[np.int64]
    rows: NDArray[np.int64]
    bounds: list[int]
    exact: NDArray[np.bool_]

    def of(self, text: int) -> Spans | None:
        """Give the spans of one text; None where bytes do not tell them."""
        if not self.exact[text]:
            return None
        return [(a, b) for a, b in self.pairs[self.bounds[text] : self.bounds[text + 1]].tolist()]

    def regular(self, first: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Say of each text whether it has spans, none empty, in order, apart, and within [first, length). bool (n,)."""
        a, b = self.pairs.T
        good = (first[self.rows] <= a) & (a < b) & (b <= lengths[self.rows])
        good[1:] &= (b[:-1] < a[1:]) | (self.rows[:-1] != self.rows[1:])
        told = self.exact & (np.diff(self.bounds) > 0)
        told[self.rows[~good]] = False
        return told


def by_bytes(flat: Flat, texts: Sequence[str], spans: Sequence[Spans], widths: NDArray[np.int32]) -> Found:
    """Find token spans of many texts by counting bytes.

    Args:
        flat: ids of the texts, end to end, and offsets.
        texts: the texts.
        spans: half-open character spans of each text.
        widths: bytes that each token stands for.
    """
    ids, offsets = flat
    ends = np.cumsum(widths[ids], dtype=np.int64)
    totals = np.zeros(len(offsets), np.int64)  # bytes of the tokens before each text
    totals[offsets > 0] = ends[offsets[offsets > 0] - 1]
    borders: list[int] = []
    sizes: list[int] = []
    for text, wanted in zip(texts, spans, strict=True):
        if text.isascii():
            for span in wanted:
                borders += span
            sizes.append(len(text))
            continue
        at = done = 0
        for p in (p for span in wanted for p in span):
            done += len(text[at:p].encode()) if p >= at else -len(text[p:at].encode())
            at = p
            borders.append(done)
        sizes.append(done + len(text[at:].encode()))
    bounds = [0, *accumulate(map(len, spans))]
    rows = np.repeat(np.arange(len(texts)), np.diff(bounds))
    pairs = np.array(borders, np.int64).reshape(-1, 2)
    starts, stops = (pairs + totals[rows, None]).T
    first = np.searchsorted(ends, starts, side="right")
    last = np.searchsorted(ends, stops, side="left") + 1
    found = np.stack([first, np.where(stops > starts, last, first)], 1) - offsets[rows, None]
    return Found(found, rows, bounds, np.diff(totals) == np.array(sizes, np.int64))


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
