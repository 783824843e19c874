"""The table of a planned feed: for each source, which samples it delivers and in which order its draws come.

Decides draw k of a source -> index of the sample, and back. Keep bits are applied before anything is counted
(SEMANTICS 2.3). Arrays are handed in; where they lie (memory, a mapped manifest) is not known here.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.core.seeds import Key
from thalweg.plan.shuffle import LocalPermutation, Permutation

CACHED = 4  # permutations of source epochs kept a source


@dataclass(eq=False)
class SourceTable:
    """One source of a feed.

    Args:
        name: as given in `mix`; "" for a feed of one source.
        size: samples of the source.
        kept: int64, rising, indices of the samples that are delivered; None keeps all.
        lengths: int (size,), true token counts; None while unknown.
        seed: key of its permutation; None leaves it in order.
        repeats: how often it is drawn whole until it is used up.
        locality: None, or samples of a block that stay near each other.
        gaps: instead of `kept`, int64, not falling: for each sample left out, in order, how many are kept before it.
        kept_tokens: tokens of the samples kept, where they are known already.
    """

    name: str
    size: int
    kept: NDArray[np.int64] | None = None
    lengths: NDArray[np.integer[Any]] | None = None
    seed: Key = None
    repeats: int = 1
    locality: int | None = None
    gaps: NDArray[np.int64] | None = None
    kept_tokens: int | None = None
    _orders: "OrderedDict[int, Permutation | LocalPermutation]" = field(
        default_factory=OrderedDict[int, Permutation | LocalPermutation], repr=False
    )
    _mean: Fraction | None = field(default=None, repr=False)

    @property
    def n(self) -> int:
        """Count the samples that are delivered in one source epoch."""
        if self.kept is not None:
            return len(self.kept)
        return self.size if self.gaps is None else self.size - len(self.gaps)

    @property
    def tokens(self) -> int:
        """Sum the tokens of one source epoch."""
        if self.kept_tokens is not None:
            return self.kept_tokens
        if self.lengths is None:
            return 0
        total = int(self.lengths.sum(dtype=np.int64))
        if self.kept is not None:
            return int(self.lengths[self.kept].sum(dtype=np.int64))
        if self.gaps is None:
            return total
        return total - int(self.lengths[self.gaps + np.arange(len(self.gaps))].sum(dtype=np.int64))

    @property
    def mean(self) -> Fraction:
        """Mean length of the samples delivered, exact; 0 without one."""
        if self._mean is None:
            self._mean = Fraction(self.tokens, self.n) if self.n else Fraction(0)
        return self._mean

    def order(self, epoch: int) -> Permutation | LocalPermutation | None:
        """Give the permutation of a source epoch; None in order."""
        if self.seed is None:
            return None
        order = self._orders.get(epoch)
        if order is None:
            key = (self.seed, "shuffle", self.name, epoch)
            near = self.locality
            order = Permutation(self.n, *key) if near is None else LocalPermutation(self.n, near, *key)
            self._orders[epoch] = order
            while len(self._orders) > CACHED:
                self._orders.popitem(last=False)
        return order

    def samples(self, draws: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give the index of the sample of each draw: int64 (n,) -> int64 (n,). Draws may be of any source epoch."""
        if not len(draws):
            return draws
        n = self.n
        first, last = int(draws[0]) // n, int(draws[-1]) // n
        if first == last or self.seed is None:
            place = draws - first * n if first == last else draws % n
            order = self.order(first)
            index = place if order is None else order(place)
        else:
            index = np.empty(len(draws), np.int64)
            epochs = draws // n
            for e in range(int(epochs.min()), int(epochs.max()) + 1):
                mine = np.flatnonzero(epochs == e)
                order = self.order(e)
                assert order is not None
                index[mine] = order(draws[mine] - e * n)
        if self.gaps is not None:
            return index + np.searchsorted(self.gaps, index, side="right")
        return index if self.kept is None else self.kept[index]

    def draw_of(self, sample: int, epoch: int) -> int | None:
        """Give the draw that delivers a sample in a source epoch; None where it is not kept."""
        place = sample
        if self.gaps is not None:
            gaps = self.gaps
            out = bisect_left(range(len(gaps)), sample, key=lambda j: int(gaps[j]) + j)
            if out < len(gaps) and int(gaps[out]) + out == sample:
                return None
            place -= out
        elif self.kept is not None:
            place = int(np.searchsorted(self.kept, sample))
            if place >= len(self.kept) or self.kept[place] != sample:
                return None
        if not 0 <= place < self.n:
            return None
        order = self.order(epoch)
        return epoch * self.n + (place if order is None else int(order.inverse(place)))


def by_source(source: NDArray[Any], sources: int) -> tuple[NDArray[np.intp], list[int]]:
    """Sort samples by source: their numbers, int (n,), equal ones as they come, and the end of each source among them.

    Args:
        source: int (n,), source of each sample.
        sources: how many there are.
    """
    few = source.astype(np.int16) if sources < 1 << 15 else source  # sorted by digits, in a tenth of the time
    return few.argsort(kind="stable"), np.bincount(source, minlength=sources).cumsum().tolist()


def picked(columns: Sequence[NDArray[Any]], source: NDArray[Any], index: NDArray[np.int64]) -> NDArray[np.int64]:
    """Give a value for each of some samples of several sources, int64 (n,).

    Args:
        columns: of each source, the values of its samples.
        source: int (n,), source of each sample.
        index: int64 (n,), its index there.
    """
    if len(columns) == 1:
        return columns[0][index].astype(np.int64)
    order, ends = by_source(source, len(columns))
    out, mine = np.empty(len(index), np.int64), index[order]
    for column, a, b in zip(columns, [0, *ends], ends, strict=False):
        out[order[a:b]] = column[mine[a:b]]
    return out
