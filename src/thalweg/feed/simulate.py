"""What a feed would give on any number of ranks, from the table alone: steps, tokens, padding, bytes, requests, shapes.

Decides the figures and how they are averaged. Reads no token: lengths come from the table.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.core.errors import ConfigError
from thalweg.feed import stages as st
from thalweg.feed.compile import Compiled, compile_feed
from thalweg.feed.even import balanced_order
from thalweg.feed.rowsof import blocks_with, refuse_stream
from thalweg.plan.balance import deal
from thalweg.plan.balanced import BalancedOrder
from thalweg.plan.ramp import Ramp
from thalweg.plan.steps import Place, Walk

Ints = NDArray[np.int64]
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
        rank_bytes: bytes of tokens that the busiest rank reads.
        rank_requests: samples that the busiest rank reads, each a ranged read where data is remote.
        shapes: "rows x width" -> micro-batches over all ranks, the 20 commonest.
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
    """Of each row of an epoch: its tokens, documents and cost; of each part of it: the tokens of each source."""

    tokens: Ints
    documents: Ints
    cost: NDArray[np.float64] | None
    by_source: Ints


def _rows(compiled: Compiled, epoch: int, order: Any) -> _Rows:
    tokens, documents, costs = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0)]
    sources, rows = len(compiled.leaves), max(order.rows(epoch), 1)
    by_source = np.zeros(PARTS * sources, np.int64)
    for number, (start, _, block) in enumerate(blocks_with(order, epoch)):
        lengths = block.lengths
        if lengths is None:
            lengths = compiled.order.lengths(block.source, block.index)
        if lengths is None:
            raise ConfigError("the table has no lengths", where="simulate", fix=".cache() behind the map")
        total = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=total[1:])
        tokens.append(np.diff(total[block.offsets]))
        documents.append(np.diff(block.offsets))
        part = np.repeat((start + np.arange(len(block))) * PARTS // rows, documents[-1])
        by_source += np.bincount(part * sources + block.source, lengths, len(by_source)).astype(np.int64)
        if isinstance(order, BalancedOrder):
            costs.append(order.costs(epoch, number))
    cost = np.concatenate(costs) if isinstance(order, BalancedOrder) else None
    return _Rows(np.concatenate(tokens), np.concatenate(documents), cost, by_source.reshape(PARTS, sources))


def simulate(feed: Any, worlds: list[int], *, accumulation: int = 1, seed: int = 0, epoch: int = 0) -> list[Simulation]:
    """Work out an epoch on each number of ranks.

    Args:
        feed: planned.
        worlds: numbers of data-parallel ranks.
        accumulation: micro-batches of a step.
        seed: the loader's.
        epoch: which epoch.

    Raises:
        ConfigError: the feed is a stream, or its lengths are unknown.
    """
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
    """Steps of one size: tokens and work of each rank and step (steps, world), width of each micro-batch, places."""

    size: int
    tokens: Ints
    documents: Ints
    work: NDArray[np.float64]
    widths: Ints
    height: int


def _stretch(
    compiled: Compiled, rows: _Rows, batch: st.Batch, layout: tuple[int, int], given: tuple[int, int, int]
) -> _Stretch:
    (world, accumulation), (first, steps, size) = layout, given
    micro = size // (world * accumulation)
    at = _placed(rows, (steps, accumulation, world, micro), first, by_cost=compiled.balance is not None)
    tokens = rows.tokens[at]
    work = (tokens if rows.cost is None else rows.cost[at]).sum(axis=(1, 3))
    height = 1 if batch.pad == "none" else micro
    per_step = rows.documents[at].sum(axis=(1, 3))
    return _Stretch(size, tokens.sum(axis=(1, 3)), per_step, work, _widths(compiled, batch, tokens), height)


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
    per_rank, real = sum(p.tokens.sum(axis=0) for p in parts), sum(int(p.tokens.sum()) for p in parts)
    assert not isinstance(per_rank, int)
    documents = np.concatenate([p.documents for p in parts]).sum(axis=0)
    places = sum(int(p.widths.sum()) * p.height for p in parts)
    shapes: Counter[str] = Counter()
    for p in parts:
        shapes.update({f"{p.height}x{w}": c for w, c in Counter(p.widths.reshape(-1).tolist()).items()})
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
        rank_tokens=(int(per_rank.min()), float(per_rank.mean()), int(per_rank.max())),
        padding=1 - real / places if places else 0.0,
        straggler=float(factors.mean()) if steps else 1.0,
        rank_bytes=4 * int(per_rank.max(initial=0)),
        rank_requests=int(documents.max(initial=0)),
        shapes=dict(shapes.most_common(20)),
        distinct_shapes=len(shapes),
        shares={name: int(t) / total for name, t in zip(names, by_source, strict=True)},
        shares_over=dict(zip(names, (rows.by_source / each).T.tolist(), strict=True)),
        stragglers=_parts(factors),
        step_rows=[(len(p.tokens), p.size) for p in parts],
    )


def _widths(compiled: Compiled, batch: st.Batch, tokens: Ints) -> Ints:
    """Give the width of each micro-batch, int64 (steps, accumulation, world)."""
    if batch.pad == "none":
        width = tokens.sum(axis=3)
    elif batch.pad_to is not None:
        width = np.full(tokens.shape[:3], batch.pad_to)
    elif compiled.pack is not None and compiled.pack.overlong != "alone":
        width = np.full(tokens.shape[:3], compiled.pack.longest)
    else:
        floor = 0 if compiled.pack is None else compiled.pack.longest
        width = np.maximum(tokens.max(axis=3, initial=0), floor)
    multiple = batch.pad_to_multiple_of
    rounded: Ints = -(-np.maximum(width, 1) // multiple) * multiple
    return rounded
