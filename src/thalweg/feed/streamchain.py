"""A feed of kind "stream" as a chain of nodes.

Decides which node carries out which stage, and which items this rank reads at all. Knows no batch, step or state.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from thalweg.core.errors import ConfigError
from thalweg.core.state import digest
from thalweg.feed import stages as st
from thalweg.feed.amap import AMapNode
from thalweg.feed.call import FilterCall, MapCall
from thalweg.feed.collating import batching_of
from thalweg.feed.engine import engine_of
from thalweg.feed.events import EventNode, Head
from thalweg.feed.feed import Feed
from thalweg.feed.fuse import fused
from thalweg.feed.merge import BATCHED
from thalweg.feed.node import RunOptions
from thalweg.feed.origin import IndexedOrigin, IterableOrigin, Origin, takes
from thalweg.feed.streamidentity import Side, identity_of
from thalweg.feed.streammix import NO_CHANGES, Changes, MixNode
from thalweg.feed.streampack import PackNode
from thalweg.feed.streamparts import ConcatNode, Heads
from thalweg.feed.substreams import FileStreams, SubStreams
from thalweg.feed.window import GroupNode, WindowNode
from thalweg.work.budget import ByteBudget

MAX_BYTES = 1 << 30  # in flight on a rank where nobody says


@dataclass
class Chain:
    """The nodes of a stream, and what a state must agree with.

    Args:
        node: the last one; gives rows (packed) or samples.
        source: the reading end, or several.
        subs: sub-streams of this rank.
        shards: number of all sub-streams.
        pack: the packing stage, None where a row is a sample.
        batch: the batching stage, None where the feed has none.
        row_maps: functions on packed rows.
        named: (stage as typed, node) in order, for counters.
        identity: digests by part; "map" is the code of functions.
    """

    node: EventNode
    source: Head
    subs: tuple[int, ...]
    shards: int
    pack: st.Pack | None = None
    batch: st.Batch | None = None
    row_maps: list[st.Map] = field(default_factory=list[st.Map])
    named: list[tuple[str, Any]] = field(default_factory=list[tuple[str, Any]])
    identity: dict[str, str] = field(default_factory=dict[str, str])


def build(feed: Feed, options: RunOptions, epochs: int | None, changes: Changes = NO_CHANGES) -> Chain:
    """Make the nodes; nothing is opened or started.

    Args:
        feed: of kind "stream".
        options: how it is run.
        epochs: epoch at which reading stops; None never.
        changes: of the weights of its mix, at checkpoints.

    Raises:
        ConfigError: ranks that do not divide the sub-streams, or a stage that a stream can't have.
    """
    head, place = feed.stages[0], options.topology
    shards = shards_of(feed) or place.dp_size
    if shards % place.dp_size:
        raise ConfigError(
            f"{place.dp_size} ranks do not divide {shards} sub-streams", where=str(head),
            fix=f"say shards={-(-shards // place.dp_size) * place.dp_size}, or take a number of ranks that divides it",
        )  # fmt: skip
    subs = tuple(range(place.dp_rank, shards, place.dp_size))
    run = Building(options, ByteBudget(_bytes(options.max_bytes)), subs, shards, changes)
    chain = run.chain(feed, epochs, "")
    chain.batch = batching_of(feed)
    chain.identity = identity_of(feed, options.seed, shards)
    if changes.weights:
        chain.identity["changes"] = digest([[n, str(w)] for _, weights in changes.weights for n, w in weights], size=4)
    return chain


def leg_of(chain: Chain, options: RunOptions) -> dict[str, Any]:
    """Say how a run cuts its order, for a ledger."""
    return {
        "micro": 1 if chain.batch is None else chain.batch.sizes[0],
        "accumulation": options.accumulation,
        "tail": options.tail,
        "seed": options.seed,
        "shards": chain.shards,
        "fingerprint": digest({k: v for k, v in chain.identity.items() if k != "map"}),
    }


def shards_of(feed: Feed) -> int | None:
    """Give the number of sub-streams that a feed's streams ask for; None where none does.

    Raises:
        ConfigError: two streams ask for different numbers.
    """
    head = feed.stages[0]
    if isinstance(head, st.Concat | st.Mix):
        found = {name: n for name, part in head.feeds if (n := shards_of(part)) is not None}
        if len(set(found.values())) > 1:
            raise ConfigError(
                f"sources ask for different numbers of sub-streams: {found}", where=str(head),
                fix="give all streams of a mix the same shards=",
            )  # fmt: skip
        return next(iter(found.values()), None)
    return getattr(head, "shards", None)


@dataclass(frozen=True, slots=True)
class Building:
    """What all parts of a chain share.

    Args:
        options: how it is run.
        budget: bytes in flight.
        subs: sub-streams of this rank.
        shards: number of all sub-streams.
        changes: of the weights of the mix.
    """

    options: RunOptions
    budget: ByteBudget
    subs: tuple[int, ...]
    shards: int
    changes: Changes = NO_CHANGES

    def chain(self, feed: Feed, epochs: int | None, name: str) -> Chain:
        """Make the chain of a feed, or of a part with a name, that reads up to an epoch."""
        head, stages = feed.stages[0], list(feed.stages[1:])
        if isinstance(head, st.Concat | st.Mix):
            chain = self._merged(head, epochs, name)
        else:
            dealt = Dealt(self.subs, self.shards, epochs, _range(stages), name)
            made = _indexed(head, stages, dealt, self.options) if isinstance(head, st.From) else _streamed(head, dealt)
            chain = Chain(made, made, self.subs, self.shards)
        for number, stage in fused(list(enumerate(stages, 1))):
            key = (self.options.seed, number) if not name else (self.options.seed, name, number)
            _add(chain, stage, key, self.options, self.budget)
        return chain

    def _merged(self, head: st.Concat | st.Mix, epochs: int | None, name: str) -> Chain:
        """Make the chains of all parts and what puts them together."""
        repeats = [_repeats(part) for _, part in head.feeds]
        endless = epochs is None or (isinstance(head, st.Mix) and head.on_exhausted in {"stop_all", "repeat"})
        parts = []
        for (own, part), times in zip(head.feeds, repeats, strict=True):
            kept = Feed(tuple(s for s in part.stages if not isinstance(s, st.Repeat)))
            until = None if endless or epochs is None else epochs * times
            parts.append(self.chain(kept, until, f"{name}/{own}" if name else own))
        nodes = [p.node for p in parts]
        node: EventNode
        if isinstance(head, st.Mix):
            seed = self.options.seed if head.seed is None else head.seed
            more: dict[str, Any] = {"shards": self.shards, "seed": seed, "epochs": epochs, "changes": self.changes}
            node = MixNode(nodes, head, repeats, **more)
        else:
            node = ConcatNode(nodes, repeats, epochs)
        named = [(f"{own}: {word}", n) for (own, _), p in zip(head.feeds, parts, strict=True) for word, n in p.named]
        return Chain(node, Heads([p.source for p in parts]), self.subs, self.shards, named=named)


def _repeats(feed: Feed) -> int:
    times = 1
    for stage in feed.stages:
        times *= stage.n if isinstance(stage, st.Repeat) else 1
    return times


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
    """Which items a rank reads: its sub-streams of all, up to which epoch, [a, b) of the item numbers; the source."""

    subs: tuple[int, ...]
    shards: int
    epochs: int | None
    take: tuple[int, int | None]
    name: str = ""


def _indexed(head: st.From, stages: list[st.Stage], dealt: Dealt, options: RunOptions) -> SubStreams:
    """Read data with random access; a shuffle right behind it is a permutation, without a window."""
    key: tuple[Any, ...] | None = None
    if stages and isinstance(stages[0], st.Shuffle):
        seed = stages[0].seed
        stages.pop(0)
        key = (options.seed if seed is None else seed, "stream", *([dealt.name] if dealt.name else []))
    return SubStreams(IndexedOrigin(head.source, key), dealt.shards, dealt.epochs, dealt.take, dealt.name)


def _streamed(head: st.Stage, dealt: Dealt) -> "SubStreams | FileStreams":
    if not isinstance(head, st.FromStream):
        raise ConfigError(f"{head.verb} cannot begin a stream", where=str(head))
    make, by, shards = head.make, head.shard_by, dealt.shards
    parts = getattr(make, "num_shards", None) or getattr(make, "n_shards", None)
    opens = takes(make, "shard", "shards")
    if by == "auto":
        divides = shards > 1 and isinstance(parts, int) and parts % shards == 0 and hasattr(make, "shard")
        by = "file" if (divides or opens) and dealt.take == (0, None) else "sample"
    if by == "sample":
        whole = partial(make, shard=0, shards=1) if opens else make
        return SubStreams(IterableOrigin(whole), shards, dealt.epochs, dealt.take, dealt.name)
    if not opens and not hasattr(make, "shard"):
        raise ConfigError(
            f"{type(make).__name__} has no shard(num_shards=, index=)", where=str(head), fix='say shard_by="sample"'
        )
    if dealt.take != (0, None):
        raise ConfigError("take and skip count over all files", where=str(head), fix='say shard_by="sample"')
    cut = (
        (lambda s: partial(make, shard=s, shards=shards)) if opens else lambda s: make.shard(num_shards=shards, index=s)
    )
    origins: dict[int, Origin] = {s: IterableOrigin(cut(s)) for s in dealt.subs}
    return FileStreams(origins, shards, dealt.epochs, dealt.name)


def _add(chain: Chain, stage: st.Stage, key: tuple[Any, ...], options: RunOptions, budget: ByteBudget) -> None:
    """Put the node of one stage behind the chain; `key` is the seed and the stage's place."""
    seed, *place = key
    number = place[-1]
    if isinstance(stage, st.Shuffle):
        own = seed if stage.seed is None else stage.seed
        chain.node = WindowNode(chain.node, stage.buffer_size, (own, *place))
    elif isinstance(stage, st.Map) and chain.pack is not None:
        chain.row_maps.append(stage)  # it sees a row as it is laid out
        return
    elif isinstance(stage, st.Map):
        if stage.batched:
            chain.node = GroupNode(chain.node, BATCHED if stage.batched is True else int(stage.batched))
        call = MapCall(stage, (seed, "map", *place))
        engine = engine_of(stage, options.workers, options.stall_after)
        chain.node = AMapNode(chain.node, stage, call, engine, budget)
    elif isinstance(stage, st.Filter | st.Split):
        chain.node = _filter(chain.node, stage, (seed, "filter", *place))
    elif isinstance(stage, st.Pack):
        chain.node, chain.pack = PackNode(chain.node, stage), stage
    elif isinstance(stage, st.Batch):
        chain.batch = stage
        return
    else:
        source = "begin with from_files, from_dataset or records: they can be read at any place"
        raise ConfigError(
            f"{stage.verb} needs a plan, and this feed is a stream",
            where=str(stage),
            fix=source if isinstance(stage, st.Cache) else ".cache() behind the last map",
        )
    chain.named.append((f"{number} {stage.verb}", chain.node))


def _filter(upstream: EventNode, stage: st.Stage, key: tuple[Any, ...]) -> AMapNode:
    """Carry out a filter in the thread that asks: most take a microsecond; a costly one is a map that gives None."""
    if isinstance(stage, st.Split):
        stage = st.Filter(Side(stage), with_info=True)
    assert isinstance(stage, st.Filter)
    if stage.columns is not None:
        raise ConfigError(
            "filter(columns=) looks at a table, and a stream has none", where=str(stage),
            fix="filter(fn) with fn(sample)",
        )  # fmt: skip
    call: Any = FilterCall(stage, key)
    inline = engine_of(st.Map(stage.fn, mode="inline"), 0, None)
    return AMapNode(upstream, st.Map(stage.fn, mode="inline"), call, inline, None)
