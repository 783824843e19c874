"""Several streams interleaved by weight.

Decides which source gives the next sample of a sub-stream: the closed form of `plan.mix`, by samples handed on, for
each sub-stream alone, so that neither the number of ranks nor timing changes anything. Whose turn is next among the
sub-streams of a rank goes by events taken, filtered samples included, so that none starves. Knows no function.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from typing import Any

from thalweg.core.errors import InputError
from thalweg.core.seeds import generator
from thalweg.feed import stages as st
from thalweg.feed.events import (
    END,
    EPOCH,
    FAIL,
    ID,
    ITEM,
    KIND,
    NO_SOURCE,
    PASS,
    SOURCE,
    SUB,
    TOKEN,
    VALUE,
    Event,
    EventNode,
    Token,
)
from thalweg.feed.streamparts import OfParts
from thalweg.plan.mix import PHASE, Interleave

HELD = 100_000  # samples of one source that may wait for their sub-streams' turns
AHEAD = 256  # positions of the interleave worked out at once


@dataclass(frozen=True, slots=True)
class Changes:
    """Weights that replace a schedule from a place on.

    Args:
        weights: (number, weights) of each change, in order.
        begins: sub-stream -> for each change the samples of the run, handed on to it, before it.
    """

    weights: tuple[st.Entry, ...] = ()
    begins: Mapping[int, Sequence[int]] = field(default_factory=dict[int, Sequence[int]])


NO_CHANGES = Changes()


@dataclass(slots=True)
class _Place:
    """Where a sub-stream stands; the first eleven fields are its token.

    Args:
        epoch: of the mix.
        tokens: of each part.
        begin: tokens, total and in_pass where this epoch began.
        turns: events taken in this epoch.
        total: samples handed on since the run began.
        position: samples handed on since the rates last changed.
        phases: of the interleave at position 0.
        drawn: samples of each part since the epoch began.
        in_pass: samples of each part since its own pass began, which may have been in an earlier epoch.
        sizes: samples of each part's last pass; -1 where none ended in this epoch.
        out: parts that give nothing more in this epoch.
        order: the interleave from position 0 on, once it is needed.
        coming: parts at the next positions.
    """

    epoch: int
    tokens: list[Token]
    begin: list[Any]
    turns: int
    total: int
    position: int
    phases: list[int]
    drawn: list[int]
    in_pass: list[int]
    sizes: list[int]
    out: list[int]
    order: Interleave | None = None
    coming: deque[int] = field(default_factory=deque[int])

    @property
    def token(self) -> Token:
        return (
            self.epoch, list(self.tokens), self.begin, self.turns, self.total, self.position, self.phases,
            list(self.drawn), list(self.in_pass), list(self.sizes), list(self.out),
        )  # fmt: skip

    @classmethod
    def of(cls, token: Token) -> "_Place":
        numbers = [list(v) if isinstance(v, list | tuple) else int(v) for v in token]
        return cls(*numbers)  # type: ignore[arg-type]

    def turn_rates(self) -> None:
        """Begin another interleave here, its errors carried over."""
        if self.order is not None:
            self.phases, self.position, self.order = self.order.carried(self.position), 0, None
        self.coming.clear()


class MixNode(OfParts):
    """Interleaves parts by weight.

    Args:
        parts: chains, in the order of the stage's feeds.
        stage: weights, and the rule for sources that are used up.
        repeats: passes of each part after which it is used up.
        shards: number of all sub-streams; breakpoints count samples over all of them.
        seed: of the phases.
        epochs: epoch at which reading stops; None never.
        changes: weights that replaced those of the stage at checkpoints, and where in each sub-stream.
    """

    def __init__(
        self,
        parts: Sequence[EventNode],
        stage: st.Mix,
        repeats: Sequence[int],
        *,
        shards: int,
        seed: int,
        epochs: int | None,
        changes: Changes = NO_CHANGES,
    ) -> None:
        super().__init__(parts)
        self._stage, self._repeats = stage, list(repeats)
        self._shards, self._seed, self._epochs = shards, seed, epochs
        self._starts = [start for start, _ in stage.schedule]
        self._weights = [dict(weights) for _, weights in (*stage.schedule, *changes.weights)]
        self._changed = changes.begins
        self._places: dict[int, _Place] = {}
        self._runs: list[Iterator[Event]] = []
        self._held: list[dict[int, deque[Event]]] = []

    # ---- places

    def first(self, sub: int, epoch: int = 0) -> Token:
        """Give the token of the beginning of an epoch, as if each before had read every part once."""
        return self._begun(sub, epoch, [p.first(sub, epoch) for p in self._parts], 0, [0] * len(self._parts)).token

    def _begun(self, sub: int, epoch: int, tokens: list[Token], total: int, in_pass: list[int]) -> _Place:
        phases = [int(generator(self._seed, "phase", name, sub).integers(1 << PHASE)) for name, _ in self._stage.feeds]
        n = len(tokens)
        begin = [list(tokens), total, list(in_pass)]
        return _Place(epoch, list(tokens), begin, 0, total, 0, phases, [0] * n, list(in_pass), [-1] * n, [])

    def begin_of(self, sub: int, token: Token) -> Token:
        """Give the token of the place where a token's epoch began."""
        at = _Place.of(token)
        return self._begun(sub, at.epoch, *at.begin).token

    def origin_of(self, token: Token) -> Token:
        """Give (epoch, place in each part)."""
        return (int(token[0]), [p.origin_of(t) for p, t in zip(self._parts, token[1], strict=True)])

    def restore(self, tokens: Mapping[int, Token]) -> None:
        """Go to the places of these sub-streams."""
        self._places = {s: _Place.of(t) for s, t in tokens.items()}
        for sub, at in self._places.items():
            if at.position and at.total in self._changed.get(sub, ()):  # its errors are those of the old weights
                at.order = self._interleave(self._entry(sub, at.total - 1), at)
                at.turn_rates()
        for k, part in enumerate(self._parts):
            part.restore({s: at.tokens[k] for s, at in self._places.items()})

    # ---- order

    def __iter__(self) -> Iterator[Event]:
        """Give events: each sub-stream one in its turn."""
        self._runs = [iter(part) for part in self._parts]
        self._held = [{s: deque() for s in self._places} for _ in self._parts]
        line = [(at.epoch, at.turns, sub) for sub, at in self._places.items()]
        heapify(line)
        while line and (self._epochs is None or line[0][0] < self._epochs):
            sub = line[0][2]
            event = self._turn(sub)
            yield event
            if event[KIND] == FAIL:
                return
            at = self._places[sub]
            heapreplace(line, (at.epoch, at.turns, sub))

    def _turn(self, sub: int) -> Event:
        """Take one event for a sub-stream, and give what it becomes."""
        at = self._places[sub]
        k = self._live(sub, at)
        event = None if k is None else self._next(k, sub)
        if k is None or event is None:
            began = self._places[sub] = self._begun(sub, at.epoch + 1, at.tokens, at.total, at.in_pass)
            return (END, sub, None, began.token, None, at.epoch, NO_SOURCE)
        kind = event[KIND]
        if kind == FAIL:
            return event
        at.turns += 1
        at.tokens[k] = event[TOKEN]
        if kind == ITEM:
            self._advance(sub, at, k)
        elif kind == END:
            at.sizes[k], at.in_pass[k] = at.in_pass[k], 0
        return (ITEM if kind == ITEM else PASS, sub, event[VALUE], at.token, event[ID], at.epoch, event[SOURCE])

    def _used_up(self, at: _Place, k: int) -> bool:
        """Say whether a part was drawn as often since the epoch began as its passes hold samples."""
        return at.sizes[k] >= 0 and at.drawn[k] >= at.sizes[k] * self._repeats[k]

    def _live(self, sub: int, at: _Place) -> int | None:
        """Say which part goes on, where the rule for used-up parts is kept; None ends the epoch."""
        rule = self._stage.on_exhausted
        while True:
            k = self._wanted(sub, at)
            if k is None or not self._used_up(at, k):
                return k
            if rule == "stop_first":
                return None
            if rule != "without_repeat":
                if all(self._used_up(at, j) for j in range(len(self._parts))):
                    return None
                if at.sizes[k]:
                    return k  # it begins again
            at.out.append(k)
            at.turn_rates()

    def _entry(self, sub: int, total: int) -> int:
        passed = [i for i, begin in enumerate(self._changed.get(sub, ())) if begin <= total]
        if passed:
            return len(self._starts) + passed[-1]
        return bisect_right(self._starts, total * self._shards + sub) - 1

    def _interleave(self, entry: int, at: _Place) -> Interleave | None:
        weights = self._weights[entry]
        rates = [weights[name] * (k not in at.out) for k, (name, _) in enumerate(self._stage.feeds)]
        return Interleave(rates, at.phases) if any(rates) else None

    def _wanted(self, sub: int, at: _Place) -> int | None:
        """Say which part gives the next sample; None where none is left."""
        if at.order is None:
            at.order = self._interleave(self._entry(sub, at.total), at)
            if at.order is None:
                return None
        if not at.coming:
            at.coming.extend(at.order.span(at.position, at.position + AHEAD)[0].tolist())
        return at.coming[0]

    def _advance(self, sub: int, at: _Place, k: int) -> None:
        """Move past a sample of part k."""
        at.drawn[k], at.in_pass[k] = at.drawn[k] + 1, at.in_pass[k] + 1
        at.coming.popleft()
        at.total, at.position = at.total + 1, at.position + 1
        if self._entry(sub, at.total) != self._entry(sub, at.total - 1):
            at.turn_rates()

    def _next(self, k: int, sub: int) -> Event | None:
        """Give the next event of a part for a sub-stream, or the part's failure; what is for others is held."""
        held = self._held[k]
        while not held[sub]:
            event = next(self._runs[k], None)
            if event is None or event[KIND] == FAIL:
                return event
            held[event[SUB]].append(event)
            if len(held[event[SUB]]) > HELD:
                return (FAIL, sub, _too_many(sub, event), None, None, event[EPOCH], event[SOURCE])
        return held[sub].popleft()


def _too_many(sub: int, event: Event) -> InputError:
    return InputError(
        f"source {event[SOURCE].name!r} gave nothing for sub-stream {sub} while {HELD:,} samples of it wait for "
        f"sub-stream {event[SUB]}",
        where="mix",
        fix="filter behind the mix, or run as many ranks as there are sub-streams",
    )
