"""Equal work and equal shapes for all ranks of a step: `.balance()`, `.bucket()`, `.token_budget()` of a planned feed.

Decides which rows of a step a rank takes where rows cost differently, and how wide and how many the rows of a batch
are where batches differ in shape. The arithmetic is that of `plan.balance` and `plan.batch`. Reads nothing.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from thalweg.core.errors import ConfigError, StateError
from thalweg.core.sample import offsets_of
from thalweg.feed import stages as st
from thalweg.plan import batch as by_length
from thalweg.plan.balance import WINDOW_RUNS, Cost, Costs, deal, straggler
from thalweg.plan.balanced import BalancedOrder, row_lengths
from thalweg.plan.epoch import Block, Order, Packed
from thalweg.plan.steps import Span, Step

Ints = NDArray[np.int64]
LARGEST_BLOCK = 1 << 21  # draws; planned in about half a second
MIXED_RUN = 1 << 16  # tokens of a run that in a mix is sorted by cost
MIXED_WINDOW = 1 << 21  # tokens of its window


class BalanceWarning(UserWarning):
    """Balance that gives way to something else."""


def batch_packer(stage: st.Bucket | st.TokenBudget) -> Any:
    """Give the packer whose rows are the batches of a stage."""
    return partial(_batches, stage=stage)


def _batches(lengths: NDArray[Any], _source: Any, _index: Any, *, stage: st.Bucket | st.TokenBudget) -> Packed:
    if isinstance(stage, st.TokenBudget):
        made = by_length.token_budget(lengths, stage.tokens, window=stage.window, multiple=stage.pad_to_multiple_of)
    else:
        made = by_length.bucket(
            lengths,
            stage.boundaries,
            stage.sizes,
            remainder=cast("by_length.Remainder", stage.remainder),
            pad_to=cast("by_length.PadTo", stage.pad_to),
            multiple=stage.pad_to_multiple_of,
        )
    return Packed(made.rows.order, made.rows.offsets, capacities=made.rows.capacities, loss=made.loss.reasons)


class Shapes:
    """The shape of the batches of a step: one for all ranks.

    Args:
        stage: the batching stage.
        lengths: gives tokens of samples: (source, index) -> int64.
    """

    def __init__(self, stage: st.Bucket | st.TokenBudget, lengths: Any) -> None:
        self.stage, self.lengths = stage, lengths

    def cost(self, block: Block) -> Costs:
        """Give the padded tokens of each batch of a block, float64 (r,), narrow ones apart from wide ones."""
        sizes, widths = self.shapes(block)
        return (widths * 1e6 + sizes).astype(np.float64)

    def shapes(self, block: Block) -> tuple[Ints, Ints]:
        """Give rows and width of each batch of a block."""
        if "batch width" not in block.sums:
            block.sums["batch rows"], block.sums["batch width"] = self._count(block)
        return block.sums["batch rows"], block.sums["batch width"]

    def _count(self, block: Block) -> tuple[Ints, Ints]:
        tokens = row_lengths(block, self.lengths)
        counts = np.diff(block.offsets)
        longest = np.zeros(len(block), np.int64)
        real = counts > 0
        if real.any():
            longest[real] = np.maximum.reduceat(tokens, block.offsets[:-1][real])
        stage = self.stage
        if isinstance(stage, st.Bucket):
            which = np.searchsorted(np.asarray(stage.boundaries), longest)
            if stage.remainder in {"pad", "up"}:
                counts = np.asarray(stage.sizes)[which]
            if stage.pad_to == "boundary":
                limits = np.append(np.asarray(stage.boundaries), 0)
                longest = np.maximum(longest, limits[which])
        multiple = stage.pad_to_multiple_of
        return counts, -(-longest // multiple) * multiple

    def of(self, spans: Sequence[Span], order: BalancedOrder) -> tuple[int, int]:
        """Give (rows, width) that hold every batch of these spans: the micro-batch of all ranks."""
        rows, width = 1, 1
        for span in spans:
            sizes, widths = self.shapes(order.block(span.epoch, span.block))
            rows = max(rows, int(sizes[span.start : span.stop].max(initial=0)))
            width = max(width, int(widths[span.start : span.stop].max(initial=0)))
        return rows, width


class RowWidths:
    """The width of packed rows where the plan has several row lengths: one for all ranks of a micro-batch.

    Args:
        stage: the packing stage.
        lengths: gives tokens of samples: (source, index) -> int64.
    """

    def __init__(self, stage: st.Pack, lengths: Any) -> None:
        self.capacities, self.align, self.lengths = np.asarray(stage.capacities), stage.align, lengths

    def widths(self, block: Block) -> Ints:
        """Give the row length that each row of a block needs, int64 (r,); a document alone may need more."""
        if "row width" not in block.sums:
            block.sums["row width"] = self._widths(block)
        return block.sums["row width"]

    def _widths(self, block: Block) -> Ints:
        sizes = row_lengths(block, self.lengths)
        ends = offsets_of(-(-sizes // self.align) * self.align)
        tokens = np.diff(ends[block.offsets])
        longer = np.append(self.capacities, 0)[np.searchsorted(self.capacities, tokens)]
        widths: Ints = np.maximum(tokens, longer)
        return widths

    def before(self, block: Block, costs: Costs) -> Costs:
        """Rank the rows of a block by width, those of one width by cost, float64 (r,)."""
        rank = np.empty(len(costs))
        rank[np.lexsort((costs, self.widths(block)))] = np.arange(len(costs))
        return rank

    def of(self, spans: Sequence[Span], order: BalancedOrder) -> int:
        """Give the width that holds every row of these spans: the micro-batch of all ranks."""
        widths = (self.widths(order.block(s.epoch, s.block))[s.start : s.stop].max(initial=0) for s in spans)
        return max((int(w) for w in widths), default=int(self.capacities[0]))


def row_widths(compiled: Any) -> RowWidths | None:
    """Give the widths of rows where they differ by plan; None where all rows are padded to one, or to none."""
    pack: st.Pack | None = compiled.pack
    batch = compiled.batch
    if pack is None or len(pack.capacities) == 1 or getattr(batch, "pad", "right") == "none":
        return None
    return RowWidths(pack, compiled.order.lengths) if getattr(batch, "pad_to", None) is None else None


def balanced_order(
    compiled: Any, *, run: int | None, window: int | None, size: int, carry: bool
) -> BalancedOrder | None:
    """Give the balanced order of a feed that asks for one.

    Args:
        compiled: the feed.
        run: R of a state; None: the stage's, else `size`.
        window: W of a state; None: the stage's, else 32 runs.
        size: rows of a step of the present layout.
        carry: the tail is "carry".
    """
    order: Order = compiled.order
    stage: st.Balance | None = compiled.balance
    key = order.seed
    if stage is not None or isinstance(compiled.batch, st.Bucket | st.TokenBudget) or row_widths(compiled) is not None:
        order.lay_blocks(block_draws(compiled, run or (stage and stage.run) or size))
    if isinstance(compiled.batch, st.Bucket | st.TokenBudget):
        r = run or size
        shapes = Shapes(compiled.batch, order.lengths)
        return BalancedOrder(order, shapes.cost, window=window or WINDOW_RUNS * r, run=r, carry=carry, key=key)
    widths = row_widths(compiled)
    if stage is None and widths is None:
        return None
    stage = stage or st.Balance("tokens")
    if any(t.lengths is None for t in order.sources):
        raise ConfigError("balance needs the lengths of samples", where="balance", fix="add .cache() after the map")
    r = run or stage.run or size
    wanted = window or stage.window
    if wanted is None:
        wanted = _window(compiled, r, widths)
    elif wanted % r:
        raise ConfigError(f"a window of {wanted} rows is no multiple of its run of {r}", where="balance")
    cost = Cost(stage.a, stage.b) if stage.by == "cost" else Cost()

    def of(block: Block) -> Costs:
        return cost.rows(row_lengths(block, order.lengths), block.offsets)

    sort: Callable[[Block, Costs], Costs] | None = None if widths is None else widths.before
    if widths is None and wanted == r and len(order.sources) > 1:
        sort = _as_planned
    return BalancedOrder(order, of, window=wanted, run=r, carry=carry, key=key, sort=sort)


def _as_planned(_block: Block, costs: Costs) -> Costs:
    """Leave rows where they are: a window of one run has nothing to sort that dealing does not do."""
    return np.zeros(len(costs))


def block_draws(compiled: Any, run: int) -> int:
    """Give the draws of a block that holds at least a hundred runs of rows, so that few rows lie at its ends."""
    order: Order = compiled.order
    draws = 100 * run * max(1.0, _draws_a_row(compiled))
    wanted = 1 << max(0, int(draws) - 1).bit_length()
    return max(order.given, min(wanted, LARGEST_BLOCK))


def _draws_a_row(compiled: Any) -> float:
    """Estimate how many draws a row holds, from mean lengths."""
    sources = compiled.order.sources
    n = sum(t.n for t in sources)
    mean = sum(t.tokens for t in sources) / n if n else 0.0
    if isinstance(compiled.batch, st.Bucket):
        return float(max(compiled.batch.sizes))
    tokens = compiled.batch.tokens if isinstance(compiled.batch, st.TokenBudget) else 0
    tokens = tokens or (compiled.pack.longest if compiled.pack is not None else 0)
    return tokens / mean if mean else 1.0


def _window(compiled: Any, run: int, widths: RowWidths | None) -> int:
    """Give W where nothing is said: 32 runs, but in a mix no more than keeps its shares.

    Runs of rows sorted by cost are sorted by source too. Measured (two sources, means 200 and 2,500, half the tokens
    each): the largest deviation of a share in 10 M tokens is 3.1 standard errors in random order, 3.5 with runs of
    65 k tokens in windows of any size, 4 with 131 k, 5 to 7 with 262 k and 10 to 18 with 1 M. So runs above 65 k stay
    as they are planned, and each step is dealt to its ranks by cost alone.
    """
    sources = compiled.order.sources
    if len(sources) == 1 or widths is not None:
        return WINDOW_RUNS * run
    tokens = compiled.pack.longest if compiled.pack is not None else sum(float(t.mean) for t in sources) / len(sources)
    if run * tokens <= MIXED_RUN:
        return max(1, min(WINDOW_RUNS, int(MIXED_WINDOW / max(run * tokens, 1)))) * run
    warnings.warn(
        f"balance in a mix: steps of {run * tokens / 1e6:.1f} M tokens sorted by cost are sorted by source too: rows"
        " stay in the order of the mix and each step is dealt by cost alone; balance(window=...) sorts them anyway",
        BalanceWarning, stacklevel=2,
    )  # fmt: skip
    return run


def fixed(state: Mapping[str, Any], stage: st.Balance | None) -> tuple[int, int]:
    """Give run and window of a state: both were fixed at the first start.

    Raises:
        StateError: the feed says others.
    """
    was = {"run": int(state["run"]), "window": int(state["window"])}
    for word, value in was.items():
        now = getattr(stage, word, None)
        if now is not None and now != value:
            raise StateError(
                f"the run began with balance({word}={value}) and goes on with {word}={now}", fix=f"say {word}={value}"
            )
    return was["run"], was["window"]


def warn_uneven(run: int, sizes: Sequence[int]) -> None:
    """Say that steps of some size hold rows of several runs, and are less even for it; their order stays."""
    odd = [n for n in sizes if run % n]
    if odd:
        warnings.warn(
            f"balance: steps of {odd[0]:,} rows do not divide runs of {run:,}, which were fixed at the first start: the"
            " order stays and steps are less even",
            BalanceWarning, stacklevel=2,
        )  # fmt: skip


class Dealer:
    """Deals the rows of a step to ranks by cost.

    Args:
        order: of rows.
        world: data-parallel ranks.
        accumulation: micro-batches of a step.
    """

    def __init__(self, order: BalancedOrder, world: int, accumulation: int) -> None:
        self.order, self.world, self.accumulation = order, world, accumulation
        self.steps, self.factors, self.worst = 0, 0.0, 1.0

    def deal(self, step: Step, rank: int) -> tuple[list[tuple[tuple[Span, ...], int]], float]:
        """Give this rank's rows of each micro-batch (spans of one row, filler rows), and the straggler factor."""
        rows: list[Span] = []
        costs: list[NDArray[np.float64]] = []
        for span in step.spans:
            self.order.note(span)
            costs.append(self.order.costs(span.epoch, span.block)[span.start : span.stop])
            rows += [span.part(i, i + 1) for i in range(span.stop - span.start)]
        cost = np.concatenate([*costs, np.zeros(step.filler)])
        micro = len(cost) // (self.world * self.accumulation)
        dealt = deal(cost, self.world, micro, self.accumulation)
        factor = straggler(cost, dealt)
        self.steps, self.factors, self.worst = self.steps + 1, self.factors + factor, max(self.worst, factor)
        out: list[tuple[tuple[Span, ...], int]] = []
        for m in range(self.accumulation):
            mine = [i for i in dealt[m, rank].tolist() if i < len(rows)]
            out.append((tuple(rows[i] for i in mine), micro - len(mine)))
        return out, factor

    def stats(self) -> dict[str, Any]:
        """Give the straggler factor (cost of the busiest rank over the mean): over the steps planned, and the worst."""
        mean = self.factors / self.steps if self.steps else 1.0
        return {"straggler": mean, "straggler_worst": self.worst, "run": self.order.run, "window": self.order.window}
