"""What was handed over on all ranks, for `loader.stats()`: shares of sources, what rows leave out, how even steps are.

Decides that a step counts when its last micro-batch is handed over. The counting is that of its parts.
"""

from typing import Any

from thalweg.feed.compile import Compiled
from thalweg.feed.losses import Losses
from thalweg.feed.micros import Micro
from thalweg.feed.shares import Shares
from thalweg.plan.balanced import Planned


class Handed:
    """Counts steps that were handed over.

    Args:
        compiled: the feed.
    """

    def __init__(self, compiled: Compiled) -> None:
        self._shares = Shares([leaf.name for leaf in compiled.leaves], compiled.order.lengths)
        self._losses = Losses(compiled.losses)
        self._straggler: float | None = None
        one = len(compiled.leaves) == 1 and compiled.balance is None
        self._nothing = one and compiled.order.packer is None  # buckets are packed too

    def add(self, last: Micro, order: Planned) -> None:
        """Count a step.

        Args:
            last: its last micro-batch.
            order: of rows.
        """
        if self._nothing:  # to be told
            return
        self._shares.add(last.step.spans, order)
        self._losses.add(last.step.spans)
        self._straggler = last.straggler

    def stats(self, order: Planned) -> dict[str, Any]:
        """Give "proportions", "left_out" and "lost", and with balance "straggler_step", that of the last step."""
        out: dict[str, Any] = {**self._shares.stats(order), **self._losses.stats(order)}
        return out if self._straggler is None else {**out, "straggler_step": self._straggler}
