"""Where each source of a mix or concat stands: its own epoch, and the samples of it that were handed over in that.

Decides nothing: of a planned feed both follow from the place in closed form, a stream counts them. Asked by logs, at
the steps that they write.
"""

from typing import Any

import numpy as np

from thalweg.feed import streamgiven
from thalweg.feed.planned import PlannedNode
from thalweg.feed.stream import StreamNode
from thalweg.feed.streamgiven import Counts
from thalweg.plan.epoch import Order
from thalweg.plan.steps import Place


def places_of_sources(node: Any) -> Counts:
    """Give source -> (epoch, samples handed over in it); empty where there is one source.

    Of a planned feed over all ranks, the same on each; of a stream the sub-streams of this rank.
    """
    if isinstance(node, PlannedNode):
        return _planned(node.compiled.order, node.place, [leaf.name for leaf in node.compiled.leaves])
    return node.given if isinstance(node, StreamNode) else {}


def together(ranks: list[Counts], *, planned: bool) -> Counts:
    """Put what ranks say together: a planned feed's is the same on all."""
    return ranks[0] if planned else streamgiven.together(ranks, ranks[0])


def _planned(order: Order, place: Place, names: list[str]) -> Counts:
    if len(names) == 1:
        return {}
    if place.block >= order.num_blocks(place.epoch):
        drawn = np.array(order.schedule.mark(place.epoch).draws, np.int64)
    else:
        first, _, _ = order.bounds(place.epoch, place.block)
        block = order.block(place.epoch, place.block)
        upto = int(block.offsets[place.row])
        begun = np.ones(upto, bool) if block.start is None else block.start[:upto] == 0  # a split document counts once
        drawn = _before(order, place.epoch, first) + np.bincount(block.source[:upto][begun], minlength=len(names))
    sizes = [table.n for table in order.sources]
    return {name: divmod(int(k), n) for name, k, n in zip(names, drawn, sizes, strict=True)}


def _before(order: Order, epoch: int, draw: int) -> Any:
    """Count the draws of each source in the run before a draw of an epoch, int64 (sources,)."""
    segment = next(s for s in reversed(order.schedule.segments(epoch)) if s.start <= draw)
    return np.array(segment.before, np.int64) + np.array(segment.mix.counts(draw - segment.start), np.int64)
