"""The reading end of a stream: sub-streams in turns.

Decides which items are this rank's before anything else is done with them (item i belongs to sub-stream i % L), and
whose turn is next: the one whose next item has the smallest number. So the order of any rank is that of i % D == r,
for every D that divides L. Knows no worker, no batch and no other rank.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from thalweg.feed.events import END, ITEM, Event, SourceEpoch, Token
from thalweg.feed.origin import Named, Origin, plain

SNAPSHOT_EVERY = 64  # items between two states of the source: a resume reads at most so many again


class SubStreams:
    """Reads the sub-streams of one rank out of one origin, epoch after epoch.

    Token: (epoch, items of the sub-stream handed on in it).

    Args:
        origin: the items.
        shards: number L of sub-streams.
        epochs: epoch at which reading stops; None never.
        take: numbers of items [a, b) that are read at all, counted over all sub-streams.
        name: of the source.
        label: number of the sub-stream among all, where it is the only one here; None: they are numbered as here.
    """

    def __init__(
        self,
        origin: Origin,
        shards: int,
        epochs: int | None = 1,
        take: tuple[int, int | None] = (0, None),
        name: str = "",
        *,
        label: int | None = None,
    ) -> None:
        self._origin, self._shards, self._epochs, self._name, self._label = origin, shards, epochs, name, label
        self._skip, self._limit = take
        self._next: dict[int, tuple[int, int]] = {}
        self._stopped = False
        self.read = 0  # items read, other ranks' included
        self.snapshots: deque[tuple[int, int, Any]] = deque()  # (epoch, number of the next item, state), rising

    def first(self, sub: int, epoch: int = 0) -> Token:
        """Give the token of the beginning of an epoch."""
        del sub
        return (epoch, 0)

    def begin_of(self, sub: int, token: Token) -> Token:
        """Give the token of the beginning of a token's epoch."""
        return self.first(sub, int(token[0]))

    def origin_of(self, token: Token) -> Token:
        """Give the place itself."""
        return token

    def head_of(self, token: Token) -> Token:
        """Give the place itself."""
        return token

    def restore(self, tokens: Mapping[int, Token]) -> None:
        """Go to the places of these sub-streams."""
        self._next = {s: (int(t[0]), int(t[1])) for s, t in tokens.items()}

    def take_snapshots(self, given: Sequence[Any]) -> None:
        """Take states of the source that a saved state brought along: (epoch, number, state) each."""
        self.snapshots = deque(sorted(((int(e), int(n), s) for e, n, s in given), key=lambda g: g[:2]))

    def number(self, sub: int, token: Token) -> tuple[int, int]:
        """Give (epoch, number among all items) of a sub-stream's next item."""
        return (int(token[0]), self._skip + int(token[1]) * self._shards + sub)

    def snapshot_for(self, sub: int, place: Token) -> tuple[int, int, Any] | None:
        """Find the newest state of the source at or before a place."""
        number, found = self.number(sub, place), None
        for snapshot in list(self.snapshots):
            if snapshot[:2] > number:
                break
            found = snapshot
        return found if found is not None and found[0] == number[0] else None

    def forget_before(self, places: Mapping[int, Token]) -> None:
        """Forget states that no place from here on needs; called by the consumer, while the reader appends."""
        snapshots, place = self.snapshots, min(self.number(s, t) for s, t in places.items())
        while len(snapshots) > 1 and snapshots[1][:2] <= place:
            snapshots.popleft()

    def __iter__(self) -> Iterator[Event]:
        """Give items and ends in turns."""
        while self._next and not self._stopped:
            epoch = min(e for e, _ in self._next.values())
            if self._epochs is not None and epoch >= self._epochs:
                return
            yield from self._epoch(epoch)

    def _epoch(self, epoch: int) -> Iterator[Event]:
        shards, nxt, label = self._shards, self._next, self._label
        mine = {s for s, (e, _) in nxt.items() if e == epoch}
        sources = {s: SourceEpoch(self._name, epoch, s if label is None else label) for s in mine}
        start = max(self._skip, min(self._skip + nxt[s][1] * shards + s for s in mine))
        number = start
        for number, item in enumerate(self._items(epoch, start), start):
            if self._stopped:
                return
            sub = (number - self._skip) % shards
            if sub not in mine:
                continue
            count = (number - self._skip) // shards
            if count < nxt[sub][1]:
                continue
            nxt[sub] = (epoch, count + 1)
            if type(item) is Named:
                yield (ITEM, sub, item.sample, (epoch, count + 1), item.id, epoch, sources[sub])
            else:
                yield (ITEM, sub, plain(item), (epoch, count + 1), number, epoch, sources[sub])
        # Each sub-stream ends in its own turn: where its next item would have been.
        for sub in sorted(mine, key=lambda s: nxt[s][1] * shards + s):
            nxt[sub] = (epoch + 1, 0)
            yield (END, sub, None, (epoch + 1, 0), None, epoch, sources[sub])

    def _items(self, epoch: int, start: int) -> Iterator[Any]:
        """Read from `start` on, noting the source's state now and then."""
        known = [s for s in self.snapshots if s[0] == epoch and s[1] <= start]
        snapshot = None if not known else (known[-1][1], known[-1][2])
        iterator = self._origin.open(epoch, start, snapshot)
        number = start
        while self._limit is None or number < self._limit:
            if number > start and (number - start) % SNAPSHOT_EVERY == 0:
                self._note(epoch, number)
            try:
                item = next(iterator)
            except StopIteration:
                return
            except BaseException as error:
                error.add_note(f"while reading item {number} of the stream, epoch {epoch}")
                raise
            number += 1
            self.read += 1
            yield item

    def _note(self, epoch: int, number: int) -> None:
        if self.snapshots and self.snapshots[-1][:2] >= (epoch, number):
            return
        state = self._origin.snapshot()
        if state is not None:
            self.snapshots.append((epoch, number, state))

    def stop(self) -> None:
        """Read no further item; a source that waits for its next one cannot be woken."""
        self._stopped = True

    def close(self) -> None:
        """The same: the origin's iterator ends with the thread that runs it."""
        self._stopped = True


