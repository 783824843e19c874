"""Which share of the tokens handed over came from each source of a mix.

Decides that rows are counted for all ranks of a step, and lazily: ranges of rows that follow each other are counted as
one. Knows no weights.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from thalweg.plan.balanced import Planned
from thalweg.plan.steps import REPEATED, Span


class Shares:
    """Counts tokens (samples, where lengths are unknown) by source.

    Args:
        names: of the sources.
        lengths: gives tokens of samples: (source, index) -> int64, or None.
    """

    def __init__(self, names: Sequence[str], lengths: Any) -> None:
        self.names, self.lengths = list(names), lengths
        self.counts = np.zeros(len(names), np.int64)
        self._open: tuple[int, int, int, int] | None = None  # epoch, block, first row, end

    def add(self, spans: Sequence[Span], order: Planned) -> None:
        """Count the rows of a step."""
        if len(self.names) == 1:
            return
        for span in spans:
            if span.mark == REPEATED:
                continue
            now = self._open
            if now is not None and now[:2] == (span.epoch, span.block) and now[3] == span.start:
                self._open = (*now[:3], span.stop)
            else:
                self._close(order)
                self._open = (span.epoch, span.block, span.start, span.stop)

    def _close(self, order: Planned) -> None:
        if self._open is None:
            return
        epoch, number, first, stop = self._open
        self._open = None
        block = order.block(epoch, number)
        a, b = int(block.offsets[first]), int(block.offsets[stop])
        source = block.source[a:b]
        sizes = block.lengths[a:b] if block.lengths is not None else self.lengths(source, block.index[a:b])
        self.counts += np.bincount(source, sizes, len(self.names)).astype(np.int64)

    def stats(self, order: Planned) -> dict[str, dict[str, float]]:
        """Give {"proportions": share of each source so far}; nothing before the first step, or for one source."""
        if len(self.names) == 1:
            return {}
        self._close(order)
        total = int(self.counts.sum())
        if not total:
            return {}
        return {"proportions": {n: int(c) / total for n, c in zip(self.names, self.counts, strict=True)}}
