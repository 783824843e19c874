"""Weights of a mix that change at a checkpoint: where the change falls, and how it is written down.

Decides that a change begins at the place of the state where rows are single samples, and at the end of the running
block where they are packed or balanced, so that no row that was planned changes; and that new sources had no weight
before. What a mix draws is `plan.schedule`.
"""

import json
import zlib
from base64 import b85decode, b85encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from thalweg.core.errors import ConfigError, StateError, nearest
from thalweg.feed import stages as st
from thalweg.feed.feed import Feed
from thalweg.feed.join import mix
from thalweg.plan.epoch import Order
from thalweg.plan.steps import Place


@dataclass(frozen=True)
class Change:
    """Weights from a place on.

    Args:
        epoch: of the mix.
        position: draws of that epoch before it.
        weights: of each source.
        added: sources that are new with it.
        before: fingerprint of the feed until then.
    """

    epoch: int
    position: int
    weights: tuple[tuple[str, Fraction], ...]
    added: tuple[str, ...] = ()
    before: str = ""


def written(changes: Sequence[Change]) -> str:
    """Write changes as text, names and all, for their digest; "" where there are none."""
    if not changes:
        return ""
    parts = [[c.epoch, c.position, {n: str(w) for n, w in c.weights}, list(c.added), c.before] for c in changes]
    return json.dumps(parts, separators=(",", ":"))


def packed(changes: Sequence[Change]) -> str:
    """Write changes as the shortest text that a state can hold; "" where there are none.

    Names are left out: weights stand in the order of the mix, which the feed knows. Long text is compressed: 300
    weights of four digits take some 600 characters.
    """
    if not changes:
        return ""
    parts = [[c.epoch, c.position, [_short(w) for _, w in c.weights], list(c.added), c.before] for c in changes]
    text = json.dumps(parts, separators=(",", ":"))
    small = "z" + b85encode(zlib.compress(text.encode(), 9)).decode()
    return min(text, small, key=len)


def _short(weight: Fraction) -> str:
    digits = f"{float(weight):.6g}"
    return digits if Fraction(digits) == weight else str(weight)


def read(text: Any, names: Sequence[str] = ()) -> list[Change]:
    """Read what `packed` or `written` gave.

    Args:
        text: of a state or a ledger.
        names: sources of the mix, in its order; without them packed weights stay without names.

    Raises:
        StateError: it is something else.
    """
    if not text:
        return []
    try:
        plain = str(text)
        parts = json.loads(zlib.decompress(b85decode(plain[1:])) if plain[0] == "z" else plain)
        out: list[Change] = []
        late: set[str] = set()  # names of sources that came with a later change
        for e, p, weights, added, before in reversed(parts):
            if isinstance(weights, list):
                there = [n for n in names if n not in late]
                weights = dict(zip(there, weights, strict=True)) if names else {}  # noqa: PLW2901
            pairs = tuple((str(n), Fraction(w)) for n, w in weights.items())
            out.append(Change(int(e), int(p), pairs, tuple(added), str(before)))
            late |= set(added)
        return out[::-1]
    except (ValueError, TypeError, AttributeError, zlib.error) as error:
        raise StateError(f"entry 'changes' of the state cannot be read: {error}") from error


def sources_of(feed: Feed) -> list[str]:
    """Name the sources of a feed's mix, in their order; none without a mix."""
    return [name for name, _ in getattr(feed.stages[0], "feeds", ())]


def mix_of(feed: Feed) -> st.Mix:
    """Give the mix of a feed.

    Raises:
        ConfigError: it has none.
    """
    head = feed.stages[0]
    if not isinstance(head, st.Mix):
        raise ConfigError(
            "mix= changes the weights of a mix, and the feed has none", where="load_state_dict", fix="tw.mix({...})"
        )
    return head


def without(feed: Feed, names: Sequence[str]) -> Feed:
    """Give the feed as it was before some sources were added.

    Raises:
        ConfigError: a name that is no source, or all of them.
    """
    if not names:
        return feed
    head = mix_of(feed)
    known = [name for name, _ in head.feeds]
    for name in names:
        if name not in known:
            raise ConfigError(f"new_data names {name!r}, which is no source", fix=nearest(name, known))
    left = tuple(pair for pair in head.feeds if pair[0] not in names)
    if not left:
        raise ConfigError("new_data names all sources", where="load_state_dict", fix="start anew")
    schedule = tuple((at, tuple(pair for pair in weights if pair[0] not in names)) for at, weights in head.schedule)
    return Feed((replace(head, feeds=left, schedule=schedule), *feed.stages[1:]))


def begun(
    feed: Feed,
    order: Order,
    place: Place,
    weights: Mapping[str, Any],
    added: Sequence[str],
    *,
    exact: bool,
    before: str,
) -> Change:
    """Say where new weights begin.

    Args:
        feed: with the new sources.
        order: of rows until now.
        place: of the state.
        weights: name -> weight, for all sources.
        added: new sources.
        exact: rows are single draws in their order.
        before: fingerprint until now.

    Raises:
        ConfigError: weights that are no numbers, name no source, forget one, or sum to 0.
    """
    head = mix_of(feed)
    if not isinstance(weights, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(
            "mix= takes one weight for each source", where="load_state_dict", fix='{"web": 3, "code": 1}: no schedule'
        )
    checked = mix_of(mix(dict(head.feeds), weights=weights))
    epoch, position = place.epoch, 0
    if order.num_blocks(epoch) > place.block and (place.block or place.row):
        first, stop, _ = order.bounds(epoch, place.block)
        position = first + place.row if exact else stop if place.row else first
    if position >= order.num_draws(epoch):
        epoch, position = epoch + 1, 0
    return Change(epoch, position, checked.schedule[0][1], tuple(added), before)


def start_of(start: Place, order: Order, changes: Sequence[Change]) -> Place:
    """Give where a restart of an epoch goes: its start, or the last change of weights in it.

    Args:
        start: of the epoch.
        order: of rows.
        changes: all of the run.
    """
    cut = max((c.position for c in changes if c.epoch == start.epoch), default=0)
    if not 0 < cut < order.num_draws(start.epoch):
        return start
    block = order.block_at(start.epoch, cut)
    return start._replace(block=block, passed=sum(order.num_rows(start.epoch, b) for b in range(block)))
