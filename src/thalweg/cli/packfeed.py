"""What `thalweg pack` says of a feed: its packing under each policy asked for, its batches, its rows counted ahead.

Decides how words of the command line replace those of the feed, and how the answer reads. The figures are those of
`feed.packreport`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

from thalweg.core.errors import ConfigError
from thalweg.feed import stages as st
from thalweg.feed.compile import compile_feed
from thalweg.feed.feed import Feed
from thalweg.feed.packreport import batch_report, described, packing_report


@dataclass(frozen=True, slots=True)
class Asked:
    """Words of the command line; None or () leaves what the feed says."""

    capacity: int | None
    policies: tuple[str, ...]
    overlong: str | None
    align: int
    max_docs: int | None


def packed_by(feed: Feed, asked: Asked, policy: str | None) -> Feed:
    """Give the feed with its packing as asked; one without packing gets it where a capacity is given."""
    there = next((s for s in feed.stages if isinstance(s, st.Pack)), None)
    if there is None and asked.capacity is None:
        return feed
    base = Feed(tuple(s for s in feed.stages if not isinstance(s, (st.Pack, st.Balance, *st.BATCHING))))
    wanted = there or st.Pack(asked.capacity or 1)
    if asked.capacity is not None:
        wanted = replace(wanted, capacity=asked.capacity)
    if asked.overlong is not None:
        wanted = replace(wanted, overlong=asked.overlong)
    if policy is not None:
        wanted = replace(wanted, policy=policy, overlong=None if policy == "concat_split" else wanted.overlong)
    wanted = replace(
        wanted,
        align=wanted.align if asked.align == 1 else asked.align,
        max_docs=wanted.max_docs if asked.max_docs is None else asked.max_docs,
    )
    return Feed((*base.stages, wanted))


def feed_result(feed: Feed, asked: Asked, epochs: int, seed: int) -> dict[str, Any]:
    """Work out the answer.

    Raises:
        ConfigError: a stream, or a feed that neither packs nor batches by length.
    """
    if feed.kind != "planned":
        raise ConfigError(f"a stream has no plan to look at: {feed.why}", where="pack", fix=".cache() behind the map")
    has = described(feed)
    plans: list[dict[str, Any]] = []
    for policy in asked.policies or (None,):
        one = packed_by(feed, asked, policy)
        if not described(one)["packing"]:
            continue
        start = perf_counter()
        report = packing_report(one, seed=seed)
        word = policy or next(s for s in one.stages if isinstance(s, st.Pack)).policy
        plans.append({"policy": word, "seconds": round(perf_counter() - start, 3), **report.to_dict()})
    batches = batch_report(feed, seed=seed).to_dict() if has["batches"] else None
    if not plans and batches is None:
        raise ConfigError("the feed packs nothing", where="pack", fix="-c 4096, or a feed with .pack or .bucket")
    order = compile_feed(feed, seed).order
    ahead = {str(e): order.rows(e) for e in range(epochs)}
    return {"feed": str(feed), "seed": seed, "plans": plans, "batches": batches, "rows": ahead}


def feed_text(result: dict[str, Any], table: Callable[..., list[str]]) -> list[str]:
    """Write the answer; `table` writes the plans."""
    lines = [result["feed"], ""]
    if result["plans"]:
        lines += table(result["plans"], detailed=True)
    batches = result["batches"]
    if batches is not None:
        shares = batches["shares_of_padding"]
        lines += [
            "",
            f"{batches['batches']:,} batches of {batches['samples']:,} samples",
            f"padding {shares['padding']:.1%}; to longest {shares['to_longest']:.1%}, packed {shares['packed']:.1%}",
            f"{batches['distinct_shapes']} shapes (rows x width): "
            + ", ".join(f"{shape} {n:,}" for shape, n in list(batches["shapes"].items())[:40]),
        ]
    rows = ", ".join(f"{n:,} in epoch {e}" for e, n in result["rows"].items())
    return [*lines, "", f"rows counted ahead, and kept on this machine: {rows}"]
