"""Documents cut to fit: pretraining rows filled to the last token, and what becomes of documents above a row.

Decides where documents are cut and what is left out, and counts both in documents and tokens. A cut document that
would keep no token in the loss is refused, not kept. Knows no order of rows.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from thalweg.core.errors import ConfigError, InputError, nearest
from thalweg.plan.pack_rows import Ints, Pieces, Rows, checked

Overlong: TypeAlias = Literal["drop", "truncate", "split", "alone", "error"]
# Tokens in the loss that documents keep when cut to their first `stop` tokens: (indices (k,), stop) -> int (k,)
KeptLabels: TypeAlias = Callable[[Ints, int], ArrayLike]


@dataclass(frozen=True, slots=True)
class Loss:
    """What a plan leaves out: reason -> (documents, tokens). A truncated document loses tokens and stays."""

    reasons: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])

    def plus(self, reason: str, documents: int, tokens: int) -> "Loss":
        """Add to a reason; nothing is written for no document."""
        if not documents:
            return self
        d, t = self.reasons.get(reason, (0, 0))
        return Loss({**self.reasons, reason: (d + documents, t + tokens)})

    def __add__(self, other: "Loss") -> "Loss":
        """Add two losses, reason by reason."""
        out = self
        for reason, (documents, tokens) in other.reasons.items():
            out = out.plus(reason, documents, tokens)
        return out

    @property
    def tokens(self) -> int:
        """Tokens that are in no row."""
        return sum(t for _, t in self.reasons.values())


@dataclass(frozen=True, slots=True, eq=False)
class Items:
    """What is to be packed after long documents were dealt with.

    Args:
        document: int64 (m,), index of each item's document.
        pieces: part of the document that the item is.
        cut: some item is not a whole document.
        alone: int64 (a,), documents above the capacity that get a row of their own.
        loss: what was left out.
    """

    document: Ints
    pieces: Pieces
    cut: bool
    alone: Ints
    loss: Loss

    @property
    def lengths(self) -> Ints:
        """Tokens of each item, int64 (m,)."""
        return self.pieces.stop - self.pieces.start


def resolve_overlong(
    lengths: ArrayLike,
    capacity: int,
    overlong: Overlong | None,
    *,
    label_tokens: ArrayLike | None = None,
    media_tokens: ArrayLike | None = None,
    kept_labels: KeptLabels | None = None,
) -> Items:
    """Apply the overlong rule; empty documents are left out and counted.

    Args:
        lengths: int (n,), true token counts.
        capacity: tokens that a document may have.
        overlong: "drop", "truncate" (its first tokens), "split" (plain text only), "alone" (a row of its own) or
            "error"; None: refused where a document is too long.
        label_tokens: int (n,), tokens in the loss after the shift; None: all of them are.
        media_tokens: int (n,), tokens that stand for media; None: none.
        kept_labels: counts the tokens in the loss after a cut; asked for truncated documents only. None: all
            tokens are taken to be in the loss where label_tokens does not say otherwise.

    Raises:
        ConfigError: overlong is None and a document is too long, or "split" meets a document that isn't plain text.
        InputError: overlong is "error" and a document is too long, or a length is negative.
    """
    sizes = np.asarray(lengths).astype(np.int64, copy=False)
    if overlong is not None and overlong not in get_args(Overlong):
        raise ConfigError(f"unknown overlong={overlong!r}", fix=nearest(overlong, get_args(Overlong)))
    if sizes.size and sizes.min() < 0:
        raise InputError(f"document {int(np.argmin(sizes))} has {int(sizes.min())} tokens")
    long = np.flatnonzero(sizes > capacity) if sizes.max(initial=0) > capacity else np.empty(0, np.intp)
    loss = Loss().plus("empty", int(np.count_nonzero(sizes == 0)), 0)
    if not len(long):
        whole = np.flatnonzero(sizes) if loss.reasons else np.arange(len(sizes))
        kept = sizes[whole] if loss.reasons else sizes
        return Items(whole, Pieces(np.zeros(len(whole), np.int64), kept), False, long[:0], loss)
    if overlong in {None, "error"}:
        raise _refusal(sizes, long, capacity, overlong)
    stop = sizes.copy()
    alone, cut = long[:0], False
    if overlong == "alone":
        alone = long
        stop[long] = 0
    elif overlong == "drop":
        loss = loss.plus("overlong", len(long), int(sizes[long].sum()))
        stop[long] = 0
    elif overlong == "truncate":
        loss += _truncate(stop, long, capacity, media_tokens, _kept(label_tokens, sizes, kept_labels))
        cut = bool(stop[long].any())
    else:
        _plain_text(sizes, long, label_tokens, media_tokens)
        cut = True
    document = np.flatnonzero(stop)
    if overlong != "split":
        return Items(document, Pieces(np.zeros(len(document), np.int64), stop[document]), cut, alone, loss)
    counts = -(-sizes[document] // capacity)
    owner = np.repeat(document, counts)
    start = (np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)) * capacity
    return Items(owner, Pieces(start, np.minimum(start + capacity, sizes[owner])), cut, alone, loss)


def _refusal(sizes: Ints, long: Ints, capacity: int, overlong: str | None) -> Exception:
    tokens, total = int(sizes[long].sum()), int(sizes.sum())
    what = (
        f"{len(long):,} of {len(sizes):,} documents ({tokens / total:.1%} of the tokens) are longer than {capacity:,}"
        f" tokens, the first is document {int(long[0])} with {int(sizes[long[0]]):,}"
    )
    if overlong == "error":
        return InputError(what, fix="raise the capacity, or say what becomes of them with overlong=")
    return ConfigError(
        what, fix="say overlong='drop', 'truncate', 'split' (plain text), 'alone' or 'error', or raise the capacity"
    )


def _kept(label_tokens: ArrayLike | None, sizes: Ints, kept_labels: KeptLabels | None) -> KeptLabels:
    if kept_labels is not None:
        return kept_labels
    if label_tokens is None:
        return lambda which, stop: np.full(len(which), max(stop - 1, 0))
    labels = np.asarray(label_tokens)
    # Without the places of the loss, only what must be kept is known: labels minus all that is cut away.
    return lambda which, stop: np.maximum(labels[which] - (sizes[which] - stop), 0)


def _truncate(stop: Ints, long: Ints, capacity: int, media: ArrayLike | None, kept: KeptLabels) -> Loss:
    """Cut long documents in `stop`; those with media or without a token in the loss are refused."""
    sizes, loss = stop[long], Loss()
    with_media = np.zeros(len(long), np.bool_) if media is None else np.asarray(media)[long] > 0
    unlabelled = (np.asarray(kept(long, capacity)) < 1) & ~with_media
    stop[long] = np.where(with_media | unlabelled, 0, capacity)
    loss = loss.plus("overlong with media", int(with_media.sum()), int(sizes[with_media].sum()))
    loss = loss.plus("no token in the loss after truncation", int(unlabelled.sum()), int(sizes[unlabelled].sum()))
    cut = stop[long] > 0
    return loss.plus("truncated", int(cut.sum()), int((sizes[cut] - capacity).sum()))


def _plain_text(sizes: Ints, long: Ints, label_tokens: ArrayLike | None, media: ArrayLike | None) -> None:
    """Refuse to split what isn't plain text."""
    bad = np.zeros(len(long), np.bool_)
    if label_tokens is not None:
        bad |= np.asarray(label_tokens)[long] < sizes[long] - 1
    if media is not None:
        bad |= np.asarray(media)[long] > 0
    if bad.any():
        raise ConfigError(
            f'overlong="split" is for plain text, and {int(bad.sum()):,} of {len(long):,} long documents have prompts'
            f" or media, the first is document {int(long[bad][0])}: a piece would be an answer without its question",
            fix="say overlong='drop' or 'truncate'",
        )


