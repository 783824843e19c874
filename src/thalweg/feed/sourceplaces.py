"""Where each source of a mix or concat stands: its own epoch, and the samples of it that were handed over in that.

Decides nothing: of a planned feed both follow from the place in closed form, of a stream from what was read. Asked by
logs, at the steps that they write.
"""

from typing import Any

import numpy as np

from thalweg.feed import stages as st
from thalweg.feed.planned import PlannedNode
from thalweg.feed.stream import StreamNode
from thalweg.plan.epoch import Order
from thalweg.plan.steps import Place

Places = dict[str, tuple[int, int]]  # source -> (its epoch, samples of it)


def places_of_sources(node: Any) -> Places:
    """Give source -> (epoch, samples handed over in it); empty where there is one source.

    Of a planned feed over all ranks, the same on each; of a stream the sub-streams of this rank, items that were read.
    """
    if isinstance(node, PlannedNode):
        return _planned(node.compiled.order, node.place, [leaf.name for leaf in node.compiled.leaves])
    head = node.feed.stages[0] if isinstance(node, StreamNode) else None
    if not isinstance(head, st.Concat | st.Mix):
        return {}
    parts = list(zip(*(origin[1] for origin in node.origins), strict=True))
    return {name: _read(of) for (name, _), of in zip(head.feeds, parts, strict=True)}


def together(ranks: "list[Places]", *, planned: bool) -> Places:
    """Put what ranks say together: a planned feed's is the same on all."""
    if planned or len(ranks) == 1:
        return ranks[0]
    return {n: (min(r[n][0] for r in ranks), sum(r[n][1] for r in ranks)) for n in ranks[0]}


def _planned(order: Order, place: Place, names: list[str]) -> Places:
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


def _read(of: Any) -> tuple[int, int]:
    return min(int(p[0]) for p in of), sum(_items(p) for p in of)


def _items(origin: Any) -> int:
    return sum(map(_items, origin[1])) if isinstance(origin[1], list | tuple) else int(origin[1])
