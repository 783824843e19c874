"""Packing as one call: which documents share a row, by policy, with the overlong rule applied first.

Decides which packer a policy word names and puts its rows, the documents that stand alone and what was left out
into one plan. Plans are indices; tokens are read later. Knows no files, tokens or order of epochs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from thalweg.core.errors import ConfigError, nearest
from thalweg.plan.pack_best import best_fit, count_best_fit
from thalweg.plan.pack_cut import Items, KeptLabels, Loss, Overlong, concat_split, resolve_overlong
from thalweg.plan.pack_fit import first_fit, next_fit
from thalweg.plan.pack_rows import Pieces, Rows, padded
from thalweg.plan.pack_stream import window_of
from thalweg.plan.pack_window import better, fill, window

__all__ = [
    "POLICIES",
    "Loss",
    "Pieces",
    "Plan",
    "Rows",
    "best_fit",
    "concat_split",
    "count_best_fit",
    "fill",
    "first_fit",
    "lower_bound",
    "next_fit",
    "plan",
    "plan_blocks",
    "window",
]

POLICIES = ("best_fit", "fill", "auto", "first_fit", "next_fit", "window_N", "concat_split")
_PACKERS = {"best_fit": best_fit, "fill": fill, "first_fit": first_fit, "next_fit": next_fit}


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Rows, and what is in none of them.

    Args:
        rows: over the documents given; with pieces where documents were cut.
        capacity: tokens of a row.
        policy: the packer that made them; of "auto", the one it chose.
        loss: documents and tokens left out, by reason.
        align: each document takes up a multiple of this many tokens.
    """

    rows: Rows
    capacity: int | tuple[int, ...]
    policy: str
    loss: Loss
    align: int = 1


