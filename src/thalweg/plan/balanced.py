"""An order whose rows stand balanced: each block's rows in windows sorted by cost, as `plan.balance` puts them.

Decides nothing of its own: it looks up how many rows come before a block, and arranges a block when it is asked for.
The order depends on window and run, never on rank or world size. Knows no step.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from thalweg.core.seeds import Key
from thalweg.plan.balance import Costs, order_rows
from thalweg.plan.epoch import Block
from thalweg.plan.steps import Span

KEPT = 3  # arranged blocks kept


class Planned(Protocol):
    """What is arranged: blocks of rows, and their numbers."""

    def num_blocks(self, epoch: int) -> int:
        """Count the blocks of an epoch."""
        ...

    def num_rows(self, epoch: int, number: int) -> int:
        """Count the rows of a block."""
        ...

    def rows(self, epoch: int) -> int:
        """Count the rows of an epoch."""
        ...

    def block(self, epoch: int, number: int) -> Block:
        """Plan a block, or give the one planned before."""
        ...


class BalancedOrder:
    """Rows of all epochs, balanced.

    Args:
        order: the rows as planned.
        cost: cost of each row of a block, float64 (r,).
        window: W, rows sorted together; a multiple of `run`.
        run: R, rows that stay together.
        carry: rows are counted from the run's start, not from the epoch's (tail "carry").
        key: seeds the order of runs.
        sort: what windows are sorted by, float64 (r,), from a block and its costs; None: the cost.
    """

    def __init__(
        self,
        order: Planned,
        cost: Callable[[Block], Costs],
        *,
        window: int,
        run: int,
        carry: bool,
        key: Key,
        sort: Callable[[Block, Costs], Costs] | None = None,
    ) -> None:
        self.sort = sort
        self.order, self.cost, self.window, self.run, self.carry, self.key = order, cost, window, run, carry, key
        self._before: dict[tuple[int, int], int] = {}
        self._kept: OrderedDict[tuple[int, int], tuple[Block, NDArray[np.float64]]] = OrderedDict()

    def num_blocks(self, epoch: int) -> int:
        """Count the blocks of an epoch."""
        return self.order.num_blocks(epoch)

    def num_rows(self, epoch: int, number: int) -> int:
        """Count the rows of a block."""
        return self.order.num_rows(epoch, number)

    def rows(self, epoch: int) -> int:
        """Count the rows of an epoch."""
        return self.order.rows(epoch)

    def note(self, span: Span) -> None:
        """Remember how many rows come before a span's block, so that they need not be counted."""
        if len(self._before) > 1024:
            self._before.clear()
        self._before[span.epoch, span.block] = span.before

    def before(self, epoch: int, number: int) -> int:
        """Count the rows before a block: of the epoch, with tail "carry" of the run."""
        known = self._before.get((epoch, number))
        if known is not None:
            return known
        rows = sum(self.order.num_rows(epoch, b) for b in range(number))
        return rows + (sum(map(self.order.rows, range(epoch))) if self.carry else 0)

    def block(self, epoch: int, number: int) -> Block:
        """Give a block with its rows in their balanced order."""
        return self._arranged(epoch, number)[0]

    def costs(self, epoch: int, number: int) -> Costs:
        """Give the cost of each row of a block, in the balanced order, float64 (r,)."""
        return self._arranged(epoch, number)[1]

    def _arranged(self, epoch: int, number: int) -> tuple[Block, Costs]:
        kept = self._kept.get((epoch, number))
        if kept is not None:
            self._kept.move_to_end((epoch, number))
            return kept
        block = self.order.block(epoch, number)
        costs = self.cost(block)
        by = costs if self.sort is None else self.sort(block, costs)
        rows = order_rows(by, self.before(epoch, number), self.window, self.run, self.key, epoch, number)
        kept = self._kept[epoch, number] = (block.take(rows), costs[rows])
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return kept


def row_lengths(block: Block, lengths: Callable[[Any, Any], Any]) -> NDArray[np.int64]:
    """Give the tokens of each document of a block, int64 (m,); asks the table where the block does not hold them."""
    out: NDArray[np.int64] = lengths(block.source, block.index) if block.lengths is None else block.lengths
    return out