def concat_split(lengths: ArrayLike, capacity: int, *, max_docs: int | None = None) -> Rows:
    """Put all documents end to end and cut every `capacity` tokens: every token once, all rows full but the last.

    Args:
        lengths: int (n,), 0 or more; empty documents are in no row.
        capacity: tokens of a row.
        max_docs: pieces of a row at most; a row that reaches it is closed early.

    Returns:
        Rows in arrival order with pieces; a piece that starts above 0 is a continuation.
    """
    sizes = np.asarray(lengths).astype(np.int64, copy=False)
    checked(np.where(sizes == 0, 1, sizes), max(int(sizes.max(initial=1)), 1))
    document = np.flatnonzero(sizes)
    ends = np.cumsum(sizes[document])
    total = int(ends[-1]) if len(ends) else 0
    cuts = np.arange(0, total, capacity)
    if max_docs is not None:
        cuts = _early_cuts(ends, capacity, max_docs)
    borders = np.union1d(np.append(ends - sizes[document], total), cuts) if total else np.zeros(1, np.int64)
    at = np.searchsorted(ends, borders[:-1], side="right")
    start = borders[:-1] - (ends - sizes[document])[at] if total else borders[:0]
    offsets = np.append(np.searchsorted(borders, cuts), len(borders) - 1) if total else np.zeros(1, np.int64)
    return Rows(document[at] if total else borders[:0], offsets, Pieces(start, start + np.diff(borders)))


def _early_cuts(ends: Ints, capacity: int, max_docs: int) -> NDArray[np.int64]:
    """Give the places where rows begin when a row also ends after max_docs pieces."""
    cuts, place, total = [0], 0, int(ends[-1]) if len(ends) else 0
    while True:
        last = (
            int(np.searchsorted(ends, place, side="right")) + max_docs - 1
        )  # the last document that may be in the row
        place = min(place + capacity, int(ends[last]) if last < len(ends) else total)
        if place >= total:
            return np.array(cuts, np.int64)
        cuts.append(place)
