"""Stages of a stream that hold samples for a while: the shuffle window, and groups for batched calls.

Decides the order inside a window: consecutive blocks of each sub-stream, each permuted by (seed, sub-stream, epoch,
block). State is positions, never samples: a resume reads at most one block again. Knows no threads.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from thalweg.core.seeds import generator
from thalweg.feed.events import END, FAIL, ID, ITEM, PASS, SOURCE, Event, EventNode, Token


class WindowNode:
    """Shuffles each sub-stream in consecutive blocks of `size` samples.

    Token: (upstream token before the block, block, samples of it handed over). Inside a block its last sample's place
    is fourth.

    Args:
        upstream: gives the samples.
        size: samples of a block, at least 1. Memory: one block for each sub-stream of the rank.
        key: seed and stage; with sub-stream, epoch and block it decides the order.
    """

    def __init__(self, upstream: EventNode, size: int, key: tuple[Any, ...]) -> None:
        self._upstream, self._size, self._key = upstream, size, key
        self._start: dict[int, Token] = {}
        self._block: dict[int, int] = {}
        self._given: dict[int, int] = {}

    def first(self, sub: int, epoch: int = 0) -> Token:
        """Give the token of the beginning of an epoch."""
        return (self._upstream.first(sub, epoch), 0, 0)

    def begin_of(self, sub: int, token: Token) -> Token:
        """Give the token of the beginning of a token's epoch."""
        return (self._upstream.begin_of(sub, token[0]), 0, 0)

    def origin_of(self, token: Token) -> Token:
        """Give the source's place inside a token."""
        return self._upstream.origin_of(token[0])

    def head_of(self, token: Token) -> Token:
        """Give the place up to which the head was read for a token: the whole block that it stands in."""
        return self._upstream.head_of(token[3] if len(token) > 3 else token[0])

    def restore(self, tokens: Mapping[int, Token]) -> None:
        """Go to the beginning of each sub-stream's block; what was handed over of it is left out once it is full."""
        self._start = {s: t[0] for s, t in tokens.items()}
        self._block = {s: int(t[1]) for s, t in tokens.items()}
        self._given = {s: int(t[2]) for s, t in tokens.items()}
        self._upstream.restore(self._start)

    def __iter__(self) -> Iterator[Event]:
        """Give samples block by block."""
        held: dict[int, list[Event]] = {s: [] for s in self._start}
        for event in self._upstream:
            kind, sub, _, token, _, epoch, source = event
            if kind == ITEM:
                block = held[sub]
                block.append(event)
                if len(block) == self._size:
                    yield from self._permuted(sub, block, token, epoch)
                    held[sub] = []
            elif kind == PASS:
                if not held[sub] and not self._given[sub]:
                    self._start[sub] = token
                    yield (PASS, sub, None, (token, self._block[sub], 0), None, epoch, source)
            elif kind == END:
                if held[sub]:
                    # the block's end is the epoch's end: the last sample's place must still have the END before it
                    yield from self._permuted(sub, held[sub], None, epoch)
                    held[sub] = []
                self._start[sub], self._block[sub], self._given[sub] = token, 0, 0
                yield (END, sub, None, (token, 0, 0), None, epoch, source)
            else:
                yield event

    def _permuted(self, sub: int, block: list[Event], after: Token, epoch: int) -> Iterator[Event]:
        n, number, before = len(block), self._block[sub], self._start[sub]
        order = generator(*self._key, "window", sub, epoch, number).permutation(n).tolist()
        given, self._given[sub] = self._given[sub], 0
        whole = after is not None
        if whole:
            self._start[sub], self._block[sub] = after, number + 1
        for place in range(given, n):
            event = block[order[place]]
            token = (after, number + 1, 0) if whole and place == n - 1 else (before, number, place + 1, block[-1][3])
            yield (ITEM, sub, event[2], token, event[ID], epoch, event[SOURCE])

    def stop(self) -> None:
        """Wake upstream."""
        self._upstream.stop()

    def close(self) -> None:
        """Close upstream."""
        self._upstream.close()


class GroupNode:
    """Collects `size` samples of a sub-stream for one batched call; the value is the list of their events.

    Token: upstream token after the group.
    """

    def __init__(self, upstream: EventNode, size: int) -> None:
        self._upstream, self._size = upstream, size
        self._subs: list[int] = []

    def first(self, sub: int, epoch: int = 0) -> Token:
        """Give the token of the beginning of an epoch."""
        return self._upstream.first(sub, epoch)

    def begin_of(self, sub: int, token: Token) -> Token:
        """Give the token of the beginning of a token's epoch."""
        return self._upstream.begin_of(sub, token)

    def origin_of(self, token: Token) -> Token:
        """Give the source's place inside a token."""
        return self._upstream.origin_of(token)

    def head_of(self, token: Token) -> Token:
        """Give the place up to which the head was read for a token."""
        return self._upstream.head_of(token)

    def restore(self, tokens: Mapping[int, Token]) -> None:
        """Go to the beginning of each sub-stream's group."""
        self._subs = list(tokens)
        self._upstream.restore(tokens)

    def __iter__(self) -> Iterator[Event]:
        """Give groups; the last one of an epoch may be smaller."""
        held: dict[int, list[Event]] = {s: [] for s in self._subs}
        for event in self._upstream:
            kind, sub, _, token, _, epoch, _ = event
            if kind == ITEM:
                group = held[sub]
                group.append(event)
                if len(group) == self._size:
                    held[sub] = []
                    yield (ITEM, sub, group, token, group[0][ID], epoch, group[0][SOURCE])
            elif kind == FAIL:
                yield event
            else:
                if kind == END and held[sub]:
                    group, held[sub] = held[sub], []
                    yield (ITEM, sub, group, group[-1][3], group[0][ID], epoch, group[0][SOURCE])
                if not held[sub]:
                    yield event

    def stop(self) -> None:
        """Wake upstream."""
        self._upstream.stop()

    def close(self) -> None:
        """Close upstream."""
        self._upstream.close()
