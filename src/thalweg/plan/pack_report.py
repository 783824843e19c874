"""What a packing plan costs and loses, in numbers: fill, documents of a row, what was cut or left out, lag, sources.

Decides what is counted and how it adds up over blocks. Knows no policy and no file.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from thalweg.plan.pack import Plan
from thalweg.plan.pack_cut import Loss
from thalweg.plan.pack_rows import Ints

CENTILES = {"p1": 1, "p50": 50, "p99": 99, "max": 100}


@dataclass(slots=True)
class Share:
    """What became of one source's documents: those in rows (wholly or in part) and those left out."""

    documents: int = 0
    tokens: int = 0
    lost_documents: int = 0
    lost_tokens: int = 0


@dataclass(slots=True)
class PackingReport:
    """One plan, or several blocks of one.

    Args:
        policies: rows made by each policy ("auto" may choose another in each block).
        capacity: tokens of a row; the largest where rows have several lengths.
        documents: documents given.
        tokens: their tokens.
        rows: rows of the plan.
        room: tokens that all rows hold together.
        bound: rows that no plan of one row length can do without.
        packed_tokens: tokens in rows.
        pieces: documents and parts of documents in rows.
        cut: documents of which a part stands in a row.
        loss: documents and tokens left out, by reason.
        per_row: number of rows that hold k documents, int64 (max + 1,).
        lag: furthest that a document stands behind one that came after it, in documents; policies that sort have
            no bound but their block.
        sources: shares by name.
    """

    policies: dict[str, int] = field(default_factory=dict[str, int])
    capacity: int = 0
    documents: int = 0
    tokens: int = 0
    rows: int = 0
    room: int = 0
    bound: int = 0
    packed_tokens: int = 0
    pieces: int = 0
    cut: int = 0
    loss: Loss = field(default_factory=Loss)
    per_row: Ints = field(default_factory=lambda: np.zeros(1, np.int64))
    lag: int = 0
    sources: dict[str, Share] = field(default_factory=dict[str, Share])

    @property
    def efficiency(self) -> float:
        """Share of the rows' room that holds tokens, 0 to 1; 1 where there is no row."""
        return self.packed_tokens / self.room if self.room else 1.0

    @property
    def documents_per_row(self) -> dict[str, int]:
        """Documents of a row: centiles p1, p50, p99 and max."""
        total = np.cumsum(self.per_row)
        if not total[-1]:
            return dict.fromkeys(CENTILES, 0)
        return {k: int(np.searchsorted(total, max(1, np.ceil(total[-1] * q / 100)))) for k, q in CENTILES.items()}

    def add(
        self, plan: Plan, lengths: ArrayLike, *, sources: ArrayLike | None = None, names: Sequence[str] = ()
    ) -> None:
        """Add a plan (a block of one).

        Args:
            plan: over the documents of `lengths`.
            lengths: int (n,), tokens of the documents.
            sources: int (n,), number of each document's source; None: one source.
            names: of the sources.
        """
        sizes = np.asarray(lengths).astype(np.int64, copy=False)
        rows = plan.rows
        top = plan.capacity if isinstance(plan.capacity, int) else max(plan.capacity)
        parts = rows.piece_lengths(sizes)
        held = np.bincount(rows.documents) if len(rows) else np.zeros(1, np.int64)
        self.per_row = _sum(self.per_row, held)
        self.policies[plan.policy] = self.policies.get(plan.policy, 0) + len(rows)
        self.capacity = max(self.capacity, top)
        self.documents += len(sizes)
        self.tokens += int(sizes.sum())
        self.rows += len(rows)
        self.room += len(rows) * top if rows.capacities is None else int(rows.capacities.sum())
        self.packed_tokens += int(parts.sum())
        self.bound = -(-self.packed_tokens // self.capacity)
        self.pieces += len(rows.order)
        if rows.pieces is not None:
            self.cut += len(np.unique(rows.order[parts < sizes[rows.order]]))
        self.loss += plan.loss
        if len(rows.order):
            newest = np.maximum.accumulate(rows.order)
            self.lag = max(self.lag, int((newest - rows.order).max()))
        if sources is not None:
            self._add_sources(np.asarray(sources), names, sizes, rows.order, parts)

    def _add_sources(self, which: Ints, names: Sequence[str], sizes: Ints, order: Ints, parts: Ints) -> None:
        n = len(names)
        given, tokens = np.bincount(which, minlength=n), np.bincount(which, sizes, n)
        there = np.bincount(which[np.unique(order)], minlength=n)
        kept = np.bincount(which[order], parts, n)
        for i, name in enumerate(names):
            share = self.sources.setdefault(name, Share())
            share.documents += int(there[i])
            share.tokens += int(kept[i])
            share.lost_documents += int(given[i] - there[i])
            share.lost_tokens += int(tokens[i] - kept[i])

    def to_dict(self) -> dict[str, Any]:
        """Write as JSON-like data."""
        return {
            "policies": self.policies,
            "capacity": self.capacity,
            "documents": self.documents,
            "tokens": self.tokens,
            "rows": self.rows,
            "lower_bound": self.bound,
            "efficiency": self.efficiency,
            "packed_tokens": self.packed_tokens,
            "pieces": self.pieces,
            "cut_documents": self.cut,
            "documents_per_row": self.documents_per_row,
            "lag": self.lag,
            "left_out": {k: {"documents": d, "tokens": t} for k, (d, t) in self.loss.reasons.items()},
            "left_out_share": self.loss.tokens / self.tokens if self.tokens else 0.0,
            "sources": {
                k: {
                    "documents": s.documents,
                    "tokens": s.tokens,
                    "lost_documents": s.lost_documents,
                    "lost_tokens": s.lost_tokens,
                }
                for k, s in self.sources.items()
            },
        }


def _sum(a: Ints, b: Ints) -> Ints:
    out = np.zeros(max(len(a), len(b)), np.int64)
    out[: len(a)] += a
    out[: len(b)] += b
    return out
