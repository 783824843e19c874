"""A feed's rows, batches and orders, rehearsed on the samples that were looked at.

Decides what of a feed is rehearsed: shuffle, mix, pack, balance and batch as they were typed, over the samples in
hand, on a few pretended ranks for two epochs. So no cache is made and no function runs again.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any

import numpy as np

from thalweg.check.evidence import Evidence, Walked
from thalweg.check.gather import Gathered
from thalweg.check.rows import rows_of, segments_of
from thalweg.core.errors import ThalwegError
from thalweg.core.sample import INPUT_IDS
from thalweg.core.topology import Topology
from thalweg.feed import stages as st
from thalweg.feed.collating import batching_of
from thalweg.feed.feed import Feed
from thalweg.feed.held import Held
from thalweg.feed.loader import FeedLoader

BATCHES = 64  # batches whose rows are looked at
RANKS = 4  # pretended ranks at most


def rehearsal(feed: Feed, parts: Sequence[Gathered], made_by: Sequence[st.Stage]) -> Feed | None:
    """Give the feed over the samples in hand; None where it batches nothing, or there are no tokens."""
    if not any(isinstance(s, (*st.BATCHING, st.Pack)) for s in made_by) or not any(p.taken for p in parts):
        return None
    if not all(INPUT_IDS in t.sample for p in parts for t in p.taken):
        return None
    held = [_held(p) for p in parts]
    shuffles = [s for s in feed.stages if isinstance(s, st.Shuffle)]
    head = feed.stages[0]
    begin: tuple[st.Stage, ...]
    if isinstance(head, st.Mix):
        inner = tuple(
            (p.name, Feed((st.From(h, "samples"), *_order_of(dict(head.feeds)[p.name]))))
            for p, h in zip(parts, held, strict=True)
        )
        begin = (replace(head, feeds=inner),)
    elif len(held) == 1:
        begin = (st.From(held[0], "samples"),)
    else:
        begin = (st.Concat(tuple((p.name, Feed((st.From(h, "samples"),))) for p, h in zip(parts, held, strict=True))),)
    behind = list(made_by)
    if not any(isinstance(s, st.BATCHING) for s in behind):
        behind.append(st.Batch(1))
    whole = feed if any(isinstance(s, st.BATCHING) for s in feed.stages) else Feed((*feed.stages, behind[-1]))
    batching = batching_of(whole)  # with the collator of an encoder that leaves media for later
    behind = [batching if isinstance(s, st.BATCHING) else s for s in behind]
    return Feed((*begin, *shuffles[:1], *behind))


def _held(part: Gathered) -> Held:
    lineage: Mapping[str, Any] = {} if part.source is None else part.source.lineage
    ids = [t.name for t in part.taken]
    counts = Counter(ids)
    names = [i if counts[i] == 1 else f"{i}#{n}" for n, i in enumerate(ids)]
    return Held([t.sample for t in part.taken], names, lineage)


def _order_of(feed: Feed) -> list[st.Stage]:
    return [s for s in feed.stages if isinstance(s, st.Shuffle | st.Repeat)]


def rehearse(e: Evidence, feed: Feed, *, seed: int = 0) -> None:
    """Walk a rehearsal and write down rows, shapes, orders and shares; why none could be made where it fails."""
    try:
        _look(e, feed, seed)
        _walk(e, feed, seed)
    except ThalwegError as error:
        e.unbatched = str(error)
    except Exception as error:  # noqa: BLE001 (a user's collate function may raise anything)
        e.unbatched = f"{type(error).__name__}: {error}"


def _loader(feed: Feed, rank: int, world: int, epochs: int, seed: int) -> FeedLoader:
    return FeedLoader(feed, topology=Topology(rank, world), epochs=epochs, workers=0, seed=seed, tail="pad")


def _look(e: Evidence, feed: Feed, seed: int) -> None:
    loader = _loader(feed, 0, 1, 1, seed)
    try:
        for batch in islice(loader, BATCHES):
            take_batch(e, batch, batch.info.ids)
    finally:
        loader.close()
    if not e.shapes:
        raise ThalwegError("there are too few samples for one batch")


def take_batch(e: Evidence, batch: Any, names: Sequence[Sequence[str]] = ()) -> None:
    """Write down the rows of a batch."""
    rows = rows_of(batch)
    if not rows:
        return
    shape = (len(rows), len(rows[0].ids))
    weight = getattr(getattr(batch, "info", None), "weight", ())
    if len(weight) == len(rows):
        rows = [row for row, w in zip(rows, weight, strict=True) if w] or rows[:0]
    if not rows:
        return
    e.segments += segments_of(rows, len(e.rows), names)
    e.rows += rows
    e.shapes.append(shape)
    e.batch_tokens = max(e.batch_tokens, shape[0] * shape[1])


class _Undecoded:
    """Stands for a collator of packed rows where only their order counts."""

    packed = True

    def __call__(self, rows: Sequence[Any]) -> dict[str, Any]:
        """Give no columns."""
        return {"rows": np.arange(len(rows))}


def _walk(e: Evidence, feed: Feed, seed: int) -> None:
    stage = next(s for s in feed.stages if isinstance(s, st.BATCHING))
    if isinstance(stage, st.Batch) and callable(stage.collate):  # nothing is decoded: the order is all that counts
        plain = _Undecoded() if getattr(stage.collate, "packed", False) else "raw"
        feed = Feed((*(s for s in feed.stages if s is not stage), replace(stage, collate=plain)))
    micro = max(stage.sizes) if isinstance(stage, st.Batch) else 1
    rows = feed.num_rows if feed.kind == "planned" else len(e.rows)
    world = max(1, min(RANKS, rows // max(2 * micro, 1)))
    drawn: Counter[str] = Counter()
    for epoch in range(2):
        ranks: list[Walked] = []
        for rank in range(world):
            loader = _loader(feed, rank, world, 1, seed)
            try:
                loader.set_epoch(epoch)
                ranks.append(_walked(loader, drawn if not epoch else Counter()))
            finally:
                loader.close()
        e.epochs.append(ranks)
    if e.weights and drawn:
        e.drawn_of = drawn.total()
        e.drawn = {name: n / e.drawn_of for name, n in drawn.items()}


def _walked(loader: Iterable[Any], drawn: Counter[str]) -> Walked:
    ids: list[str] = []
    steps = tokens = 0
    for batch in loader:
        info = batch.info
        for row, of, weight in zip(info.ids, info.sources, info.weight.tolist(), strict=False):
            if weight:
                ids += [f"{source}:{name}" if source else name for name, source in zip(row, of, strict=False)]
        drawn.update(chain.from_iterable(info.sources))
        tokens += info.num_tokens
        steps += info.last
    return Walked(tuple(ids), steps, tokens)
