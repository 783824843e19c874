"""How many tokens of a step are in the loss, over all ranks, from the table alone.

Decides how they are counted: samples that mark nothing have all tokens but their first in the loss, others are counted
in the table, and of a sample that is cut inside a prompt the spans are read. Reads no token. Whether all of that is
known is `feed.losscount`.
"""

from collections.abc import Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from thalweg.feed.compile import Compiled, gather_facts
from thalweg.feed.cuts import labels_of_pieces
from thalweg.feed.losscount import marks_loss
from thalweg.plan.balanced import Planned
from thalweg.plan.epoch import Block
from thalweg.plan.steps import Step

Ints = NDArray[np.int64]


class LabelCounter:
    """Counts label tokens of rows.

    Args:
        compiled: the feed. `known` says whether its table can tell.
    """

    def __init__(self, compiled: Compiled) -> None:
        self.compiled = compiled
        self._all_tokens = not any(
            marks_loss(x.source) or (x.maps and "label_tokens" in x.facts) for x in compiled.leaves
        )
        self.known = compiled.loss_unknown is None

    def counts(self, steps: Sequence[Step], order: Planned) -> list[int]:
        """Count the label tokens of steps; rows that come again to fill one are left out."""
        out = np.zeros(len(steps), np.int64)
        spans = [(i, s) for i, step in enumerate(steps) for s in step.spans if s.mark is None]
        for (epoch, number), found in groupby(spans, key=lambda pair: pair[1][:2]):
            i, mine = zip(*found, strict=True)
            block = order.block(epoch, number)
            first, stop = np.array([s.start for s in mine]), np.array([s.stop for s in mine])
            sums = block.row_sums("label_tokens", self._of)
            out[list(i)] += sums[stop] - sums[first]  # a step has one span of a block
            if block.start is not None and not self._all_tokens:
                out[list(i)] += [
                    self._of_cut(block, a, b)
                    for a, b in zip(block.offsets[first].tolist(), block.offsets[stop].tolist(), strict=True)
                ]
        return out.tolist()

    def _of(self, block: Block) -> Ints:
        """Count each document or piece; 0 for a piece whose sample must be asked."""
        lengths = block.lengths
        if lengths is None:
            lengths = self.compiled.order.lengths(block.source, block.index)
        assert lengths is not None
        all_of_it: Ints = np.maximum(lengths - 1, 0)
        if self._all_tokens:
            return all_of_it
        counted = self._counted(block)
        if block.start is None or block.stop is None:
            return counted
        full = self.compiled.order.lengths(block.source, block.index)
        assert full is not None
        whole = (block.stop - block.start) == full
        plain = counted >= full - 1
        block.sums["pieces to ask"] = np.flatnonzero(~whole & ~plain & (counted > 0))
        return np.where(whole, counted, np.where(plain, np.maximum(block.stop - block.start - 1, 0), 0))

    def _counted(self, block: Block) -> Ints:
        """Give what the table counts of each whole document."""
        leaves = self.compiled.leaves
        found = gather_facts(leaves, "label_tokens", block.source, block.index)
        if found is not None:
            return found
        lengths = self.compiled.order.lengths(block.source, block.index)
        assert lengths is not None
        out: Ints = np.maximum(lengths.astype(np.int64) - 1, 0)
        for s, leaf in enumerate(leaves):
            if "label_tokens" in leaf.facts:
                mine = np.flatnonzero(block.source == s)
                out[mine] = leaf.facts["label_tokens"][block.index[mine]]
        return out

    def _of_cut(self, block: Block, first: int, end: int) -> int:
        """Count the pieces among documents [first, end) whose samples must be asked."""
        assert block.start is not None
        assert block.stop is not None
        asked = block.sums["pieces to ask"]
        at = asked[np.searchsorted(asked, first) : np.searchsorted(asked, end)]
        if not len(at):
            return 0
        leaves = self.compiled.leaves
        return int(labels_of_pieces(leaves, block.source[at], block.index[at], block.start[at], block.stop[at]).sum())
