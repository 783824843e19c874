"""A cache of scope "rank": each rank keeps and reads a share of the samples of its own, always the same.

Decides the shares: n // world samples each, so that all ranks have equal rows and steps; the few samples behind are
left out, and said. Memory and work are 1/world a rank; the price is that a rank never sees another's samples, and that
the number of ranks is part of the order.
"""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from thalweg.core.batch import Batch
from thalweg.core.errors import ConfigError
from thalweg.core.state import digest
from thalweg.feed import stages as st
from thalweg.feed.compile import compile_feed
from thalweg.feed.feed import Feed
from thalweg.feed.node import RunOptions
from thalweg.feed.passes import cache_folder
from thalweg.feed.planned import PlannedNode
from thalweg.feed.source import Source
from thalweg.feed.views import Part


class Share(Part):
    """The samples of one rank. Its identity names the number of ranks, not the rank: all ranks must agree on it."""

    def __init__(self, base: Source, rank: int, world: int) -> None:
        super().__init__(base, range(rank, len(base) // world * world, world))
        self.world = world

    @property
    def fingerprint(self) -> str:
        """Hash of the base and the number of ranks."""
        return digest([self.base.fingerprint, "a share each of", self.world])


class RankedNode(PlannedNode):
    """Walks the share of one rank; what the other ranks train in the step is not known to it."""

    def __next__(self) -> Batch:
        """Hand over the next micro-batch."""
        return _alone(super().__next__())

    def look(self) -> Batch:
        """Give the next micro-batch without moving."""
        return _alone(super().look())


def _alone(batch: Batch) -> Batch:
    batch.info.step_label_tokens = None
    return batch


def is_ranked(feed: Feed) -> bool:
    """Say whether a feed keeps a share on each rank."""
    return any(isinstance(s, st.Cache) and s.scope == "rank" for s in feed.stages)


def ranked(feed: Feed, options: RunOptions, *, ledger: Any = None) -> RankedNode:
    """Make the node of one rank.

    Raises:
        ConfigError: rows of ranks could differ in number (pack, buckets), sources are mixed, or a ledger is asked for.
    """
    at = next(i for i, s in enumerate(feed.stages) if isinstance(s, st.Cache) and s.scope == "rank")
    cache, head = feed.stages[at], feed.stages[0]
    assert isinstance(cache, st.Cache)
    where = str(cache)
    if not isinstance(head, st.From):
        raise ConfigError('scope="rank" of several sources', where=where, fix="cache each source, and mix behind that")
    whole = (st.Pack, st.Bucket, st.TokenBudget, st.Balance, st.Filter)
    other = next((s for s in feed.stages if isinstance(s, whole)), None)
    if other is not None:
        raise ConfigError(
            f'with scope="rank" each rank knows its own samples only, and {other.verb} needs one plan for all',
            where=where, fix='scope="node": records are mapped, and ranks of a machine share the memory',
        )  # fmt: skip
    if ledger is not None:
        raise ConfigError('a ledger with scope="rank": rows of ranks have no common order', where=where)
    place = options.topology
    left = len(head.source) % place.dp_size
    if left:
        warnings.warn(
            f"{left} of {len(head.source):,} samples are left out, so that {place.dp_size} ranks have equal shares",
            UserWarning, stacklevel=4,
        )  # fmt: skip
    share = Share(head.source, place.dp_rank, place.dp_size)
    base = Path(cache.path) if cache.path else cache_folder() / "samples"
    own = replace(cache, path=str(base / f"rank-{place.dp_rank}-of-{place.dp_size}"))
    stages = (replace(head, source=share), *feed.stages[1:at], own, *feed.stages[at + 1 :])
    compiled = compile_feed(Feed(stages), options.seed)
    code = [leaf.code() for leaf in compile_feed(Feed(stages[:at]), options.seed).leaves]
    compiled.parts["data"] = [["", share.fingerprint, code]]  # equal on all ranks, whose kept samples differ
    return RankedNode(compiled, replace(options, topology=replace(place, dp_rank=0, dp_size=1)))