def lower_bound(tokens: int, capacity: int) -> int:
    """Count the rows that no plan can do without."""
    return -(-tokens // capacity)


def plan(
    lengths: ArrayLike,
    capacity: int | Sequence[int],
    *,
    policy: str = "best_fit",
    overlong: Overlong | None = None,
    align: int = 1,
    max_docs: int | None = None,
    label_tokens: ArrayLike | None = None,
    media_tokens: ArrayLike | None = None,
    kept_labels: KeptLabels | None = None,
) -> Plan:
    """Pack documents into rows.

    Args:
        lengths: int (n,), true token counts; 0 is left out and counted.
        capacity: tokens of a row; several row lengths with policy "best_fit".
        policy: "best_fit" (longest first, fewest rows), "fill" (arrival order, rows filled exactly), "auto" (both,
            the fewer rows), "first_fit", "next_fit", "window_N", or "concat_split" (cut where a row ends).
        overlong: what becomes of documents above the capacity; None refuses them. Not for "concat_split".
        align: each document takes up a multiple of this many tokens.
        max_docs: documents of a row at most.
        label_tokens: int (n,), tokens in the loss after the shift; None: all.
        media_tokens: int (n,), tokens that stand for media; None: none.
        kept_labels: counts the tokens in the loss after a cut, for truncation: (indices, stop) -> int (k,).

    Returns:
        A plan whose rows hold each document exactly once, or count it in `loss`.

    Raises:
        ConfigError: an unknown policy, or a combination that can't be right.
        InputError: overlong="error" and a document is too long.
    """
    wanted = tuple(sorted({capacity} if isinstance(capacity, int) else set(capacity)))
    _check(policy, wanted, overlong, align, max_docs)
    top = wanted[-1]
    if policy == "concat_split":
        empty = int(np.count_nonzero(np.asarray(lengths) == 0))
        rows = concat_split(lengths, top, max_docs=max_docs)
        return Plan(rows, top, policy, Loss().plus("empty", empty, 0))
    items = resolve_overlong(
        lengths, top, overlong, label_tokens=label_tokens, media_tokens=media_tokens, kept_labels=kept_labels
    )
    packed, name = _packed(items.lengths, wanted, policy, max_docs=max_docs, align=align)
    sizes = np.asarray(lengths)
    rows = _with_alone(_over_documents(packed, items, len(sizes)), items, padded(sizes, align), top)
    return Plan(rows, top if len(wanted) == 1 else wanted, name, items.loss, align)


def _check(policy: str, capacities: tuple[int, ...], overlong: str | None, align: int, max_docs: int | None) -> None:
    """Refuse combinations that can't be right."""
    if policy not in POLICIES and window_of(policy) is None:
        raise ConfigError(f"unknown packing policy {policy!r}", fix=nearest(policy, POLICIES))
    if len(capacities) > 1 and policy != "best_fit":
        raise ConfigError("several row lengths are planned by best_fit only", fix='say policy="best_fit"')
    if not capacities or capacities[0] < 1 or align < 1 or any(c % align for c in capacities):
        raise ConfigError(
            f"capacity {capacities} must be at least 1 and a multiple of align={align}", fix="round the capacity down"
        )
    if max_docs is not None and max_docs < 1:
        raise ConfigError(f"max_docs={max_docs} must be at least 1")
    if policy == "concat_split" and (overlong is not None or align != 1):
        raise ConfigError(
            "concat_split cuts every document where a row ends: it takes no overlong= and no align=",
            fix="leave them out; with context parallelism slice rows, not documents",
        )


def _packed(lengths: NDArray[np.int64], capacities: tuple[int, ...], policy: str, **more: Any) -> tuple[Rows, str]:
    capacity = max(capacities)
    if len(capacities) > 1:
        return best_fit(lengths, capacities, **more), policy
    if policy == "auto":
        return better(lengths, capacity, **more)
    size = window_of(policy)
    if size is not None:
        return window(lengths, capacity, size, **more), policy
    return _PACKERS[policy](lengths, capacity, **more), policy


def _over_documents(rows: Rows, items: Items, documents: int) -> Rows:
    """Turn rows over items into rows over documents."""
    if not items.cut and len(items.document) == documents:  # each is an item of its own
        return rows
    pieces = Pieces(items.pieces.start[rows.order], items.pieces.stop[rows.order]) if items.cut else None
    return Rows(items.document[rows.order], rows.offsets, pieces, rows.capacities)


def _with_alone(rows: Rows, items: Items, lengths: NDArray[np.integer], capacity: int) -> Rows:
    """Add a row for each document that stands alone above the capacity."""
    n = len(items.alone)
    if not n:
        return rows
    long = lengths[items.alone].astype(np.int64)
    held = np.full(len(rows), capacity, np.int64) if rows.capacities is None else rows.capacities
    offsets = np.append(rows.offsets, rows.offsets[-1] + 1 + np.arange(n))
    return Rows(np.append(rows.order, items.alone), offsets, rows.pieces, np.append(held, long))


def plan_blocks(
    lengths: ArrayLike, capacity: int | Sequence[int], *, block: int = 1 << 20, **more: Any
) -> Iterator[Plan]:
    """Plan documents in blocks of consecutive ones, so that memory is bounded by a block.

    Args:
        lengths: int (n,), true token counts, in the order to be packed; may be a memory map.
        capacity: tokens of a row.
        block: documents of a block. Each block costs less than a row over a plan of all.
        more: keywords of `plan`. Arrays among them (label_tokens, media_tokens) are for all documents.

    Yields:
        A plan for each block, over the documents' indices in `lengths`.
    """
    sizes = np.asanyarray(lengths)
    columns = {k: np.asanyarray(more.pop(k)) for k in ("label_tokens", "media_tokens") if more.get(k) is not None}
    for start in range(0, len(sizes), block):
        part = slice(start, start + block)
        made = plan(sizes[part], capacity, **more, **{k: v[part] for k, v in columns.items()})
        yield replace(made, rows=replace(made.rows, order=made.rows.order + start))
