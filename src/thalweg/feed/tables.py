"""The table of a source: which samples can be delivered, and the sums over all lengths, looked at once and kept.

Decides which samples leave a feed before anything is counted (empty ones, and with `overlong="drop"` those longer
than a row), and refuses long ones where nothing says what becomes of them. A pass over a large table is kept by its
fingerprint, so that a later start reads none of it. Knows no order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.core.errors import ConfigError
from thalweg.core.state import digest
from thalweg.feed import stages as st
from thalweg.feed.mapped import Leaf
from thalweg.feed.passes import cache_folder, stored
from thalweg.plan.table import SourceTable

Ints = NDArray[np.int64]
CHUNK = 1 << 22  # lengths looked at together: bounds the memory
KEPT = 1 << 20  # samples from which on a pass is kept: below it takes a millisecond


@dataclass(frozen=True, slots=True)
class Sums:
    """What one pass over the lengths of a source finds.

    Args:
        samples: all of them.
        tokens: of all samples.
        empty: samples without a token.
        long: samples above the longest row.
        long_tokens: their tokens.
        first_long: index of the first of them, -1 without one.
        gaps: for each sample left out, in order, how many are kept before it.
    """

    samples: int
    tokens: int
    empty: int
    long: int
    long_tokens: int
    first_long: int
    gaps: Ints

    @classmethod
    def of(cls, lengths: NDArray[Any], top: int | None, *, drop: bool) -> "Sums":
        """Look at all lengths once.

        Args:
            lengths: int (n,), may be mapped.
            top: longest document that a row takes; None: without limit.
            drop: longer ones are left out.
        """
        tokens = empty = long = long_tokens = 0
        first, out = -1, [np.empty(0, np.int64)]
        for start in range(0, len(lengths), CHUNK):
            part = lengths[start : start + CHUNK]
            tokens += int(part.sum(dtype=np.int64))
            gone = part == 0
            empty += int(np.count_nonzero(gone))
            if top is not None and int(part.max()) > top:
                over = part > top
                long, long_tokens = (
                    long + int(np.count_nonzero(over)),
                    long_tokens + int(part[over].sum(dtype=np.int64)),
                )
                first = start + int(np.argmax(over)) if first < 0 else first
                if drop:
                    gone |= over
            out.append(np.flatnonzero(gone) + start)
        left = np.concatenate(out)
        return cls(len(lengths), tokens, empty, long, long_tokens, first, left - np.arange(len(left)))

    @classmethod
    def kept(cls, leaf: Leaf, top: int | None, *, drop: bool) -> "Sums":
        """Look at the lengths of a source, or at what an earlier pass found."""
        lengths = leaf.source.lengths
        assert lengths is not None
        if len(lengths) < KEPT:
            return cls.of(lengths, top, drop=drop)

        def make() -> Ints:
            s = cls.of(lengths, top, drop=drop)
            head = [s.samples, s.tokens, s.empty, s.long, s.long_tokens, s.first_long]
            return np.concatenate([np.array(head, np.int64), s.gaps])

        key = digest(["table", leaf.source.fingerprint, top, drop], size=16)
        found = stored(cache_folder() / "table" / f"{key}.npy", make, mapped=True)
        samples, tokens, empty, long, long_tokens, first = (int(n) for n in found[:6])
        return cls(samples, tokens, empty, long, long_tokens, first, found[6:])


def tables_of(
    leaves: Sequence[Leaf], packing: st.Pack | None, seed: int, losses: dict[str, tuple[int, int]], *, sums: bool
) -> list[SourceTable]:
    """Put sources into tables; samples that can't be delivered leave them here.

    Args:
        leaves: the sources.
        packing: the packing stage; None leaves nothing out.
        seed: the loader's.
        losses: reason -> (samples, tokens) left out; filled.
        sums: the tokens of sources are asked for.

    Raises:
        ConfigError: documents longer than a row, and nothing says what becomes of them; their number and share.
    """
    top = None if packing is None else packing.longest // packing.align * packing.align
    drop = packing is not None and packing.overlong == "drop"
    needed = packing is not None or sums
    found = [Sums.kept(leaf, top, drop=drop) if needed else None for leaf in leaves]
    if packing is not None and top is not None and packing.overlong is None and packing.policy != "concat_split":
        _refuse_long(leaves, [s for s in found if s is not None], top)
    return [_table(leaf, s, packing, seed, losses) for leaf, s in zip(leaves, found, strict=True)]


def _refuse_long(leaves: Sequence[Leaf], found: Sequence[Sums], top: int) -> None:
    long, tokens = sum(s.long for s in found), sum(s.long_tokens for s in found)
    total, everything = sum(s.samples for s in found), sum(s.tokens for s in found)
    if not long:
        return
    first = next(i for i, s in enumerate(found) if s.long)
    source = leaves[first].name or leaves[first].source.fingerprint
    raise ConfigError(
        f"{long:,} of {total:,} samples ({tokens / everything:.1%} of the tokens) are longer than a row of {top:,}",
        where=f"first: sample {found[first].first_long} of source {source!r}",
        fix="say overlong='drop', 'truncate', 'split' (plain text), 'alone' or 'error', or raise the capacity",
    )


def _table(
    leaf: Leaf, found: Sums | None, packing: st.Pack | None, seed: int, losses: dict[str, tuple[int, int]]
) -> SourceTable:
    gaps, tokens = None, None
    if found is not None and packing is not None:
        dropped = found.long if packing.overlong == "drop" else 0
        tokens = found.tokens - (found.long_tokens if dropped else 0)
        if len(found.gaps):
            gaps = found.gaps
            for reason, n, lost in (("empty", found.empty, 0), ("overlong", dropped, found.tokens - tokens)):
                before = losses.get(reason, (0, 0))
                losses[reason] = (before[0] + n, before[1] + lost)
    elif found is not None:
        tokens = found.tokens
    shuffle = leaf.shuffle
    own = None if shuffle is None else seed if shuffle.seed is None else shuffle.seed
    locality = None if shuffle is None else shuffle.locality
    return SourceTable(
        leaf.name, len(leaf.source), None, leaf.source.lengths, own, leaf.repeats, locality, gaps, tokens
    )
