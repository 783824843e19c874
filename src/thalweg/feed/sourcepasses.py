"""How often each sample of each source was delivered in each pass over that source: the count of SEMANTICS 2.4.

Draw k of a source of n samples is an element of its pass k div n. Decides which draw a delivered row stands for: a
block may hold a sample of two passes. Plans blocks; reads no data.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.feed.compile import Compiled
from thalweg.plan.balanced import Planned
from thalweg.plan.epoch import Block

Ints = NDArray[np.int64]


class SourcePasses:
    """Counts delivered samples by source and pass.

    Args:
        compiled: the feed, as the run had it.
        order: its rows, balanced where the run's were.
    """

    def __init__(self, compiled: Compiled, order: Planned) -> None:
        self.compiled, self.order = compiled, order
        self._seen: dict[tuple[int, int], NDArray[np.uint8]] = {}  # (source, pass) -> times each sample came, 255 most

    def add(self, epoch: int, rows: Ints) -> None:
        """Count rows of an epoch, int64 (r,), each once."""
        at = 0
        for number in range(self.order.num_blocks(epoch)):
            n = self.order.num_rows(epoch, number)
            mine = rows[(rows >= at) & (rows < at + n)] - at
            if len(mine):
                self._add(self.order.block(epoch, number), np.unique(mine))
            at += n

    def _add(self, block: Block, rows: Ints) -> None:
        here = np.zeros(len(block), np.bool_)
        here[rows] = True
        delivered = np.repeat(here, np.diff(block.offsets))
        first = np.ones(len(delivered), np.bool_) if block.start is None else block.start == 0  # once a sample
        passes = self._passes(block, first)
        keep = delivered[first]
        source, index = block.source[first][keep], block.index[first][keep]
        for s in np.unique(source).tolist():
            of_source = source == s
            for p in np.unique(passes[keep][of_source]).tolist():
                mine = index[of_source][passes[keep][of_source] == p]
                seen = self._seen.setdefault((s, p), np.zeros(self.compiled.order.sources[s].size, np.uint8))
                np.add.at(seen, mine, (seen[mine] < 255).astype(np.uint8))

    def _passes(self, block: Block, first: NDArray[np.bool_]) -> Ints:
        """Give the pass of each sample of a block, in the block's order; of one in two passes, the earlier first."""
        order, n = self.compiled.order, int(first.sum())
        if not order.repack:  # one arrangement of one source: each epoch is a pass
            return np.full(n, block.epoch)
        start, stop, _ = order.bounds(block.epoch, block.number)
        source, draw = order.draws(block.epoch, start, stop)
        _, index, _ = order.drawn(block.epoch, start, stop)
        sizes = np.array([t.n for t in order.sources], np.int64)
        number = draw // np.maximum(sizes[source], 1)
        planned = np.lexsort((number, index, source))
        there = np.lexsort((block.index[first], block.source[first]))
        out = np.empty(n, np.int64)
        out[there] = _matched(
            (source[planned], index[planned], number[planned]), block.source[first][there], block.index[first][there]
        )
        return out

    def counts(self) -> dict[str, dict[int, tuple[int, int]]]:
        """Give source -> pass -> (samples delivered, samples that the source delivers in a pass)."""
        out: dict[str, dict[int, tuple[int, int]]] = {}
        for (s, number), seen in sorted(self._seen.items()):
            name = self.compiled.leaves[s].name or "data"
            out.setdefault(name, {})[number] = (int(np.count_nonzero(seen)), self.compiled.order.sources[s].n)
        return out

    def twice(self) -> list[tuple[str, int, int]]:
        """Give (source, pass, index) of samples that came more than once in a pass; repeats in a source are its own."""
        return [
            (self.compiled.leaves[s].name or "data", number, int(i))
            for (s, number), seen in sorted(self._seen.items())
            for i in np.flatnonzero(seen > 1)[:20]
        ]


def _matched(planned: tuple[NDArray[Any], Ints, Ints], source: NDArray[Any], index: Ints) -> Ints:
    """Give the pass of each delivered sample; both sides stand in the order of (source, index).

    Samples that a plan leaves out (truncated without a token in the loss) are in the first side only.
    """
    p_source, p_index, p_pass = planned
    big = int(max(p_index.max(initial=0), index.max(initial=0))) + 1
    wanted = p_source.astype(np.int64) * big + p_index
    key = source.astype(np.int64) * big + index
    start = np.searchsorted(wanted, key, side="left")
    again = np.arange(len(key)) - np.searchsorted(key, key, side="left")  # the how manyth of equal ones
    return p_pass[np.minimum(start + again, len(p_pass) - 1)]
