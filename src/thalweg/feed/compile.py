"""From a description to what can be walked: tables, schedule, packer and the functions that samples go through.

Decides which samples each source delivers (views, filters, keep bits of `overlong="drop"`), how draws are ordered,
and what is done to samples and rows when they are read. Opens nothing; the passes that filters and caches need are
asked of `feed.passes`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.core.errors import ConfigError
from thalweg.core.seeds import Key
from thalweg.core.state import digest
from thalweg.feed import losscount
from thalweg.feed import stages as st
from thalweg.feed.collating import batching_of
from thalweg.feed.cuts import LabelsAfterCut
from thalweg.feed.even import batch_packer
from thalweg.feed.feed import Feed
from thalweg.feed.mapped import Leaf, code_of_stage
from thalweg.feed.nodeplans import NodePlans
from thalweg.feed.passes import cached, kept_by
from thalweg.feed.remember import remembered
from thalweg.feed.remix import Change, written
from thalweg.feed.source import Source
from thalweg.feed.tables import tables_of
from thalweg.feed.views import Part, Union
from thalweg.plan import pack
from thalweg.plan.epoch import Order, Packed
from thalweg.plan.schedule import Schedule
from thalweg.plan.table import SourceTable, picked
from thalweg.store.records.hashing import mix

Ints = NDArray[np.int64]


@dataclass(eq=False)
class Compiled:
    """A planned feed, ready to be walked.

    Args:
        leaves: the sources, with the functions on their samples.
        order: rows of all epochs.
        pack: the stage, None where a row is one sample.
        batch: the batching stage, None where there is none.
        balance: the stage, None where there is none.
        row_maps: functions on rows, behind `pack`.
        parts: name -> digest of everything that the order depends on.
        loose: name -> digest of what may change with a warning.
        losses: reason -> (samples, tokens) left out by the table.
        changes: of the weights of its mix, at checkpoints.
        loss_unknown: why the table cannot tell the tokens in the loss of a step, and what helps.
    """

    leaves: list[Leaf]
    order: Order
    pack: st.Pack | None
    batch: Any
    balance: st.Balance | None
    row_maps: list[st.Map]
    parts: dict[str, Any] = field(default_factory=dict[str, Any])
    loose: dict[str, Any] = field(default_factory=dict[str, Any])
    losses: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    changes: list[Change] = field(default_factory=list[Change])
    loss_unknown: str | None = None


def compile_feed(
    feed: Feed,
    seed: int = 0,
    counts: dict[tuple[int, int], int] | None = None,
    changes: Sequence[Change] = (),
) -> Compiled:
    """Plan a feed.

    Args:
        feed: of kind "planned".
        seed: used by every random stage without its own.
        counts: known rows of (epoch, block).
        changes: of the weights of its mix, at checkpoints.

    Raises:
        ConfigError: the feed is a stream, a source is empty, or a document is too long and nothing says what then.
    """
    if feed.kind != "planned":
        raise ConfigError(f"the feed is a stream: {feed.why}", fix="add .cache() behind the map")
    head, rest = feed.stages[0], feed.stages[1:]
    if isinstance(head, st.Mix):
        leaves = [_leaf(name, inner) for name, inner in head.feeds]
    elif isinstance(head, st.Concat):
        leaves = [_union(head)]
    else:
        leaves = [_start(head)]
    shuffled: Key = None
    for stage in rest:
        if isinstance(stage, st.Shuffle):
            shuffled = seed if stage.seed is None else stage.seed
            for leaf in leaves:
                leaf.shuffle = leaf.shuffle or stage
        else:
            leaves = [applied(leaf, stage) for leaf in leaves]
    return _planned(feed, leaves, seed, shuffled, counts, changes=changes)


def _start(stage: st.Stage, name: str = "") -> Leaf:
    assert isinstance(stage, st.From)
    return Leaf(name, stage.source)


def _leaf(name: str, feed: Feed) -> Leaf:
    """Resolve one source of a mix, or one part of a concat."""
    head = feed.stages[0]
    leaf = _union(head) if isinstance(head, st.Concat) else _start(head)
    leaf.name = name
    for stage in feed.stages[1:]:
        leaf = applied(leaf, stage)
    return leaf


def _union(stage: st.Concat) -> Leaf:
    leaves = [_leaf(name, inner) for name, inner in stage.feeds]
    if any(leaf.maps for leaf in leaves):
        raise ConfigError(
            "a map inside concat",
            where=str(stage),
            fix="put the map behind concat(...), or .cache() behind the map",
        )
    return Leaf("", Union([(leaf.name, leaf.source, leaf.repeats) for leaf in leaves]))


def applied(leaf: Leaf, stage: st.Stage) -> Leaf:
    """Give the leaf behind one more stage."""
    source, n = leaf.source, len(leaf.source)
    if isinstance(stage, st.Take):
        leaf.source = Part(source, range(min(stage.n, n)))
    elif isinstance(stage, st.Skip):
        leaf.source = Part(source, range(min(stage.n, n), n))
    elif isinstance(stage, st.Select):
        leaf.source = Part(
            source, stage.indices if isinstance(stage.indices, range) else np.asarray(stage.indices, np.int64)
        )
    elif isinstance(stage, st.Split):
        leaf.source = Part(source, split_indices(source, stage))
    elif isinstance(stage, st.Repeat):
        leaf.repeats *= stage.n
    elif isinstance(stage, st.Filter):
        leaf.source = Part(source, np.flatnonzero(kept_by(leaf, stage)))
        leaf.filters.append(stage)
    elif isinstance(stage, st.Map):
        leaf.maps.append(stage)
    elif isinstance(stage, st.Cache):
        leaf = cached(leaf, stage) if stage.max_bytes is None else remembered(leaf, stage)
    elif isinstance(stage, st.Shuffle):
        leaf.shuffle = stage
    return leaf


def split_indices(source: Source, stage: st.Split) -> Ints:
    """Give the samples of one part: those whose id, hashed with the seed, falls into its share of [0, 1)."""
    low = 0.0
    for name, share in stage.shares:
        if name == stage.part:
            break
        low += share
    high = low + dict(stage.shares)[stage.part]
    picked: list[Ints] = []
    for at in range(0, len(source), 1 << 18):
        indices = np.arange(at, min(at + (1 << 18), len(source)))
        u = placed(source.id_hashes(indices), stage)
        picked.append(indices[(u >= low) & (u < (high if high < 1 - 1e-9 else 2.0))])
    return np.concatenate(picked) if picked else np.empty(0, np.int64)


def placed(hashes: NDArray[np.uint64], stage: st.Split) -> NDArray[np.float64]:
    """Give the place of samples in [0, 1) that decides their side, float64 (n,): another one in each nested split."""
    for _ in range(stage.depth + 1):
        hashes = mixed(hashes, stage.seed)
    return hashes / 2.0**64


def mixed(hashes: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """Mix hashes with a seed (splitmix64's finaliser), so that each seed divides anew."""
    return mix(hashes + np.uint64((seed * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) % (1 << 64)))


def _find(feed: Feed, kinds: Any) -> Any:
    return next((s for s in feed.stages if isinstance(s, kinds)), None)


def _planned(
    feed: Feed,
    leaves: list[Leaf],
    seed: int,
    shuffled: Key,
    counts: dict[tuple[int, int], int] | None,
    *,
    changes: Sequence[Change],
) -> Compiled:
    head = feed.stages[0]
    packing: st.Pack | None = _find(feed, st.Pack)
    row_maps: list[st.Map] = []
    if packing is not None:
        behind = feed.stages.index(packing)
        row_maps = [s for s in feed.stages[behind:] if isinstance(s, st.Map)]
        for leaf in leaves:
            leaf.maps = [m for m in leaf.maps if m not in row_maps]
    losses: dict[str, tuple[int, int]] = {}
    mix = head if isinstance(head, st.Mix) else None
    even = _find(feed, (st.Balance, st.Bucket, st.TokenBudget)) is not None
    sums = even or (mix is not None and "tokens" in (mix.by, mix.at))
    tables = tables_of(leaves, packing, seed, losses, sums=sums)
    schedule = _schedule(mix, tables, seed, changes)
    batching = batching_of(feed)
    packer = None
    if packing is not None:
        packer = RowPacker(packing, leaves)
    if isinstance(batching, st.Bucket | st.TokenBudget):
        if any(t.lengths is None for t in tables):
            raise ConfigError(
                f"{batching.verb} needs the lengths of samples", where=str(batching), fix="add .cache() after the map"
            )
        packer = batch_packer(batching)
    never = packing is not None and packing.repack == "never"
    if never and len(leaves) > 1:
        raise ConfigError(
            'repack="never" in a mix: its epochs do not hold the same samples', where=str(packing), fix='repack="epoch"'
        )
    order = Order(tables, schedule, packer=packer, seed=shuffled, repack=not never, counts=counts)
    out = Compiled(leaves, order, packing, batching, _find(feed, st.Balance), row_maps, losses=losses)
    out.loss_unknown = losscount.unknown(feed.stages)
    if out.loss_unknown is None and any(leaf.source.lengths is None for leaf in out.leaves):
        out.loss_unknown = "samples without tokens"
    _identify(out, mix, seed, shuffled)
    out.changes = list(changes)
    if changes:
        out.parts["changes"] = written(changes)
    if packer is not None:
        arranged = digest({k: v for k, v in out.parts.items() if k not in {"balance", "ramp"}})
        order.keeper = NodePlans(feed, seed, order, arranged)
    return out


def _schedule(mix: st.Mix | None, tables: Sequence[SourceTable], seed: int, changes: Sequence[Change]) -> Schedule:
    names, sizes = [t.name for t in tables], [t.n for t in tables]
    repeats = [t.repeats for t in tables]
    if mix is None:
        return Schedule(names, sizes, repeats=repeats, seed=seed)
    by_tokens = "tokens" in (mix.by, mix.at)
    means = [t.mean for t in tables] if by_tokens else [Fraction(1)] * len(tables)
    added = {name for c in changes for name in c.added}  # no weight before they came
    none = Fraction(0)
    entries = [(at, tuple(none if n in added else w for n, w in weights)) for at, weights in mix.schedule]
    later = [(c.epoch, c.position, tuple(dict(c.weights).get(name, none) for name in names)) for c in changes]
    own = seed if mix.seed is None else mix.seed
    return Schedule(
        names,
        sizes,
        entries=entries,
        means=means,
        repeats=repeats,
        by=mix.by,
        at=mix.at,
        rule=mix.on_exhausted,
        seed=own,
        changes=later,
    )


@dataclass(frozen=True, slots=True)
class RowPacker:
    """Packs the draws of a block, as a stage says."""

    stage: st.Pack
    leaves: Sequence[Leaf]

    def __call__(self, lengths: NDArray[Any], source: NDArray[np.int32], index: Ints) -> Packed:
        """Give the rows."""
        return pack_rows(lengths, source, index, stage=self.stage, leaves=self.leaves)

    def count(self, lengths: NDArray[Any], source: NDArray[np.int32], index: Ints) -> int | None:
        """Count the rows from the lengths alone, where nothing is cut; else None."""
        del source, index
        stage = self.stage
        if stage.policy != "best_fit" or stage.overlong in {"truncate", "split", "alone"}:
            return None
        return pack.count_best_fit(lengths, stage.capacities, max_docs=stage.max_docs, align=stage.align)


def plan_of(
    lengths: NDArray[Any], source: NDArray[np.int32], index: Ints, *, stage: st.Pack, leaves: Sequence[Leaf]
) -> pack.Plan:
    """Plan the rows of the draws of one block."""
    more: dict[str, Any] = {}
    if stage.overlong in {"truncate", "split"}:
        for name in ("label_tokens", "media_tokens"):
            values = gather_facts(leaves, name, source, index)
            if values is not None:
                more[name] = values
        more["kept_labels"] = LabelsAfterCut(leaves, source, index)
    overlong = "error" if stage.overlong == "drop" else stage.overlong
    return pack.plan(
        lengths,
        stage.capacity,
        policy=stage.policy,
        overlong=None if stage.policy == "concat_split" else overlong,  # type: ignore[arg-type]
        align=stage.align,
        max_docs=stage.max_docs,
        **more,
    )


def pack_rows(
    lengths: NDArray[Any], source: NDArray[np.int32], index: Ints, *, stage: st.Pack, leaves: Sequence[Leaf]
) -> Packed:
    """Pack the draws of one block."""
    plan = plan_of(lengths, source, index, stage=stage, leaves=leaves)
    rows, pieces, loss = plan.rows, plan.rows.pieces, plan.loss
    if pieces is None:
        return Packed(rows.order, rows.offsets, capacities=rows.capacities, loss=loss.reasons)
    if stage.overlong != "truncate":  # nothing is lost, and it is told
        first = (pieces.start == 0) & (pieces.stop < lengths[rows.order])
        loss = loss.plus("split", int(np.count_nonzero(first)), 0)
    return Packed(rows.order, rows.offsets, pieces.start, pieces.stop, rows.capacities, loss.reasons)


def gather_facts(leaves: Sequence[Leaf], name: str, source: NDArray[np.int32], index: Ints) -> Ints | None:
    """Give a table column for samples of several sources, int64 (n,); None where a source lacks it."""
    columns: list[Mapping[str, NDArray[Any]]] = [leaf.facts for leaf in leaves]
    if any(name not in c for c in columns):
        return None
    return picked([c[name] for c in columns], source, index)


def _identify(out: Compiled, mix: st.Mix | None, seed: int, shuffled: Key) -> None:
    """Write down what the order depends on."""
    out.parts["data"] = [[leaf.name, leaf.source.fingerprint, leaf.repeats] for leaf in out.leaves]
    out.parts["kept"] = [t.n for t in out.order.sources]
    out.parts["seed"] = [repr(t.seed) + f"/{t.locality}" * bool(t.locality) for t in out.order.sources] + [
        repr(shuffled)
    ]
    if mix is not None:
        weights = [[start, [[n, str(w)] for n, w in ws]] for start, ws in mix.schedule]
        out.parts["mix"] = [weights, mix.by, mix.at, mix.on_exhausted, out.order.schedule.phases]
    if out.pack is not None:
        p = out.pack
        out.parts["pack"] = [p.capacity, p.policy, p.overlong, p.align, p.max_docs, p.repack, out.order.size]
    if out.balance is not None:
        out.parts["balance"] = [out.balance.by, out.balance.a, out.balance.b]
    if isinstance(out.batch, st.Bucket | st.TokenBudget):
        b = out.batch
        how = [b.boundaries, b.sizes, b.remainder, b.pad_to] if isinstance(b, st.Bucket) else [b.tokens, b.window]
        out.parts["batch"] = [b.verb, *how, b.pad_to_multiple_of]
    if isinstance(out.batch, st.Batch) and not isinstance(out.batch.size, int):
        (_, first), *later = out.batch.size  # another number of ranks may take other numbers of rows
        out.parts["ramp"] = [[start, str(Fraction(size, first))] for start, size in later]
    out.loose["map"] = [leaf.code() for leaf in out.leaves] + [code_of_stage(m) for m in out.row_maps]
    del seed
