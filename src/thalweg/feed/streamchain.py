"""A feed of kind "stream" as a chain of nodes.

Decides which node carries out which stage, and which items this rank reads at all. Knows no batch, step or state.
"""

from dataclasses import dataclass, field
from typing import Any

from thalweg.core.errors import ConfigError
from thalweg.core.sample import Sample
from thalweg.core.state import digest
from thalweg.feed import stages as st
from thalweg.feed.amap import AMapNode
from thalweg.feed.call import FilterCall, MapCall
from thalweg.feed.code import code_of
from thalweg.feed.compile import mixed
from thalweg.feed.engine import engine_of
from thalweg.feed.events import EventNode
from thalweg.feed.feed import Feed
from thalweg.feed.merge import BATCHED
from thalweg.feed.node import RunOptions
from thalweg.feed.origin import IndexedOrigin, IterableOrigin, Origin
from thalweg.feed.source import hash_ids
from thalweg.feed.streampack import PackNode
from thalweg.feed.substreams import FileStreams, SubStreams
from thalweg.feed.window import GroupNode, WindowNode
from thalweg.work.budget import ByteBudget

MAX_BYTES = 1 << 30  # in flight on a rank where nobody says


@dataclass
class Chain:
    """The nodes of a stream, and what a state must agree with.

    Args:
        node: the last one; gives rows (packed) or samples.
        source: the reading end.
        subs: sub-streams of this rank.
        shards: number of all sub-streams.
        pack: the packing stage, None where a row is a sample.
        batch: the batching stage, None where the feed has none.
        named: (stage as typed, node) in order, for counters.
        identity: digests by part; "map" is the code of functions.
    """

    node: EventNode
    source: "SubStreams | FileStreams"
    subs: tuple[int, ...]
    shards: int
    pack: st.Pack | None = None
    batch: st.Batch | None = None
    named: list[tuple[str, Any]] = field(default_factory=list[tuple[str, Any]])
    identity: dict[str, str] = field(default_factory=dict[str, str])


def build(feed: Feed, options: RunOptions, epochs: int | None) -> Chain:
    """Make the nodes; nothing is opened or started.

    Args:
        feed: of kind "stream".
        options: how it is run.
        epochs: epoch at which reading stops; None never.

    Raises:
        ConfigError: ranks that do not divide the sub-streams, or a stage that a stream can't have.
    """
    head, stages = feed.stages[0], list(feed.stages[1:])
    place = options.topology
    shards = getattr(head, "shards", None) or place.dp_size
    if shards % place.dp_size:
        raise ConfigError(
            f"{place.dp_size} ranks do not divide {shards} sub-streams", where=str(head),
            fix=f"say shards={-(-shards // place.dp_size) * place.dp_size}, or take a number of ranks that divides it",
        )  # fmt: skip
    subs = tuple(range(place.dp_rank, shards, place.dp_size))
    take = _range(stages)
    dealt = Dealt(subs, shards, epochs, take)
    source = _indexed(head, stages, dealt, options) if isinstance(head, st.From) else _streamed(head, dealt)
    chain = Chain(source, source, subs, shards)
    budget = ByteBudget(_bytes(options.max_bytes))
    for number, stage in enumerate(stages, 1):
        _add(chain, stage, (options.seed, number), options, budget)
    chain.identity = _identity(feed, options, shards)
    return chain


def _bytes(given: int | str) -> int:
    if isinstance(given, int):
        return given
    if given == "auto":
        return MAX_BYTES
    units = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
    text = given.strip().upper()
    for unit in sorted(units, key=len, reverse=True):
        if text.endswith(unit):
            return int(float(text.removesuffix(unit)) * units[unit])
    try:
        return int(text)
    except ValueError as error:
        raise ConfigError(f"max_bytes={given!r} is not a size", fix='say "256MB" or a number of bytes') from error


def _range(stages: list[st.Stage]) -> tuple[int, int | None]:
    """Take `take` and `skip` right behind the source: they say which items are read at all."""
    skip, limit = 0, None
    while stages and isinstance(stages[0], st.Take | st.Skip):
        stage: Any = stages.pop(0)
        if isinstance(stage, st.Skip):
            skip += stage.n
        else:
            end = skip + int(stage.n)
            limit = end if limit is None else min(limit, end)
    return skip, limit


@dataclass(frozen=True, slots=True)
class Dealt:
    """Which items a rank reads: its sub-streams of all, up to which epoch, and [a, b) of the item numbers."""

    subs: tuple[int, ...]
    shards: int
    epochs: int | None
    take: tuple[int, int | None]


def _indexed(head: st.From, stages: list[st.Stage], dealt: Dealt, options: RunOptions) -> SubStreams:
    """Read data with random access; a shuffle right behind it is a permutation, without a window."""
    key: tuple[Any, ...] | None = None
    if stages and isinstance(stages[0], st.Shuffle):
        seed = stages[0].seed
        stages.pop(0)
        key = (options.seed if seed is None else seed, "stream")
    return SubStreams(IndexedOrigin(head.source, key), dealt.shards, dealt.epochs, dealt.take)


