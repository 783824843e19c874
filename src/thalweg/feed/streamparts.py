"""Several streams one after the other, and what a chain with several sources shows of its reading ends.

Decides the order of `concat` on streams: each sub-stream reads its share of the first part to the end, then of the
next. Knows no weights.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from thalweg.feed.events import END, FAIL, KIND, PASS, SUB, TOKEN, Event, EventNode, Head, Token


class Heads:
    """The reading ends of several parts as one.

    A place is (epoch, [place in each part]); a state of the sources is a list with one entry for each part.

    Args:
        parts: reading ends, in the order of the parts.
    """

    def __init__(self, parts: Sequence[Head]) -> None:
        self._parts = list(parts)

    @property
    def read(self) -> int:
        """Count the items read."""
        return sum(part.read for part in self._parts)

    def snapshot_for(self, sub: int, place: Token) -> list[Any] | None:
        """Find the newest state of each source at or before a place; None where no source has one."""
        found = [part.snapshot_for(sub, at) for part, at in zip(self._parts, place[1], strict=True)]
        return found if any(f is not None for f in found) else None

    def take_snapshots(self, given: Sequence[Any]) -> None:
        """Take states of the sources."""
        for k, part in enumerate(self._parts):
            part.take_snapshots([g[k] for g in given if g[k] is not None])

    def forget_before(self, places: Mapping[int, Token]) -> None:
        """Forget states that no place from here on needs."""
        for k, part in enumerate(self._parts):
            part.forget_before({sub: place[1][k] for sub, place in places.items()})


class OfParts:
    """What nodes of several parts have in common: they begin a chain, and end all parts together.

    Args:
        parts: chains, one a part.
    """

    def __init__(self, parts: Sequence[EventNode]) -> None:
        self._parts = list(parts)

    def head_of(self, token: Token) -> Token:
        """Give the place itself."""
        return token

    def stop(self) -> None:
        """Wake every part."""
        for part in self._parts:
            part.stop()

    def close(self) -> None:
        """Close every part."""
        for part in self._parts:
            part.close()


class ConcatNode(OfParts):
    """Reads parts one after the other, each as often as it repeats, epoch after epoch.

    Token: (epoch, part, passes of it read, [token of each part]).

    Args:
        parts: chains, one a part.
        repeats: passes over each part in an epoch.
        epochs: epoch at which reading stops; None never.
    """

    def __init__(self, parts: Sequence[EventNode], repeats: Sequence[int], epochs: int | None) -> None:
        super().__init__(parts)
        self._repeats, self._epochs = list(repeats), epochs
        self._at: dict[int, tuple[int, int, int]] = {}
        self._tokens: dict[int, list[Token]] = {}

    def first(self, sub: int, epoch: int = 0) -> Token:
        """Give the token of the beginning of an epoch."""
        tokens = [p.first(sub, epoch * n) for p, n in zip(self._parts, self._repeats, strict=True)]
        return (epoch, 0, 0, tokens)

    def begin_of(self, sub: int, token: Token) -> Token:
        """Give the token of the beginning of a token's epoch."""
        return self.first(sub, int(token[0]))

    def origin_of(self, token: Token) -> Token:
        """Give (epoch, place in each part)."""
        return (int(token[0]), [p.origin_of(t) for p, t in zip(self._parts, token[3], strict=True)])

    def restore(self, tokens: Mapping[int, Token]) -> None:
        """Go to the places of these sub-streams."""
        self._at = {s: (int(t[0]), int(t[1]), int(t[2])) for s, t in tokens.items()}
        self._tokens = {s: list(t[3]) for s, t in tokens.items()}
        for k, part in enumerate(self._parts):
            part.restore({s: t[k] for s, t in self._tokens.items()})

    def __iter__(self) -> Iterator[Event]:
        """Give events, part after part."""
        runs = [iter(part) for part in self._parts]
        while self._at:
            epoch, k, passed = place = min(self._at.values())
            if self._epochs is not None and epoch >= self._epochs:
                return
            waiting = {s for s, at in self._at.items() if at == place}
            after = self._after(epoch, k, passed)
            while waiting:
                event = next(runs[k], None)
                if event is None or event[KIND] == FAIL:
                    if event is not None:
                        yield event
                    return
                yield self._seen(event, epoch, after)
                if event[KIND] == END:
                    waiting.discard(event[SUB])

    def _after(self, epoch: int, k: int, passed: int) -> tuple[int, int, int]:
        """Give the place behind a pass."""
        if passed + 1 < self._repeats[k]:
            return epoch, k, passed + 1
        return (epoch, k + 1, 0) if k + 1 < len(self._parts) else (epoch + 1, 0, 0)

    def _seen(self, event: Event, epoch: int, after: tuple[int, int, int]) -> Event:
        kind, sub, value, _, name, _, source = event
        at = self._at[sub]
        tokens = list(self._tokens[sub])
        tokens[at[1]] = event[TOKEN]
        self._tokens[sub] = tokens
        if kind == END:
            self._at[sub] = at = after
            kind = END if after[0] > epoch else PASS
        return (kind, sub, value, (*at, tokens), name, epoch, source)
