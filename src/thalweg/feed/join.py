"""Several feeds as one: all of each once, or interleaved by weight.

Decides what `tw.concat` and `tw.mix` take, and refuses names and weights that cannot be meant. How a mix draws is
`plan.mix`.
"""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from thalweg.core.errors import ConfigError, nearest
from thalweg.feed import stages as st
from thalweg.feed.feed import Feed


def concat(feeds: Mapping[str, Feed]) -> Feed:
    """Give all samples of each feed once."""
    _named_feeds(feeds, "concat")
    return Feed((st.Concat(tuple(feeds.items())),))


def mix(
    feeds: Mapping[str, Feed],
    *,
    weights: Mapping[str, float] | Sequence[tuple[float, Mapping[str, float]]] | None = None,
    by: str = "samples",
    on_exhausted: str = "stop_first",
    at: str = "samples",
    seed: int | None = None,
) -> Feed:
    """Interleave feeds by weight (SEMANTICS 2.2 to 2.4).

    Args:
        feeds: name -> feed.
        weights: name -> weight, or [(breakpoint, weights)] for a curriculum; None weighs all alike.
        by: "samples" or "tokens": what the weights are shares of.
        on_exhausted: "stop_first" | "stop_all" | "repeat" | "without_repeat".
        at: what breakpoints count: "samples" or "tokens", from the start of the run.
        seed: of the interleave; None takes the loader's.

    Raises:
        ConfigError: weights that are negative, not numbers or sum to 0; names that match no source.
    """
    _named_feeds(feeds, "mix")
    _check_weights(weights, feeds)
    schedule = st.schedule_of(weights, list(feeds))
    return Feed((st.Mix(tuple(feeds.items()), schedule, by, at, on_exhausted, seed),))


def _named_feeds(feeds: Any, verb: str) -> None:
    """Refuse what is not a mapping of names to feeds."""
    if not isinstance(feeds, Mapping) or not feeds:
        raise ConfigError(f"{verb} takes feeds by name", where=verb, fix=f'{verb}({{"web": feed_a, "code": feed_b}})')
    for name, feed in feeds.items():
        if not isinstance(feed, Feed):
            raise ConfigError(
                f"source {name!r} is no feed but {type(feed).__name__}", where=verb, fix="tw.from_records(...) first"
            )


def _check_weights(weights: Any, feeds: Mapping[str, Feed]) -> None:
    """Refuse weights that are no numbers, name no source, forget one, or would be rounded to nothing."""
    if weights is None:
        return
    entries = [weights] if isinstance(weights, Mapping) else [w for _, w in weights]
    for entry in entries:
        for name, weight in entry.items():
            if name not in feeds:
                raise ConfigError(f"a weight for {name!r}, which is no source", where="mix", fix=nearest(name, feeds))
            if not isinstance(weight, int | float | Fraction) or not math.isfinite(weight):
                raise ConfigError(f"weight {weight!r} of {name!r} is not a finite number", where="mix")
            if weight > 0 and not st.as_fraction(weight):
                raise ConfigError(
                    f"weight {weight!r} of {name!r} is below one in a million and would count as 0",
                    where="mix",
                    fix="multiply all weights by a thousand",
                )
    for name in feeds:
        if not any(name in entry for entry in entries):
            raise ConfigError(f"source {name!r} has no weight", where="mix", fix="give it one; 0 leaves it out")
