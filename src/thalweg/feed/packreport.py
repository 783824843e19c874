"""What the packing, or the batches by length, of a feed cost: worked out from its table ahead of any run.

Decides how the blocks of an epoch are planned for a report, in worker processes where the feed can be sent there, and
what batches of padded samples are compared with. The figures of a plan are `plan.pack_report`. Reads no token, unless
documents are cut and the loss is stored as spans.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.core.errors import ConfigError
from thalweg.feed import stages as st
from thalweg.feed.compile import Compiled, compile_feed, plan_of
from thalweg.feed.even import Shapes, row_widths
from thalweg.feed.feed import Feed
from thalweg.plan import pack
from thalweg.plan.pack_report import PackingReport


def packing_report(feed: Feed, *, seed: int = 0, epoch: int = 0) -> PackingReport:
    """Plan an epoch of a packed feed, and say what its rows hold and what is left out.

    Args:
        feed: planned, with a `.pack`.
        seed: the loader's.
        epoch: which epoch.

    Raises:
        ConfigError: nothing is packed, or the feed is a stream.
    """
    compiled = compile_feed(feed, seed)
    if compiled.pack is None:
        raise ConfigError("the feed has no .pack", where="pack", fix="thalweg pack FEED -c 4096")
    order, report = compiled.order, PackingReport()
    names = [leaf.name or "data" for leaf in compiled.leaves]
    for number in range(order.num_blocks(epoch)):
        source, index, lengths = _drawn(compiled, epoch, number)
        plan = plan_of(lengths, source, index, stage=compiled.pack, leaves=compiled.leaves)
        report.add(plan, lengths, sources=source if len(names) > 1 else None, names=names)
    for reason, (documents, tokens) in compiled.losses.items():
        if documents:
            report.loss = report.loss.plus(reason, documents, tokens)
            report.documents, report.tokens = report.documents + documents, report.tokens + tokens
    return report


def _drawn(compiled: Compiled, epoch: int, number: int) -> tuple[NDArray[np.int32], NDArray[np.int64], Any]:
    """Give the draws of a block: source, index and length of each."""
    order = compiled.order
    start, stop, _ = order.bounds(epoch if order.repack else 0, number)
    source, index, lengths = order.drawn(epoch if order.repack else 0, start, stop)
    if lengths is None:
        raise ConfigError("the table has no lengths", where="pack", fix=".cache() behind the map")
    return source, index, lengths


@dataclass(slots=True)
class BatchReport:
    """What batches of padded samples, or rows of several lengths, cost.

    Args:
        batches: of all ranks together.
        samples: in them; filler left out.
        tokens: real ones.
        padded: places that the model computes on, padding and filler included.
        longest: longest sample.
        to_longest: places if every sample were padded to the longest.
        packed: places if the same samples were packed into rows of the longest width.
        shapes: "rows x width" -> batches; all there are.
    """

    batches: int = 0
    samples: int = 0
    tokens: int = 0
    padded: int = 0
    longest: int = 0
    to_longest: int = 0
    packed: int = 0
    shapes: dict[str, int] = field(default_factory=dict[str, int])

    def to_dict(self) -> dict[str, Any]:
        """Write as JSON-like data, with the share of padding of each way."""
        shares = {
            name: 1 - self.tokens / places if places else 0.0
            for name, places in (("padding", self.padded), ("to_longest", self.to_longest), ("packed", self.packed))
        }
        return {
            "batches": self.batches,
            "samples": self.samples,
            "tokens": self.tokens,
            "padded_tokens": self.padded,
            "longest": self.longest,
            "shares_of_padding": shares,
            "distinct_shapes": len(self.shapes),
            "shapes": dict(self.shapes),
        }


def batch_report(feed: Feed, *, seed: int = 0, epoch: int = 0) -> BatchReport:
    """Say what the batches of `.bucket` or `.token_budget`, or packed rows of several lengths, cost in an epoch.

    Widths are those that a batch needs by itself; a step gives all ranks the widest of theirs.

    Raises:
        ConfigError: the feed has neither, or is a stream.
    """
    compiled = compile_feed(feed, seed)
    shapes = _shapes(compiled)
    out, found, order = BatchReport(), Counter[tuple[int, int]](), compiled.order
    for number in range(order.num_blocks(epoch)):
        _, _, lengths = _drawn(compiled, epoch, number)
        rows, widths = shapes(order.block(epoch, number))
        found.update(zip(rows.tolist(), widths.tolist(), strict=True))
        out.samples += len(lengths)
        out.tokens += int(lengths.sum())
        out.longest = max(out.longest, int(lengths.max(initial=0)))
        full = max(int(widths.max(initial=1)), int(lengths.max(initial=1)))
        out.packed += full * pack.count_best_fit(lengths[lengths > 0], full)
    out.batches = sum(found.values())
    out.padded = sum(rows * width * n for (rows, width), n in found.items())
    out.to_longest = out.samples * out.longest
    out.shapes = {f"{rows}x{width}": n for (rows, width), n in sorted(found.items())}
    return out


def _shapes(compiled: Compiled) -> Any:
    """Give what tells the rows and widths of the batches of a block."""
    lengths = compiled.order.lengths
    if isinstance(compiled.batch, st.Bucket | st.TokenBudget):
        return Shapes(compiled.batch, lengths).shapes
    widths = row_widths(compiled)
    if widths is None:
        raise ConfigError("all batches of this feed have one shape", where="pack", fix="a feed with .bucket(...)")
    return lambda block: (np.ones(len(block), np.int64), widths.widths(block))


def described(feed: Feed) -> Mapping[str, bool]:
    """Say which reports a feed has: "packing", "batches"."""
    stages = feed.stages
    several = any(isinstance(s, st.Pack) and len(s.capacities) > 1 for s in stages)
    return {
        "packing": any(isinstance(s, st.Pack) for s in stages),
        "batches": several or any(isinstance(s, st.Bucket | st.TokenBudget) for s in stages),
    }
