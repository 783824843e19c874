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
from thalweg.feed.rowsof import blocks_with, refuse_stream

Ints = NDArray[np.int64]


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
        straggler: mean over steps of the fullest rank's tokens over the mean rank's; 1.0 where all have the same.
        rank_bytes: bytes of tokens that the busiest rank reads.
        rank_requests: samples that the busiest rank reads, each a ranged read where data is remote.
        shapes: "rows x width" -> micro-batches over all ranks, the 20 commonest.
        distinct_shapes: how many shapes there are.
        shares: source -> share of the tokens.
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

    def to_dict(self) -> dict[str, Any]:
        """Write as JSON-like data."""
        return {k: getattr(self, k) for k in self.__dataclass_fields__}


@dataclass(eq=False)
class _Rows:
    """Of each row of an epoch: its tokens and documents; of each source: its tokens."""

    tokens: Ints
    documents: Ints
    by_source: Ints


def _rows(compiled: Compiled, epoch: int) -> _Rows:
    tokens, documents = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    by_source = np.zeros(len(compiled.leaves), np.int64)
    for _, _, block in blocks_with(compiled.order, epoch):
        lengths = block.lengths
        if lengths is None:
            lengths = compiled.order.lengths(block.source, block.index)
        if lengths is None:
            raise ConfigError("the table has no lengths", where="simulate", fix=".cache() behind the map")
        total = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=total[1:])
        tokens.append(np.diff(total[block.offsets]))
        documents.append(np.diff(block.offsets))
        by_source += np.bincount(block.source, lengths, len(by_source)).astype(np.int64)
    return _Rows(np.concatenate(tokens), np.concatenate(documents), by_source)


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
    rows = _rows(compiled, epoch)
    return [_simulate(compiled, rows, world, accumulation) for world in worlds]


def _simulate(compiled: Compiled, rows: _Rows, world: int, accumulation: int) -> Simulation:
    batch = compiled.batch if isinstance(compiled.batch, st.Batch) else st.Batch(1)
    micro, n = batch.size, len(rows.tokens)
    size = world * micro * accumulation
    steps = n // size
    tokens = rows.tokens[: steps * size].reshape(steps, accumulation, world, micro)
    documents = rows.documents[: steps * size].reshape(steps, accumulation, world, micro)
    rank_step = tokens.sum(axis=(1, 3))  # (steps, world)
    per_rank = rank_step.sum(axis=0)
    widths = _widths(compiled, batch, tokens)
    places = int(widths.sum()) * (1 if batch.pad == "none" else micro)
    real = int(tokens.sum())
    shapes = Counter(widths.reshape(-1).tolist())
    height = 1 if batch.pad == "none" else micro
    total = max(int(rows.by_source.sum()), 1)
    mean = np.maximum(rank_step.mean(axis=1), 1) if steps else np.ones(1)
    return Simulation(
        world=world,
        accumulation=accumulation,
        rows=n,
        steps=steps,
        left_out=n - steps * size,
        tokens=real,
        rank_tokens=(int(per_rank.min()), float(per_rank.mean()), int(per_rank.max())),
        padding=1 - real / places if places else 0.0,
        straggler=float((rank_step.max(axis=1) / mean).mean()) if steps else 1.0,
        rank_bytes=4 * int(per_rank.max(initial=0)),
        rank_requests=int(documents.sum(axis=(0, 1, 3)).max(initial=0)),
        shapes={f"{height}x{w}": c for w, c in shapes.most_common(20)},
        distinct_shapes=len(shapes),
        shares={leaf.name or "data": int(t) / total for leaf, t in zip(compiled.leaves, rows.by_source, strict=True)},
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