def _streamed(head: st.Stage, dealt: Dealt) -> "SubStreams | FileStreams":
    if not isinstance(head, st.FromStream):
        raise ConfigError(
            f"{head.verb} of streams is not possible", where=str(head), fix=".cache() each part: then it is planned"
        )
    make, by, shards = head.make, head.shard_by, dealt.shards
    parts = getattr(make, "num_shards", None) or getattr(make, "n_shards", None)
    if by == "auto":
        divides = shards > 1 and isinstance(parts, int) and parts % shards == 0 and hasattr(make, "shard")
        by = "file" if divides and dealt.take == (0, None) else "sample"
    if by == "sample":
        return SubStreams(IterableOrigin(make), shards, dealt.epochs, dealt.take)
    if not hasattr(make, "shard"):
        raise ConfigError(
            f"{type(make).__name__} has no shard(num_shards=, index=)", where=str(head), fix='say shard_by="sample"'
        )
    if dealt.take != (0, None):
        raise ConfigError("take and skip count over all files", where=str(head), fix='say shard_by="sample"')
    origins: dict[int, Origin] = {s: IterableOrigin(make.shard(num_shards=shards, index=s)) for s in dealt.subs}
    return FileStreams(origins, shards, dealt.epochs)


def _add(chain: Chain, stage: st.Stage, key: tuple[int, int], options: RunOptions, budget: ByteBudget) -> None:
    """Put the node of one stage behind the chain."""
    seed, number = key
    if isinstance(stage, st.Shuffle):
        own = seed if stage.seed is None else stage.seed
        chain.node = WindowNode(chain.node, stage.buffer_size, (own, number))
    elif isinstance(stage, st.Map):
        if stage.batched:
            chain.node = GroupNode(chain.node, BATCHED if stage.batched is True else int(stage.batched))
        call = MapCall(stage, (seed, "map", number))
        engine = engine_of(stage, options.workers, options.stall_after)
        chain.node = AMapNode(chain.node, stage, call, engine, budget)
    elif isinstance(stage, st.Filter | st.Split):
        chain.node = _filter(chain.node, stage, seed, number)
    elif isinstance(stage, st.Pack):
        chain.node, chain.pack = PackNode(chain.node, stage), stage
    elif isinstance(stage, st.Batch):
        chain.batch = stage
        return
    else:
        raise ConfigError(
            f"{stage.verb} needs a plan, and this feed is a stream",
            where=str(stage),
            fix=".cache() behind the last map",
        )
    chain.named.append((f"{number} {stage.verb}", chain.node))


def _filter(upstream: EventNode, stage: st.Stage, seed: int, number: int) -> AMapNode:
    """Carry out a filter in the thread that asks: most take a microsecond; a costly one is a map that gives None."""
    if isinstance(stage, st.Split):
        stage = st.Filter(_Side(stage), with_info=True)
    assert isinstance(stage, st.Filter)
    if stage.columns is not None:
        raise ConfigError(
            "filter(columns=) looks at a table, and a stream has none", where=str(stage),
            fix="filter(fn) with fn(sample)",
        )  # fmt: skip
    call: Any = FilterCall(stage, (seed, "filter", number))
    inline = engine_of(st.Map(stage.fn, mode="inline"), 0, None)
    return AMapNode(upstream, st.Map(stage.fn, mode="inline"), call, inline, None)


class _Side:
    """Keeps the samples whose id hashes into one part of a split."""

    def __init__(self, stage: st.Split) -> None:
        before = 0.0
        for name, share in stage.shares:
            if name == stage.part:
                self._low, self._high = before, before + share
            before += share
        self._seed = stage.seed

    def __call__(self, sample: Sample, info: Any) -> bool:
        """Say whether a sample belongs to the part."""
        del sample
        at = float(mixed(hash_ids([info.id]), self._seed)[0]) / 2.0**64
        return self._low <= at < (self._high if self._high < 1 - 1e-9 else 2.0)


def _identity(feed: Feed, options: RunOptions, shards: int) -> dict[str, str]:
    """Digest what the order depends on, by part."""
    order: list[str] = []
    code: list[str] = []
    for stage in feed.stages[1:]:
        if isinstance(stage, st.Map | st.Filter):
            code.append(code_of(stage.fn))
            order.append(f"{stage.verb} batched={getattr(stage, 'batched', False)}")
        elif not isinstance(stage, st.Batch):
            order.append(str(stage))
    head = feed.stages[0]
    data = head.source.fingerprint if isinstance(head, st.From) else "stream"
    return {
        "data": digest([data, shards], size=4),
        "seed": digest(options.seed, size=4),
        "stages": digest(order, size=4),
        "map": digest(code, size=4),
    }
