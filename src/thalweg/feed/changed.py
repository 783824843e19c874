"""The walk of a planned feed that goes on from a state whose weights were changed on the way, or are changed now.

Decides that the state is compared with the feed as it was when it was saved, new sources left out, and that the change
is written down in the next state and in the ledger. Where a change falls is `feed.remix`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from thalweg.core.errors import ConfigError
from thalweg.feed.compile import compile_feed
from thalweg.feed.feed import Feed
from thalweg.feed.ledger import Ledger
from thalweg.feed.node import RunOptions
from thalweg.feed.planned import PlannedNode
from thalweg.feed.remix import begun, mix_of, read, sources_of, without


def going_on(
    feed: Feed,
    options: RunOptions,
    ledger: Ledger | None,
    state: Mapping[str, Any],
    *,
    mix: Mapping[str, float] | None,
    new_data: Sequence[str],
    strict: bool,
) -> PlannedNode:
    """Give the walk from a state on.

    Args:
        feed: with its first weights, new sources included.
        options: how it is run.
        ledger: told where the run goes on; None keeps none.
        state: of the feed as it was.
        mix: name -> weight of every source from here on; None changes nothing.
        new_data: sources that the state does not know.
        strict: warn where the code of a map differs.

    Raises:
        StateError: the state of another feed.
        ConfigError: weights or names that cannot be meant.
    """
    past = read(state.get("changes"), [n for n in sources_of(feed) if n not in new_data])
    if new_data and mix is None:
        raise ConfigError("new sources need weights", where="load_state_dict(new_data=...)", fix="give mix= too")
    if mix is None:
        node = PlannedNode(compile_feed(feed, options.seed, changes=past), options, ledger)
        node.restore(state, strict=strict)
        return node
    mix_of(feed)
    old = PlannedNode(compile_feed(without(feed, new_data), options.seed, changes=past), options)
    old.restore(state, strict=strict)
    exact = old.compiled.pack is None and old.micros.even is None
    change = begun(feed, old.compiled.order, old.place, mix, new_data, exact=exact, before=old.state()["fingerprint"])
    node = PlannedNode(compile_feed(feed, options.seed, changes=[*past, change]), options, ledger)
    node.go_on(old)
    return node
