"""How many tokens of a step are in the loss, over all ranks, from the table alone.

Decides when the table knows it: without functions on samples, and either nothing marks the loss (then all tokens
but each document's first) or the records count their label tokens. Reads no token.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from thalweg.core.sample import LABELS, LOSS_SPANS
from thalweg.feed.compile import Compiled, gather_facts
from thalweg.plan.balanced import Planned
from thalweg.plan.epoch import Block
from thalweg.plan.steps import Span


class LabelCounter:
    """Counts label tokens of rows.

    Args:
        compiled: the feed. `known` says whether its table can tell.
    """

    def __init__(self, compiled: Compiled) -> None:
        self.compiled = compiled
        leaves = compiled.leaves
        columns = [leaf.source.columns for leaf in leaves]
        marked = [c is None or LABELS in c or LOSS_SPANS in c for c in columns]
        self._all_tokens = not any(marked)
        cut = compiled.pack is not None and (
            compiled.pack.policy == "concat_split" or compiled.pack.overlong in {"truncate", "split"}
        )
        lengths = all(leaf.source.lengths is not None for leaf in leaves)
        counted = all("label_tokens" in leaf.facts for leaf in leaves) and not cut
        plain = not any(leaf.maps for leaf in leaves) and not compiled.row_maps
        self.known = plain and lengths and (self._all_tokens or counted)

    def count(self, spans: Sequence[Span], order: Planned) -> int:
        """Count the label tokens of rows."""
        total = 0
        for span in spans:
            block = order.block(span.epoch, span.block)
            sums = block.row_sums("label_tokens", self._of)
            total += int(sums[span.stop] - sums[span.start])
        return total

    def _of(self, block: Block) -> NDArray[np.int64]:
        leaves = self.compiled.leaves
        if not self._all_tokens:
            counted = gather_facts(leaves, "label_tokens", block.source, block.index)
            assert counted is not None
            return counted
        lengths = block.lengths
        if lengths is None:
            lengths = self.compiled.order.lengths(block.source, block.index)
        assert lengths is not None
        return np.maximum(lengths - 1, 0)
