"""The micro-batches of one rank, in order: which rows each takes and how wide it is, before anything is read.

Decides how the order of rows, the steps and the cut per rank come together for one place in the job, and what a
micro-batch is told of its step. The arithmetic is that of `plan`. Reads no token.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from thalweg.core.batch import Batch, BatchInfo
from thalweg.core.errors import StateError
from thalweg.feed import stages as st
from thalweg.feed.compile import Compiled
from thalweg.feed.even import Dealer, Shapes, balanced_order, row_widths, warn_uneven
from thalweg.feed.identity import UNCHANGED
from thalweg.feed.node import RunOptions
from thalweg.feed.weights import LabelCounter
from thalweg.plan.epoch import Block
from thalweg.plan.ramp import Ramp
from thalweg.plan.steps import REPEATED, Place, Span, Step, Walk, cut


@dataclass(eq=False)
class Micro:
    """One micro-batch of this rank, still to be read.

    Args:
        step: the step it belongs to.
        number: of the step in the run.
        micro: its number in the step.
        last: of its step.
        spans: its rows.
        filler: rows of weight zero behind them.
        digests: of the ids of its rows, uint64 of each end to end, once they are read.
        shape: rows and width of a batch of single samples, where batches differ; one for all ranks.
        width: tokens of its packed rows, where row lengths differ; one for all ranks.
        straggler: cost of the step's busiest rank over the mean, where rows are dealt by cost.
    """

    step: Step
    number: int
    micro: int
    last: bool
    spans: tuple[Span, ...]
    filler: int
    digests: bytes | None = None
    shape: tuple[int, int] | None = None
    width: int | None = None
    straggler: float | None = None

    @property
    def rows(self) -> int:
        """Count its rows, filler left out."""
        if len(self.spans) == 1:
            return self.spans[0].stop - self.spans[0].start
        return sum(s.stop - s.start for s in self.spans)


class Micros:
    """What one rank takes.

    Args:
        compiled: the feed.
        options: how it is run; the place in the job is in it.
    """

    def __init__(self, compiled: Compiled, options: RunOptions) -> None:
        self.compiled, self.options = compiled, options
        stage = compiled.batch if compiled.batch is not None else st.Batch(1)
        self.ranks = options.topology.dp_size * options.accumulation  # micro-batches of a step, over all ranks
        self.ramp = Ramp.of(stage.size if isinstance(stage, st.Batch) else 1, self.ranks)
        self.labels = LabelCounter(compiled)
        self.arrange()

    def arrange(self, run: int | None = None, window: int | None = None) -> None:
        """Set up the order of rows and who takes which: balanced where the feed asks for it.

        Args:
            run: R of a state; None: the feed's, else a step of this layout.
            window: W of a state; None: the feed's, else 32 runs.

        A step of this layout is the largest of its ramp, where it has one: smaller ones that divide it stay even.
        """
        options, compiled = self.options, self.compiled
        lengths = compiled.order.lengths
        self.shapes = (
            Shapes(compiled.batch, lengths) if isinstance(compiled.batch, st.Bucket | st.TokenBudget) else None
        )
        self.widths = row_widths(compiled)
        even = balanced_order(compiled, run=run, window=window, size=self.ramp.largest, carry=options.tail == "carry")
        self.even, self.order = even, compiled.order if even is None else even
        self.walk = Walk(self.order, self.ramp, options.tail, options.epochs)
        self.dealer = None
        if even is not None and compiled.balance is not None and self.shapes is None:
            self.dealer = Dealer(even, options.topology.dp_size, options.accumulation)
            if run is not None or self.ramp.last:
                warn_uneven(even.run, [n for _, n in self.ramp.entries])

    @property
    def fixed(self) -> dict[str, int]:
        """Run and window of a balanced order: what is fixed at the first start."""
        return {} if self.even is None else {"run": self.even.run, "window": self.even.window}

    @property
    def layout(self) -> dict[str, Any]:
        """How the order is cut, for a ledger."""
        options, stage = self.options, self.compiled.batch
        sizes = stage.size if isinstance(stage, st.Batch) else 1
        return {
            "micro": sizes,
            "accumulation": options.accumulation,
            "stride": options.topology.dp_size * sizes if isinstance(sizes, int) else 0,
            "tail": options.tail,
            "seed": options.seed,
            **self.fixed,
        }

    def base(self, epoch: int) -> int:
        """Count the rows of earlier epochs, where the order or the size of a step depends on them; else 0."""
        if self.options.tail != "carry" or (self.even is None and not self.ramp.last):
            return 0
        return sum(self.order.rows(e) for e in range(epoch))

    def refuse_outside(self, epoch: int, block: int, row: int) -> None:
        """Refuse a place that the order does not have: a `for` from there would give nothing.

        Raises:
            StateError: the block or the row is not there.
        """
        order = self.order
        blocks = order.num_blocks(epoch)
        rows = order.num_rows(epoch, block) if block < blocks and row else row + 1
        if (block >= blocks and (block or row)) or row >= rows:
            raise StateError(
                f"the state stands at row {row:,} of block {block:,} of epoch {epoch:,}, "
                + (f"which has {rows:,} rows" if block < blocks else f"and the epoch has {blocks:,} blocks"),
                fix=UNCHANGED,
            )

    def of(self, place: Place, number: int) -> Iterator[Micro]:
        """Give this rank's micro-batches of a `for` from a place, nothing read yet.

        Args:
            place: where the `for` begins.
            number: of its first step in the run.
        """
        end = self.options.max_steps
        for step in self.walk.steps(place):
            if end is not None and number >= end:
                return
            yield from self.share(step, number, self.options.topology.dp_rank)
            number += 1

    def share(self, step: Step, number: int, rank: int) -> list[Micro]:
        """Give the micro-batches of a rank in a step."""
        many, rows = self.options.accumulation, step.size // self.ranks
        group = rows * self.ranks // many
        dealt, straggler = (None, None) if self.dealer is None else self.dealer.deal(step, rank)
        if self.even is not None:
            for span in step.spans:
                self.even.note(span)
        out: list[Micro] = []
        for m in range(many):
            first = m * group + rank * rows
            spans, filler = cut(step, first, first + rows) if dealt is None else dealt[m]
            micro = Micro(step, number, m, m == many - 1, spans, filler, straggler=straggler)
            if self.even is not None:
                self._shape(micro, m * group, (m + 1) * group)
            out.append(micro)
        return out

    def unread(self, place: Place, number: int) -> Iterator[tuple[Batch, Micro]]:
        """Give the micro-batches of `of` as empty batches: who stands where, and nothing read."""
        for micro in self.of(place, number):
            rows, filler = micro.rows, micro.filler
            if micro.shape is not None:  # each document is a row
                rows = sum(int(b.offsets[z] - b.offsets[a]) for b, a, z in self.blocks([micro]))
                filler = micro.shape[0] - rows
            info = BatchInfo(weight=np.append(np.ones(rows, np.float32), np.zeros(filler, np.float32)))
            self.inform(info, micro, self.label_tokens([micro])[0])
            yield Batch(info=info), micro

    def stats(self, place: Place) -> dict[str, Any]:
        """Give what the plan tells: how even steps are, rows of the next one where that changes, what is not known."""
        out: dict[str, Any] = {} if self.dealer is None else self.dealer.stats()
        out |= {"step_rows": self.walk.size(place)} if self.ramp.last else {}
        if self.compiled.loss_unknown is not None:
            out["step_label_tokens"] = f"unknown on several ranks: {self.compiled.loss_unknown}"
        return out

    def _shape(self, micro: Micro, first: int, stop: int) -> None:
        """Give a micro-batch the shape that rows first to stop of its step need: those of all ranks."""
        assert self.even is not None
        if self.shapes is not None:
            micro.shape = self.shapes.of(cut(micro.step, first, stop)[0], self.even)
        elif self.widths is not None:
            micro.width = self.widths.of(cut(micro.step, first, stop)[0], self.even)

    def blocks(self, group: Sequence[Micro]) -> list[tuple[Block, int, int]]:
        """Give the rows of consecutive micro-batches as (block, first, end); rows that follow each other as one."""
        out: list[tuple[int, int, int, int]] = []
        for micro in group:
            for s in micro.spans:
                last = out[-1] if out else None
                if last is not None and last[3] == s.start and last[1] == s.block and last[0] == s.epoch:
                    out[-1] = (s.epoch, s.block, last[2], s.stop)
                else:
                    out.append((s.epoch, s.block, s.start, s.stop))
        return [(self.order.block(epoch, block), start, stop) for epoch, block, start, stop in out]

    def label_tokens(self, group: Sequence[Micro]) -> list[int | None]:
        """Count the tokens in the loss of the step of each micro-batch, all ranks; None where the table cannot tell."""
        if not self.labels.known:
            return [None] * len(group)
        steps = {micro.number: micro.step for micro in group}
        found = dict(zip(steps, self.labels.counts(list(steps.values()), self.order), strict=True))
        return [found[micro.number] for micro in group]

    def inform(self, info: Any, micro: Micro, label_tokens: int | None) -> None:
        """Tell a batch where it stands, and how many tokens of its step are in the loss, where the table knows."""
        info.epoch, info.step, info.micro, info.last = micro.step.epoch, micro.number, micro.micro, micro.last
        info.straggler = micro.straggler
        if label_tokens is not None:
            info.step_label_tokens = label_tokens
        at = 0
        for span in micro.spans:  # rows that come again to fill the step are no rows of the epoch
            n = span.stop - span.start
            if span.mark == REPEATED:
                info.weight[slice(None) if micro.shape else slice(at, at + n)] = 0.0
            at += n
