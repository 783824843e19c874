"""What a loader is asked for: settings that mean nothing or contradict each other are refused.

Decides the limits of each setting and how a global batch becomes micro-batches. Runs nothing.
"""

from typing import Any

import numpy as np

from thalweg.core.errors import ConfigError, nearest
from thalweg.core.sizes import to_bytes
from thalweg.core.topology import Topology
from thalweg.feed import stages as st
from thalweg.feed.feed import Feed
from thalweg.plan.steps import TAILS


def check(feed: Any, epochs: int | None, max_steps: int | None, tail: str | None, require: str | None) -> None:
    """Refuse a feed that is none, counts that are none, and a stream where a plan is required."""
    if not isinstance(feed, Feed):
        raise ConfigError(
            f"Loader takes a feed, not {type(feed).__name__}",
            where="Loader",
            fix="tw.from_records(...), tw.from_dataset(...)",
        )
    if epochs is not None and not whole(epochs, 1):
        raise ConfigError(f"epochs={epochs!r} must be a whole number of at least 1, or None", where="Loader")
    if max_steps is not None and not whole(max_steps, 0):
        raise ConfigError(f"max_steps={max_steps!r} must be a whole number of at least 0", where="Loader")
    if tail is not None and tail not in TAILS:
        raise ConfigError(f"tail={tail!r} is unknown", where="Loader", fix=nearest(tail, TAILS))
    if require not in {None, "planned"}:
        raise ConfigError(f"require={require!r} is unknown", where="Loader", fix='require="planned"')
    if require == "planned" and feed.kind != "planned":
        raise ConfigError(
            f"the feed is a stream: {feed.why}", where='Loader(require="planned")', fix=".cache() behind the map"
        )


def whole(value: Any, least: int) -> bool:
    """Say whether a value is a whole number of at least `least`; numpy's count, truths do not."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and int(value) >= least


def check_run(seed: Any, workers: Any, max_bytes: Any, prefetch: Any) -> None:
    """Refuse settings of the run that mean nothing."""
    if not whole(seed, 0):
        raise ConfigError(f"seed={seed!r} must be a whole number of at least 0", where="Loader")
    if workers != "auto" and not whole(workers, 0):
        raise ConfigError(f'workers={workers!r} must be "auto" or a whole number of at least 0', where="Loader")
    if not whole(prefetch, 0):
        raise ConfigError(f"prefetch={prefetch!r} must be a whole number of at least 0", where="Loader")
    if max_bytes != "auto":
        to_bytes(max_bytes)


def accumulation_of(feed: Feed, topology: Topology, given: int, total: int | None) -> int:
    """Give the micro-batches of a step, from their number or from the rows of a step over all ranks."""
    if not whole(given, 1):
        raise ConfigError(f"gradient_accumulation_steps={given!r} must be a whole number of at least 1", where="Loader")
    if total is None:
        return given
    batch = next((s for s in feed.stages if isinstance(s, st.BATCHING)), None)
    micro = batch.size if isinstance(batch, st.Batch) else 1
    if not isinstance(micro, int):
        raise ConfigError(
            f"global_batch_size={total} is one number, and {batch} changes over the run", where="Loader",
            fix="gradient_accumulation_steps=, or one number of rows",
        )  # fmt: skip
    each = micro * topology.dp_size
    if total % each or total < each:
        raise ConfigError(
            f"global_batch_size={total} is no multiple of {topology.dp_size} ranks x {micro} rows", where="Loader",
            fix=f"a multiple of {each}",
        )  # fmt: skip
    if given not in {1, total // each}:
        raise ConfigError(
            f"global_batch_size={total} means {total // each} micro-batches, and gradient_accumulation_steps={given}",
            where="Loader", fix="give one of the two",
        )  # fmt: skip
    return total // each


def endless_rule(feed: Feed) -> bool:
    """Say whether an epoch of the feed has no end."""
    head = feed.stages[0]
    return isinstance(head, st.Mix) and head.on_exhausted == "repeat"
