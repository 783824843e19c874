"""Packing as one call: which documents share a row, by policy, with the overlong rule applied first.

Decides which packer a policy word names and puts its rows, the documents that stand alone and what was left out
into one plan. Plans are indices; tokens are read later. Knows no files, tokens or order of epochs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from thalweg.core.errors import ConfigError, nearest
from thalweg.plan.pack_best import best_fit, count_best_fit
from thalweg.plan.pack_cut import Items, KeptLabels, Loss, Overlong, concat_split, resolve_overlong
from thalweg.plan.pack_fit import first_fit, next_fit
from thalweg.plan.pack_rows import Pieces, Rows

__all__ = [
    "POLICIES",
    "Loss",
    "Pieces",
    "Plan",
    "Rows",
    "best_fit",
    "concat_split",
    "count_best_fit",
    "first_fit",
    "lower_bound",
    "next_fit",
    "plan",
]

Packer: TypeAlias = Callable[..., Rows]
POLICIES: Mapping[str, Packer] = {"best_fit": best_fit, "first_fit": first_fit, "next_fit": next_fit}


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
    capacity: int | tuple[int, ...],
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
        policy: "best_fit", "first_fit", "next_fit" or "concat_split".
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
    packer = _checked(policy, capacity, overlong, align, max_docs)
    if policy == "concat_split":
        assert isinstance(capacity, int)
        empty = int(np.count_nonzero(np.asarray(lengths) == 0))
        rows = concat_split(lengths, capacity, max_docs=max_docs)
        return Plan(rows, capacity, policy, Loss().plus("empty", empty, 0))
    top = max(capacity) if isinstance(capacity, tuple) else capacity
    items = resolve_overlong(
        lengths,
        top // align * align,
        overlong,
        label_tokens=label_tokens,
        media_tokens=media_tokens,
        kept_labels=kept_labels,
    )
    rows = _over_documents(packer(items.lengths, capacity, max_docs=max_docs, align=align), items)
    return Plan(_with_alone(rows, items, np.asarray(lengths), capacity), capacity, policy, items.loss, align)


def _checked(
    policy: str, capacity: int | tuple[int, ...], overlong: str | None, align: int, max_docs: int | None
) -> Packer:
    """Give the packer of a policy, or refuse the combination."""
    known = [*POLICIES, "concat_split"]
    if policy not in known:
        raise ConfigError(f"unknown packing policy {policy!r}", fix=nearest(policy, known))
    if isinstance(capacity, tuple) and policy != "best_fit":
        raise ConfigError("several row lengths are planned by best_fit only", fix='say policy="best_fit"')
    sizes = capacity if isinstance(capacity, tuple) else (capacity,)
    if not sizes or min(sizes) < 1 or align < 1 or any(c % align for c in sizes):
        raise ConfigError(
            f"capacity {capacity} must be at least 1 and a multiple of align={align}", fix="round the capacity down"
        )
    if max_docs is not None and max_docs < 1:
        raise ConfigError(f"max_docs={max_docs} must be at least 1")
    if policy == "concat_split" and (overlong is not None or align != 1):
        raise ConfigError(
            "concat_split cuts every document where a row ends: it takes no overlong= and no align=",
            fix="leave them out; with context parallelism slice rows, not documents",
        )
    return POLICIES.get(policy, concat_split)


def _over_documents(rows: Rows, items: Items) -> Rows:
    """Turn rows over items into rows over documents."""
    pieces = Pieces(items.pieces.start[rows.order], items.pieces.stop[rows.order]) if items.cut else None
    return Rows(items.document[rows.order], rows.offsets, pieces, rows.capacities)


def _with_alone(rows: Rows, items: Items, lengths: NDArray[np.integer], capacity: int | tuple[int, ...]) -> Rows:
    """Add a row for each document that stands alone above the capacity."""
    n = len(items.alone)
    if not n:
        return rows
    long = lengths[items.alone].astype(np.int64)
    held = np.full(len(rows), capacity, np.int64) if rows.capacities is None else rows.capacities
    offsets = np.append(rows.offsets, rows.offsets[-1] + 1 + np.arange(n))
    return Rows(np.append(rows.order, items.alone), offsets, rows.pieces, np.append(held, long))
