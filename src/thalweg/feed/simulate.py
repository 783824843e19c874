"""What a feed would give on any number of ranks, from the table alone: steps, tokens, padding, bytes, requests, shapes.

Decides the figures and how they are averaged. Reads no token: lengths come from the table.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.core.errors import ConfigError
from thalweg.core.sample import offsets_of
from thalweg.feed import stages as st
from thalweg.feed.compile import Compiled, compile_feed
from thalweg.feed.even import Shapes, balanced_order, row_widths
from thalweg.feed.rowsof import blocks_with, refuse_stream
from thalweg.plan.balance import deal
from thalweg.plan.balanced import BalancedOrder
from thalweg.plan.ramp import Ramp
from thalweg.plan.steps import Place, Walk

Ints = NDArray[np.int64]
LISTED = 1000  # shapes that are listed
PARTS = 20  # of an epoch, for figures over the run


@dataclass(frozen=True)
class Simulation:
    """Figures of one epoch on one layout.

    Args:
        world: data-parallel ranks.
        accumulation: micro-batches of a step.
        rows: rows of the epoch.
        steps: optimiser steps, tail left out.
        left_out: rows behind the last whole step.
        tokens: real tokens of the steps; per rank in `rank_tokens` (least, mean, most).
        padding: share of places that hold no token.
        straggler: mean over steps of the busiest rank's work over the mean rank's: its cost where the feed is balanced,
            else its tokens.
        straggler_worst: the same of the worst step.
        rank_bytes: bytes of tokens that the busiest rank reads.
        rank_requests: samples that the busiest rank reads, each a ranged read where data is remote.
        rank_bytes_range: least, mean and most of a rank.
        rank_requests_range: least, mean and most of a rank.
        shapes: "rows x width" -> micro-batches over all ranks, the commonest first; at most 1,000.
        distinct_shapes: how many shapes there are.
        shares: source -> share of the tokens.
        shares_over: source -> its share in each twentieth of the epoch's rows.
        stragglers: the straggler factor in each twentieth of the steps, mean of the steps in it.
        step_rows: (steps, rows of each) in their order; several where the batch grows.
    """

    world: int
    accumulation: int
    rows: int
    steps: int
    left_out: int
    tokens: int
    rank_tokens: tuple[int, float, int]
    padding: float
    straggler: float
    rank_bytes: int
    rank_requests: int
    straggler_worst: float = 1.0
    rank_bytes_range: tuple[int, float, int] = (0, 0.0, 0)
    rank_requests_range: tuple[int, float, int] = (0, 0.0, 0)
    shapes: dict[str, int] = field(default_factory=dict[str, int])
    distinct_shapes: int = 0
    shares: dict[str, float] = field(default_factory=dict[str, float])
    shares_over: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    stragglers: list[float] = field(default_factory=list[float])
    step_rows: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    def to_dict(self) -> dict[str, Any]:
        """Write as JSON-like data."""
        return {k: getattr(self, k) for k in self.__dataclass_fields__}


@dataclass(eq=False)
class _Rows:
    """Of each row of an epoch, int64 (r,) where nothing else is said; a batch of single samples is a row here.

    Args:
        tokens: real ones.
        taken: places that its documents take up, each a multiple of the alignment.
        documents: how many.
        by_source: int64 (parts, sources), tokens of each source in each part of the epoch.
        cost: float64 (r,) or None, what rows are dealt by.
        heights: rows of its batch, where batches differ; None elsewhere.
        widths: places of a row that the plan gives it, where they differ; None elsewhere.
    """

    tokens: Ints
    taken: Ints
    documents: Ints
    by_source: Ints
    cost: NDArray[np.float64] | None
    heights: Ints | None
    widths: Ints | None


def _rows(compiled: Compiled, epoch: int, order: Any) -> _Rows:
    found: dict[str, list[Any]] = {name: [] for name in ("tokens", "taken", "documents", "cost", "heights", "widths")}
    sources, rows = len(compiled.leaves), max(order.rows(epoch), 1)
    by_source = np.zeros(PARTS * sources, np.int64)
    align = 1 if compiled.pack is None else compiled.pack.align
    batch, several = compiled.batch, row_widths(compiled)
    shapes = Shapes(batch, compiled.order.lengths) if isinstance(batch, st.Bucket | st.TokenBudget) else None
    for number, (start, _, block) in enumerate(blocks_with(order, epoch)):
        lengths = block.lengths
        if lengths is None:
            lengths = compiled.order.lengths(block.source, block.index)
        if lengths is None:
            raise ConfigError("the table has no lengths", where="simulate", fix=".cache() behind the map")
        documents = np.diff(block.offsets)
        found["tokens"].append(_sums(lengths, block.offsets))
        found["taken"].append(_sums(-(-lengths // align) * align, block.offsets))
        found["documents"].append(documents)
        part = np.repeat((start + np.arange(len(block))) * PARTS // rows, documents)
        by_source += np.bincount(part * sources + block.source, lengths, len(by_source)).astype(np.int64)
        if shapes is not None:
            heights, widths = shapes.shapes(block)
            found["heights"].append(heights)
            found["widths"].append(widths)
        elif isinstance(order, BalancedOrder):
            found["cost"].append(order.costs(epoch, number))
            if several is not None:
                found["widths"].append(several.widths(block))
    whole = {name: np.concatenate(parts) if parts else None for name, parts in found.items()}
    for name in ("tokens", "taken", "documents"):
        whole[name] = np.empty(0, np.int64) if whole[name] is None else whole[name]
    return _Rows(by_source=by_source.reshape(PARTS, sources), **whole)  # type: ignore[arg-type]


def _sums(values: NDArray[Any], offsets: Ints) -> Ints:
    """Sum values over rows, int64 (r,)."""
    return np.diff(offsets_of(values)[offsets])


def simulate(feed: Any, worlds: list[int], *, accumulation: int = 1, seed: int = 0, epoch: int = 0) -> list[Simulation]:
    """Work out an epoch on each number of ranks.

    Args:
        feed: planned.
        worlds: numbers of data-parallel ranks.
        accumulation: micro-batches of a step.
        seed: the loader's.
        epoch: which epoch.

    Raises:
        ConfigError: the feed is a stream, or its lengths are unknown; a number of ranks or micro-batches below 1.
    """
    for name, number in [*(("world", w) for w in worlds), ("accumulation", accumulation)]:
        if number < 1:
            fix = f"{name}=1 (--{name} 1) or more"
            raise ConfigError(f"{name} must be at least 1, not {number}", where="simulate", fix=fix)
    refuse_stream(feed)
    compiled = compile_feed(feed, seed)
    batch = compiled.batch if isinstance(compiled.batch, st.Batch) else st.Batch(1)
    out: list[Simulation] = []
    plain: _Rows | None = None
    for world in worlds:
        ramp = Ramp.of(batch.size, world * accumulation)
        even = balanced_order(compiled, run=None, window=None, size=ramp.largest, carry=False)
        if even is None:
            plain = plain or _rows(compiled, epoch, compiled.order)
            rows = plain
        else:
            rows = _rows(compiled, epoch, even)
        before = Walk(compiled.order, ramp, "drop", 1).before(Place(epoch)) if ramp.last else 0
        stretches = list(ramp.stretches(before, len(rows.tokens), whole=True)) or [(0, 0, ramp.size(before))]
        parts = [_stretch(compiled, rows, batch, (world, accumulation), given) for given in stretches]
        out.append(_simulation(compiled, rows, parts, world, accumulation))
    return out


@dataclass(eq=False)
class _Stretch:
    """Steps of one size: tokens, samples and work of each rank and step (steps, world), shape of each micro-batch."""

    size: int
    tokens: Ints
    documents: Ints
    work: NDArray[np.float64]
    heights: Ints
    widths: Ints


def _stretch(
    compiled: Compiled, rows: _Rows, batch: st.Batch, layout: tuple[int, int], given: tuple[int, int, int]
) -> _Stretch:
    (world, accumulation), (first, steps, size) = layout, given
    micro = size // (world * accumulation)
    at = _placed(rows, (steps, accumulation, world, micro), first, by_cost=compiled.balance is not None)
    tokens = rows.tokens[at]
    work = (tokens if rows.cost is None else rows.cost[at]).sum(axis=(1, 3))
    return _Stretch(
        size, tokens.sum(axis=(1, 3)), rows.documents[at].sum(axis=(1, 3)), work, *_shapes(compiled, batch, rows, at)
    )


def _placed(rows: _Rows, shape: tuple[int, int, int, int], start: int, *, by_cost: bool) -> Ints:
    """Give which row of the epoch each rank takes from row `start` on: int64 (steps, accumulation, world, micro)."""
    steps, accumulation, world, micro = shape
    size = accumulation * world * micro
    at = start + np.arange(steps * size).reshape(shape)
    if rows.cost is None or not by_cost:
        return at
    for step in range(steps):
        first = start + step * size
        at[step] = first + deal(rows.cost[first : first + size], world, micro, accumulation)
    return at


def _parts(values: NDArray[np.float64]) -> list[float]:
    """Average values over twenty parts, fewer where there are fewer."""
    return [float(part.mean()) for part in np.array_split(values, min(PARTS, len(values)))] if len(values) else []


def _simulation(compiled: Compiled, rows: _Rows, parts: list[_Stretch], world: int, accumulation: int) -> Simulation:
    n, steps = len(rows.tokens), sum(len(p.tokens) for p in parts)
    per_rank = np.concatenate([p.tokens for p in parts]).sum(axis=0)
    asked = np.concatenate([p.documents for p in parts]).sum(axis=0)
    places, real = sum(int((p.heights * p.widths).sum()) for p in parts), int(per_rank.sum())
    shapes: Counter[tuple[int, int]] = Counter()
    for p in parts:
        shapes.update(zip(p.heights.reshape(-1).tolist(), p.widths.reshape(-1).tolist(), strict=True))
    by_source = rows.by_source.sum(axis=0)
    total, each = max(int(by_source.sum()), 1), np.maximum(rows.by_source.sum(axis=1, keepdims=True), 1)
    names = [leaf.name or "data" for leaf in compiled.leaves]
    work = np.concatenate([p.work for p in parts])
    factors = work.max(axis=1) / np.maximum(work.mean(axis=1), 1e-9) if steps else np.ones(0)
    return Simulation(
        world=world,
        accumulation=accumulation,
        rows=n,
        steps=steps,
        left_out=n - sum(len(p.tokens) * p.size for p in parts),
        tokens=real,
        rank_tokens=_range(per_rank),
        padding=1 - real / places if places else 0.0,
        straggler=float(factors.mean()) if steps else 1.0,
        straggler_worst=float(factors.max(initial=1.0)),
        rank_bytes=4 * int(per_rank.max(initial=0)),
        rank_requests=int(asked.max(initial=0)),
        rank_bytes_range=_range(4 * per_rank),
        rank_requests_range=_range(asked),
        shapes={f"{h}x{w}": c for (h, w), c in shapes.most_common(LISTED)},
        distinct_shapes=len(shapes),
        shares={name: int(t) / total for name, t in zip(names, by_source, strict=True)},
        shares_over=dict(zip(names, (rows.by_source / each).T.tolist(), strict=True)),
        stragglers=_parts(factors),
        step_rows=[(len(p.tokens), p.size) for p in parts],
    )


def _range(values: Ints) -> tuple[int, float, int]:
    """Give least, mean and most."""
    return int(values.min()), float(values.mean()), int(values.max())


def _shapes(compiled: Compiled, batch: st.Batch, rows: _Rows, at: Ints) -> tuple[Ints, Ints]:
    """Give rows and width of each micro-batch, two int64 (steps, accumulation, world).

    Where the plan gives batches or rows different shapes, all ranks of a micro-batch have the largest of theirs.
    """
    shape = at.shape[:3]
    heights = np.full(shape, 1 if batch.pad == "none" else at.shape[3])
    if rows.heights is not None and rows.widths is not None:
        return _of_all_ranks(rows.heights[at]), _of_all_ranks(rows.widths[at])
    if rows.widths is not None:
        width = _of_all_ranks(rows.widths[at])
    elif batch.pad == "none":
        width = rows.taken[at].sum(axis=3)
    elif batch.pad_to is not None:
        width = np.full(shape, batch.pad_to)
    elif compiled.pack is not None and compiled.pack.overlong != "alone":
        width = np.full(shape, compiled.pack.longest)
    else:
        floor = 0 if compiled.pack is None else compiled.pack.longest
        width = np.maximum(rows.taken[at].max(axis=3, initial=0), floor)
    multiple = batch.pad_to_multiple_of
    return heights, -(-np.maximum(width, 1) // multiple) * multiple


def _of_all_ranks(values: Ints) -> Ints:
    """Give the largest of a micro-batch over all ranks to each: (steps, accumulation, world, micro) -> (s, a, w)."""
    largest = values.max(axis=(2, 3), initial=1, keepdims=True)[..., 0]
    return np.broadcast_to(largest, values.shape[:3])
