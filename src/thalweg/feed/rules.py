"""Which stages may follow which, and from where on a feed is a stream.

Decides refusals when a feed is built (SEMANTICS 1.3 and 2.5), each with the reason and the right order, and the
kind of a feed with the stage that made it so. Reads no data and runs nothing.
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from thalweg.core.errors import ConfigError, nearest
from thalweg.feed.code import draws_at_random
from thalweg.feed.columns import known_columns, names, table_columns
from thalweg.feed.stages import (
    BATCHING,
    Balance,
    Batch,
    Bucket,
    Cache,
    Concat,
    Filter,
    From,
    FromStream,
    Map,
    Mix,
    Pack,
    Repeat,
    Select,
    Shuffle,
    Skip,
    Split,
    Stage,
    Take,
    TokenBudget,
    describe,
)

PLANNED, STREAM = "planned", "stream"
POLICIES = ("best_fit", "fill", "auto", "first_fit", "next_fit", "concat_split")
OVERLONG = ("drop", "truncate", "split", "alone", "error")
EXHAUSTED = ("stop_first", "stop_all", "repeat", "without_repeat")
DIALECTS = ("hf", "hf_mamba", "varlen", "megatron", "torchtitan", "raw")

# (stage that is added, stage that is there, reason, right order)
_ORDER: tuple[tuple[type[Stage] | tuple[type[Stage], ...], type[Stage] | tuple[type[Stage], ...], str, str], ...] = (
    (Shuffle, BATCHING, "batches would be made once and stay the same in every epoch", ".shuffle().batch(n)"),
    (Shuffle, Repeat, "samples of the next pass would mix into this one", "Loader(feed.shuffle(), epochs=n)"),
    (Shuffle, Pack, "rows are permuted already, anew in each epoch", ".shuffle().pack(n)"),
    (Pack, BATCHING, "a packed row is made of samples, not of batches", ".pack(n).batch(m)"),
    (Pack, Pack, "rows are packed already", "one .pack(n)"),
    (BATCHING, BATCHING, "batch, bucket and token_budget are alternatives", "one of them"),
    ((Bucket, TokenBudget), Pack, "packed rows are all of one length", ".pack(n).batch(m)"),
    (Filter, BATCHING, "a filter sees samples", ".filter(fn).batch(n)"),
    (Filter, Pack, "a filter behind pack would break rows", ".filter(fn).pack(n)"),
    (Cache, BATCHING, "batches depend on the layout", ".cache().batch(n)"),
    (Cache, Pack, "rows are a plan, nothing is computed that could be kept", ".cache().pack(n)"),
    (Map, BATCHING, "a map sees samples or rows", ".map(fn).batch(n)"),
    (Balance, BATCHING, "rows are dealt to batches already", ".balance().batch(n)"),
    ((Take, Skip, Select, Split), BATCHING, "batches depend on the layout", ".take(n).batch(m)"),
    ((Take, Skip, Select, Split), (Pack, Shuffle), "it picks samples of the source", ".take(n).shuffle().pack(m)"),
    ((Take, Skip, Select, Split), Mix, "a mix has no fixed list of samples", "mix({'a': a.take(n), ...})"),
    (Repeat, (Pack, *BATCHING), "repeating the whole feed is the loader's", "Loader(feed, epochs=n)"),
)


def check(stages: Sequence[Stage]) -> None:
    """Refuse a sequence of stages that cannot be right.

    Raises:
        ConfigError: with the reason and the right order.
    """
    assert stages
    last, before = stages[-1], stages[:-1]
    for new, old, reason, right in _ORDER:
        if isinstance(last, new):
            there = next((s for s in before if isinstance(s, old)), None)
            if there is not None:
                raise ConfigError(f"{last.verb} after {there.verb}: {reason}", where=str(last), fix=right)
    for kinds, test in _CHECKS.items():
        if isinstance(last, kinds):
            test(last, before)


def _positive(value: Any, name: str, where: Stage, *, optional: bool = False) -> None:
    wrong = not isinstance(value, int) or isinstance(value, bool) or value < 1
    if wrong and not (optional and value is None):
        raise ConfigError(f"{name} must be an integer of at least 1, not {value!r}", where=str(where))


def _one_of(value: Any, name: str, choices: Sequence[str], where: Stage) -> None:
    if value not in choices:
        raise ConfigError(f"{name}={value!r} is unknown", where=where.verb, fix=nearest(str(value), choices))


def _check_pack(stage: Any, before: Sequence[Stage]) -> None:
    _positive(stage.align, "align", stage)
    _check_row_lengths(stage, before)
    _positive(stage.max_docs, "max_docs", stage, optional=True)
    if not re.fullmatch(r"window_0*[1-9]\d*", str(stage.policy)):
        _one_of(stage.policy, "policy", (*POLICIES, "window_512"), stage)
    _one_of(stage.repack, "repack", ("epoch", "never"), stage)
    if stage.overlong is not None:
        _one_of(stage.overlong, "overlong", OVERLONG, stage)
        if stage.policy == "concat_split":
            raise ConfigError("concat_split takes no overlong: every token is kept", where=str(stage))
    elif stage.policy != "concat_split" and kind_of((*before, stage))[0] == STREAM:
        raise ConfigError(
            "a stream cannot count its samples that are too long for a row beforehand",
            where=str(stage),
            fix='say what becomes of them: overlong="drop", "truncate", "split", "alone" or "error"',
        )


def _check_row_lengths(stage: Any, before: Sequence[Stage]) -> None:
    lengths = stage.capacity if isinstance(stage.capacity, tuple) else (stage.capacity,)
    if not lengths:
        raise ConfigError("a row needs a length", where="pack", fix=".pack(4096), or .pack((4096, 32768))")
    for capacity in lengths:
        _positive(capacity, "capacity", stage)
        if capacity % stage.align:
            raise ConfigError(
                f"rows of {capacity:,} tokens do not hold a whole number of align={stage.align}", where=str(stage),
                fix=f"rows of {capacity // stage.align * stage.align or stage.align:,}",
            )  # fmt: skip
    if len(lengths) > 1 and stage.policy != "best_fit":
        raise ConfigError("several row lengths are planned by best_fit only", where=str(stage), fix="one row length")
    if len(lengths) > 1 and kind_of((*before, stage))[0] == STREAM:
        raise ConfigError(
            "several row lengths need a plan, so that all ranks of a step take one shape",
            where=str(stage), fix="add .cache() after the map, or say one row length",
        )  # fmt: skip


def _check_batch(stage: Any, before: Sequence[Stage]) -> None:
    if isinstance(stage, Batch):
        _check_ramp(stage, before)
        _positive(stage.pad_to, "pad_to", stage, optional=True)
    elif isinstance(stage, TokenBudget):
        _positive(stage.tokens, "tokens", stage)
    else:
        n, m, rising, where = len(stage.boundaries), len(stage.sizes), sorted(set(stage.boundaries)), str(stage)
        if list(stage.boundaries) != rising:
            raise ConfigError("the boundaries do not rise", where=where, fix=f".bucket({rising}, ...)")
        if m != n + 1:
            fix = f"{n + 1} sizes, the last for samples longer than the last boundary"
            raise ConfigError(f"{n} boundaries make {n + 1} buckets, and there are {m} sizes", where=where, fix=fix)
        for size in stage.sizes:
            _positive(size, "batch size", stage)
    _positive(stage.pad_to_multiple_of, "pad_to_multiple_of", stage)
    _one_of(stage.pad, "pad", ("right", "left", "none"), stage)
    if not callable(stage.collate):
        _one_of(stage.collate, "collate", DIALECTS, stage)
    _one_of(stage.dtype, "dtype", ("int64", "int32"), stage)
    if stage.dtype != "int64" and stage.collate not in ("hf", "hf_mamba", "varlen"):
        raise ConfigError(
            f"batches of collate={describe(stage.collate)} are of the type that their taker fixes", where=str(stage),
            fix='dtype="int32" goes with collate="hf", "hf_mamba" or "varlen"',
        )  # fmt: skip
    if stage.collate == "varlen" and stage.pad != "none":
        raise ConfigError('collate="varlen" is one flat row', where=str(stage), fix='say pad="none"')


def _check_ramp(stage: Any, before: Sequence[Stage]) -> None:
    if not isinstance(stage.size, tuple):
        _positive(stage.size, "size", stage)
        return
    fix = ".batch(4), or a ramp: .batch([(0, 4), (100_000, 8)])"
    if not all(isinstance(e, tuple) and len(e) == 2 and isinstance(e[0], int) for e in stage.size):
        raise ConfigError("a batch is a number of rows, or [(rows of the run before, number)]", where="batch", fix=fix)
    starts = [start for start, _ in stage.size]
    if not starts or starts[0] != 0 or starts != sorted(set(starts)):
        raise ConfigError("breakpoints must rise from 0", where="batch", fix=f"they are {starts}; {fix}")
    for _, size in stage.size:
        _positive(size, "size", stage)
    if kind_of(before)[0] == STREAM:
        raise ConfigError(
            "a batch that grows with the rows of the run needs a plan: a stream's ranks do not know each other's rows",
            where=str(stage), fix=".cache() behind the map, or one number",
        )  # fmt: skip


def _check_map(stage: Any, before: Sequence[Stage]) -> None:
    _callable(stage)
    _one_of(stage.mode, "mode", ("auto", "inline", "threads", "processes"), stage)
    _one_of(stage.on_error, "on_error", ("raise", "skip", "quarantine"), stage)
    _positive(stage.ahead, "ahead", stage, optional=True)
    if stage.length is not None:
        _one_of(stage.length, "length", ("same",), stage)
    if any(isinstance(s, Pack) for s in before) and (stage.with_info or stage.batched):
        raise ConfigError(
            "a map behind pack sees one row of several samples: it has no info of one, and no batches",
            where=str(stage),
            fix="put it before pack; with other lengths, .cache() behind it",
        )
    known = known_columns(before)
    given, made = names(stage.input_columns), names(stage.output_columns)
    if known is None:
        return
    for wanted in (*given, *(() if stage.remove_columns == "all" else names(stage.remove_columns))):
        if wanted not in known:
            raise ConfigError(f"no column {wanted!r}", where=str(stage), fix=nearest(wanted, known))
    taken = [c for c in made if c in known and c not in given]
    if taken and given:
        raise ConfigError(
            f"column {taken[0]!r} exists and is not an input of the function",
            where=str(stage),
            fix="name it in input_columns too, or give the new column another name",
        )


def _callable(stage: Any) -> None:
    if not callable(stage.fn):
        raise ConfigError(f"{stage.verb} needs a function, not {type(stage.fn).__name__}", where=stage.verb)


def _check_filter(stage: Any, before: Sequence[Stage]) -> None:
    _callable(stage)
    if draws_at_random(stage.fn) and not stage.with_info:
        raise ConfigError(
            "a random filter without a seed keeps other samples on each rank and in each run",
            where=str(stage),
            fix="filter(fn, with_info=True) with fn(sample, info) drawing from info.rng",
        )
    known = table_columns(before)
    for name in names(stage.columns):
        if known is not None and name not in known:
            raise ConfigError(f"no table column {name!r}", where=str(stage), fix=nearest(name, known))
        if name == "length" and not lengths_known(before)[0]:
            raise ConfigError(
                f"lengths are not known here: {lengths_known(before)[1]}", where=str(stage),
                fix="add .cache() before the filter, or filter before the map",
            )  # fmt: skip


def _check_cache(stage: Any, before: Sequence[Stage]) -> None:
    _one_of(stage.what, "what", ("samples", "lengths"), stage)
    _one_of(stage.scope, "scope", ("node", "shared", "rank"), stage)
    random = next((s for s in before if isinstance(s, Map | Filter) and s.with_info), None)
    if random is not None and isinstance(random, Map):
        raise ConfigError(
            "cache after a map with info.rng or info.epoch would freeze its random numbers",
            where=str(stage),
            fix="put .cache() before that map",
        )
    drawn = next((s for s in before if isinstance(s, Map) and draws_at_random(s.fn)), None)
    if drawn is not None:
        fix = "draw from info.rng (with_info=True) behind the cache"
        raise ConfigError("cache after a map that draws random numbers would freeze them", where=str(drawn), fix=fix)
    if stage.scope == "shared" and stage.path is None:
        raise ConfigError('scope="shared" needs a place that all machines see', where="cache", fix="give path=")
    if stage.max_bytes is not None and (stage.path is not None or stage.what != "samples"):
        raise ConfigError("max_bytes holds samples in memory: no path, no counts", where="cache", fix="one of the two")


def _check_mix(stage: Any, _before: Sequence[Stage]) -> None:
    _one_of(stage.by, "by", ("samples", "tokens"), stage)
    _one_of(stage.at, "at", ("samples", "tokens"), stage)
    _one_of(stage.on_exhausted, "on_exhausted", EXHAUSTED, stage)
    starts = [start for start, _ in stage.schedule]
    if not starts or starts[0] != 0 or starts != sorted(set(starts)):
        raise ConfigError("breakpoints must rise from 0", where="mix", fix=f"they are {starts}")
    for start, weights in stage.schedule:
        if any(w < 0 for _, w in weights) or not sum(w for _, w in weights):
            raise ConfigError("weights must be at least 0 with a sum above 0", where=f"mix, entry at {start}")
    if stage.on_exhausted in ("stop_all", "repeat"):
        never = [name for name, w in stage.schedule[-1][1] if not w]
        if never:
            raise ConfigError(
                f"source {never[0]!r} has weight 0 in the last entry: on_exhausted={stage.on_exhausted!r} never ends",
                where="mix",
                fix='give it a weight, leave it out, or use on_exhausted="stop_first"',
            )
    for name, feed in stage.feeds:
        _check_part(name, feed, "mix")
        if stage.by == "tokens" or stage.at == "tokens":
            kind, why = lengths_known(feed.stages)
            if not kind:
                raise ConfigError(
                    f"weights by tokens need lengths; source {name!r} has none: {why}",
                    where="mix",
                    fix="add .cache() to it",
                )


def _check_part(name: str, feed: Any, verb: str) -> None:
    for stage in feed.stages:
        if isinstance(stage, (Pack, *BATCHING, Balance)):
            raise ConfigError(
                f"source {name!r} is packed or batched already", where=verb, fix=f"{verb}(...).pack(n).batch(m)"
            )
        if isinstance(stage, Mix):
            raise ConfigError(
                f"source {name!r} is itself a mix",
                where=verb,
                fix="name all sources in one mix, weights multiplied out",
            )


def _check_concat(stage: Any, _before: Sequence[Stage]) -> None:
    if not stage.feeds:
        raise ConfigError("concat of nothing", where="concat")
    for name, feed in stage.feeds:
        _check_part(name, feed, "concat")


def _check_split(stage: Any, _before: Sequence[Stage]) -> None:
    if not stage.shares:
        raise ConfigError("split into nothing", where="split", fix='{"train": 0.99, "val": 0.01}')
    total = math.fsum(share for _, share in stage.shares)
    if any(share < 0 for _, share in stage.shares) or not 0 < total <= 1 + 1e-9:
        raise ConfigError(f"shares must be at least 0 with a sum of at most 1, not {total:g}", where="split")


def _check_count(stage: Any, _before: Sequence[Stage]) -> None:
    if not isinstance(stage.n, int) or stage.n < 0:
        raise ConfigError(f"{stage.verb} needs a count of at least 0, not {stage.n!r}", where=stage.verb)


def _check_select(stage: Any, _before: Sequence[Stage]) -> None:
    indices = np.asarray(stage.indices)
    if indices.ndim != 1 or (indices.size and indices.dtype.kind not in "iu"):
        raise ConfigError(
            f"select takes whole numbers (k,), not {indices.dtype} of shape {indices.shape}",
            where="select",
            fix="for a mask say select(np.flatnonzero(mask))",
        )


def _check_repeat(stage: Any, _before: Sequence[Stage]) -> None:
    _positive(stage.n, "n", stage)


def _check_balance(stage: Any, before: Sequence[Stage]) -> None:
    _one_of(stage.by, "by", ("cost", "tokens"), stage)
    if stage.window is not None and stage.run is not None and stage.window % stage.run:
        raise ConfigError(f"a window of {stage.window} rows is no multiple of its run of {stage.run}", where="balance")
    if kind_of(before)[0] == STREAM:
        raise ConfigError("balance needs a plan", where="balance", fix="add .cache() after the map")


_CHECKS: dict[Any, Callable[[Any, Sequence[Stage]], None]] = {
    Pack: _check_pack,
    BATCHING: _check_batch,
    Map: _check_map,
    Filter: _check_filter,
    Cache: _check_cache,
    Mix: _check_mix,
    Concat: _check_concat,
    Split: _check_split,
    (Take, Skip): _check_count,
    Select: _check_select,
    Repeat: _check_repeat,
    Balance: _check_balance,
}


def lengths_known(stages: Sequence[Stage]) -> tuple[bool, str | None]:
    """Say whether true lengths are known behind these stages, and if not, which stage hides them."""
    known, why = True, None
    for i, stage in enumerate(stages):
        if isinstance(stage, From):
            if stage.source.lengths is None:
                known, why = False, f"{stage}: it has no column of token counts"
        elif isinstance(stage, FromStream):
            known, why = False, f"{stage}: a stream has no length"
        elif isinstance(stage, Concat | Mix):
            for name, feed in stage.feeds:
                inner, reason = lengths_known(feed.stages)
                if not inner and known:
                    known, why = False, f"source {name!r}: {reason}"
        elif isinstance(stage, Map) and stage.length != "same" and known:
            known, why = False, f"stage {i} {stage}: lengths after it are unknown"
        elif isinstance(stage, Cache):
            known, why = True, None
    return known, why


def kind_of(stages: Sequence[Stage]) -> tuple[str, str | None]:
    """Say "planned" or "stream", and which stage makes it a stream."""
    for i, stage in enumerate(stages):
        if isinstance(stage, FromStream):
            return STREAM, f"{stage}: data without random access"
        if isinstance(stage, Concat | Mix):
            for name, feed in stage.feeds:
                kind, why = kind_of(feed.stages)
                if kind == STREAM:
                    return STREAM, f"source {name!r} is one: {why}"
        if isinstance(stage, Pack | Bucket | TokenBudget | Balance):
            known, why = lengths_known(stages[:i])
            if not known:
                return STREAM, f"{stage.verb} needs lengths, and {why}; .cache() before it keeps the feed planned"
    return PLANNED, None
