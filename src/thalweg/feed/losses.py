"""What a planned feed leaves out or cuts: samples that its table dropped, documents that its packing cut or refused.

Decides that the table is counted for one pass over the data, and packing for the blocks of rows that were begun. Both
count documents and tokens by reason. Knows no step.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from thalweg.plan.balanced import Planned
from thalweg.plan.steps import REPEATED, Span

Counts = Mapping[str, tuple[int, int]]  # reason -> (documents, tokens)


class Losses:
    """Counts what is not in the rows handed over.

    Args:
        table: left out by the table.
    """

    def __init__(self, table: Counts) -> None:
        self.table = {reason: n for reason, n in table.items() if n[0]}
        self.packing: dict[str, tuple[int, int]] = {}
        self._last = (-1, -1)
        self._begun: list[tuple[int, int]] = []  # blocks that are not counted yet

    def add(self, spans: Sequence[Span]) -> None:
        """Note the rows of a step."""
        for span in spans:
            at = (span.epoch, span.block)
            if at > self._last and span.mark != REPEATED:
                self._last = at
                self._begun.append(at)

    def stats(self, order: Planned) -> dict[str, Any]:
        """Give {"left_out": reason -> samples, "lost": reason -> {"documents", "tokens"}}; nothing where all is whole.

        "lost" has both: what the table left out in a pass, and what packing cut in the blocks begun so far. A document
        that is "split" loses no token.
        """
        for epoch, number in self._begun:
            for reason, (documents, tokens) in order.block(epoch, number).loss.items():
                before = self.packing.get(reason, (0, 0))
                self.packing[reason] = (before[0] + documents, before[1] + tokens)
        self._begun.clear()
        lost = written({**self.table, **self.packing})
        left = {reason: documents for reason, (documents, _) in self.table.items()}
        return {k: v for k, v in (("left_out", left), ("lost", lost)) if v}


def written(counts: Counts) -> dict[str, dict[str, int]]:
    """Write counts as JSON-like data."""
    return {reason: {"documents": d, "tokens": t} for reason, (d, t) in counts.items()}


def lines(lost: Mapping[str, Mapping[str, int]], where: str = "") -> list[str]:
    """Say for people what `written` holds, a line a reason."""
    return [
        f"  {where}{reason}: {n['documents']:,} documents, {n['tokens']:,} tokens not in any row"
        for reason, n in lost.items()
    ]