class FileStreams:
    """Sub-streams that each have an origin of their own (one part of the files each), in the same turns.

    Args:
        origins: one for each sub-stream of this rank.
        shards: number L of all sub-streams.
        epochs: epoch at which reading stops; None never.
        name: of the source.
    """

    def __init__(self, origins: Mapping[int, Origin], shards: int, epochs: int | None = 1, name: str = "") -> None:
        self._parts = {s: SubStreams(o, 1, epochs, name=name, label=s) for s, o in origins.items()}
        self._shards = shards
        self._subs: list[int] = []
        self._places: dict[int, tuple[int, int]] = {}

    def first(self, sub: int, epoch: int = 0) -> Token:
        """Give the token of the beginning of an epoch."""
        del sub
        return (epoch, 0)

    def begin_of(self, sub: int, token: Token) -> Token:
        """Give the token of the beginning of a token's epoch."""
        return self.first(sub, int(token[0]))

    def origin_of(self, token: Token) -> Token:
        """Give the place itself."""
        return token

    def head_of(self, token: Token) -> Token:
        """Give the place itself."""
        return token

    def restore(self, tokens: Mapping[int, Token]) -> None:
        """Go to the places of these sub-streams."""
        self._subs = list(tokens)
        self._places = {s: self.number(s, t) for s, t in tokens.items()}
        for sub, token in tokens.items():
            self._parts[sub].restore({0: token})

    def take_snapshots(self, given: Sequence[Any]) -> None:
        """Take states of the sources; the number of each names its sub-stream."""
        own: dict[int, list[Any]] = {s: [] for s in self._parts}
        for epoch, number, state in given:
            if number % self._shards in own:
                own[number % self._shards].append((epoch, number // self._shards, state))
        for sub, part in self._parts.items():
            part.take_snapshots(own[sub])

    @property
    def read(self) -> int:
        """Count the items read."""
        return sum(part.read for part in self._parts.values())

    def number(self, sub: int, token: Token) -> tuple[int, int]:
        """Give (epoch, place in the order of turns) of a sub-stream's next item."""
        return (int(token[0]), int(token[1]) * self._shards + sub)

    def snapshot_for(self, sub: int, place: Token) -> tuple[int, int, Any] | None:
        """Find the newest state of a sub-stream's source at or before a place."""
        found = self._parts[sub].snapshot_for(0, place)
        return None if found is None else (found[0], found[1] * self._shards + sub, found[2])

    def forget_before(self, places: Mapping[int, Token]) -> None:
        """Forget states that no place from here on needs."""
        for sub, token in places.items():
            self._parts[sub].forget_before({0: token})

    def __iter__(self) -> Iterator[Event]:
        """Give items and ends in turns: the smallest (epoch, number) first."""
        running = {s: iter(self._parts[s]) for s in self._subs}
        place = dict(self._places)
        while running:
            sub = min(running, key=place.__getitem__)
            event = next(running[sub], None)
            if event is None:
                del running[sub]
                continue
            kind, _, value, token, name, epoch, source = event
            if kind == ITEM and isinstance(name, int):
                name = name * self._shards + sub
            yield (kind, sub, value, token, name, epoch, source)
            place[sub] = self.number(sub, token)

    def stop(self) -> None:
        """Read no further item."""
        for part in self._parts.values():
            part.stop()

    def close(self) -> None:
        """The same."""
        self.stop()
