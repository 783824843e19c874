"""Weights of a mix of streams that change at a checkpoint: where each sub-stream changes, and how that is kept.

Decides that new weights begin behind everything that was read for the state: rows that windows and packers hold are
those of the old weights, so that a resume reads the same again. Each sub-stream has a place of its own, which its part
of the state carries. What a mix draws is `feed.streammix`; how a change is written is `feed.remix`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from thalweg.feed import streamstate
from thalweg.feed.events import EventNode, Token
from thalweg.feed.feed import Feed
from thalweg.feed.join import mix
from thalweg.feed.node import RunOptions
from thalweg.feed.remix import Change, mix_of, packed, read, sources_of
from thalweg.feed.streamchain import Chain, build
from thalweg.feed.streammix import Changes

TOTAL = 4  # of a mix's token: samples handed on since the run began


@dataclass(frozen=True)
class Remix:
    """All changes of a run so far.

    Args:
        changes: what replaced the weights, in order.
        begins: sub-stream -> samples handed on to it before each change.
    """

    changes: tuple[Change, ...] = ()
    begins: dict[int, list[int]] = field(default_factory=dict[int, list[int]])

    @classmethod
    def of(cls, state: Mapping[str, Any], names: Sequence[str]) -> "Remix":
        """Read what a state carries; `names`: sources of the mix, in its order."""
        return cls(tuple(read(state.get("changes"), names)), streamstate.begins_of(state))

    @property
    def text(self) -> str:
        """Write the changes as short text; "" where there are none."""
        return packed(self.changes)

    def for_chain(self) -> Changes:
        """Give what a mix's node takes."""
        return Changes(tuple((c.position, c.weights) for c in self.changes), self.begins)

    def then(self, change: Change, node: EventNode, places: Mapping[int, Token]) -> "Remix":
        """Give the changes with one more, behind all that `node` had its head read for these places."""
        begins = {s: [*self.begins.get(s, []), int(node.head_of(token)[TOTAL])] for s, token in places.items()}
        return Remix((*self.changes, change), begins)


def going_on(
    feed: Feed, options: RunOptions, state: Mapping[str, Any], weights: Mapping[str, Any] | None
) -> tuple[Remix, Chain, int, dict[int, streamstate.Saved]]:
    """Give what a run goes on with: changes, chain, steps handed over, and what is saved of each sub-stream.

    Args:
        feed: with its first weights.
        options: how it is run.
        state: of all sub-streams of this rank.
        weights: name -> weight of every source from here on; None changes nothing.

    Raises:
        StateError: another feed, or a state that lacks a sub-stream of this rank.
        ConfigError: weights that are no numbers, name no source, forget one or sum to 0; the feed has no mix.
    """
    remix = Remix.of(state, sources_of(feed))
    chain = build(feed, options, None, remix.for_chain())
    step, places = streamstate.read(state, chain.identity, chain.shards)
    streamstate.mine(places, chain.subs, chain.shards)
    if weights is not None:
        head = mix_of(feed)
        checked = mix_of(mix(dict(head.feeds), weights=weights, on_exhausted=head.on_exhausted)).schedule[0][1]
        tokens = {s: places[s].token for s in chain.subs}
        epoch = min(int(chain.node.origin_of(t)[0]) for t in tokens.values())
        remix = remix.then(Change(epoch, step, checked, before=str(state["fingerprint"])), chain.node, tokens)
        chain = build(feed, options, None, remix.for_chain())
    return remix, chain, step, places
