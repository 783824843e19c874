"""The ordered asynchronous map as a node: outputs in the order of the source, with the place of each.

Decides what a turn becomes: outputs with their places, a place without output, or a failure under the stage's rule
(`on_error`, `max_bad`, `quarantine`). Where and how many at once the calls run is the business of `feed.engine`.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from thalweg.core.errors import BudgetError, StalledError, WorkerError
from thalweg.core.tally import Tally
from thalweg.feed import stages as st
from thalweg.feed.call import EventCall, describe_event
from thalweg.feed.engine import Engine, start_map
from thalweg.feed.events import (
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
    SourceEpoch,
    Token,
)
from thalweg.feed.quarantine import Quarantine
from thalweg.work.budget import ByteBudget
from thalweg.work.turns import Turn

GRACE = 100  # samples before a share of bad ones is judged


class AMapNode:
    """Maps the values of a stream.

    Token: (upstream token, outputs of the item under way that were handed over). With 0 the upstream token is the
    place after an item whose turn has passed; else the place before the item: a resume calls it again and leaves
    out what was handed over. The place after that item is third then.

    Args:
        upstream: gives the samples, or groups of them for a batched function.
        stage: the function and its rules.
        call: event -> outputs, fit to be sent to a worker process.
        engine: how calls run.
        budget: bytes in flight of the whole chain.
    """

    def __init__(
        self, upstream: EventNode, stage: st.Map, call: EventCall, engine: Engine, budget: ByteBudget | None
    ) -> None:
        self._upstream, self._stage, self._call = upstream, stage, call
        self._engine, self._budget = engine, budget
        self._before: dict[int, Token] = {}
        self._skip: dict[int, int] = {}
        self._given: dict[int, int] = {}
        self._run: Any = None
        self.tally = Tally()
        self._quarantine = None if stage.quarantine is None else Quarantine(stage.quarantine, str(stage))

    def first(self, sub: int, epoch: int = 0) -> Token:
        """Give the token of the beginning of an epoch."""
        return (self._upstream.first(sub, epoch), 0)

    def begin_of(self, sub: int, token: Token) -> Token:
        """Give the token of the beginning of a token's epoch."""
        return (self._upstream.begin_of(sub, token[0]), 0)

    def origin_of(self, token: Token) -> Token:
        """Give the source's place inside a token."""
        return self._upstream.origin_of(token[0])

    def head_of(self, token: Token) -> Token:
        """Give the place up to which the head was read for a token, the item under way included."""
        return self._upstream.head_of(token[2] if len(token) > 2 else token[0])

    def restore(self, tokens: Mapping[int, Token]) -> None:
        """Go to the places of these sub-streams."""
        self._before = {s: t[0] for s, t in tokens.items()}
        self._skip = {s: int(t[1]) for s, t in tokens.items()}
        self._given = dict.fromkeys(tokens, 0)
        self._upstream.restore(self._before)

    def __iter__(self) -> Iterator[Event]:
        """Give outputs in the order of the source."""
        self._run = start_map(self._upstream, self._call, self._stage, self._engine, self._budget)
        for turn in self._run.turns():
            event = turn.item
            if event is None:  # the source itself failed
                yield (FAIL, -1, turn.error, None, None, 0, NO_SOURCE)
                return
            if event[KIND] == ITEM:
                yield from self._outputs(event, turn)
            elif event[KIND] == FAIL:
                yield event
                return
            else:
                sub = event[SUB]
                self._before[sub], self._skip[sub] = event[TOKEN], 0
                yield (event[KIND], sub, None, (event[TOKEN], 0), None, event[EPOCH], event[SOURCE])
            if turn.error is not None and self._stage.on_error == "raise":
                return

    def _outputs(self, event: Event, turn: Turn) -> Iterator[Event]:
        if self._may_be_split(event, turn):
            yield from self._one_by_one(event)
            return
        sub, name, epoch, source = event[SUB], event[ID], event[EPOCH], event[SOURCE]
        outputs, last = turn.outputs, turn.last and turn.error is None
        at = self._given[sub]
        names = self._names(event, len(outputs)) if last and not at else None
        done = False
        for k, value in enumerate(outputs, at):
            if k < self._skip[sub]:
                continue  # handed over before the state was taken
            done = last and k == at + len(outputs) - 1
            token = (event[TOKEN], 0) if done else (self._before[sub], k + 1, event[TOKEN])
            own, origin = names[k] if names is not None else (name if k == 0 else f"{name}:{k}", source)
            self.tally.out += 1
            if done:  # counted before it is handed over: a look at the books then finds them balanced
                self._past(event)
                self._count(event, k + 1)
            yield (ITEM, sub, value, token, own, epoch, origin)
        self._given[sub] = at + len(outputs)
        if not turn.last:
            return
        made, self._given[sub], self._skip[sub] = self._given[sub], 0, 0
        if not done:
            self._count(event, made)
        if turn.error is not None:
            if self._stage.on_error == "raise":
                yield (FAIL, sub, turn.error, None, name, epoch, source)
                return
            self._bad(event, turn.error)
        self._past(event)
        if turn.error is not None or not outputs:
            yield (PASS, sub, None, (event[TOKEN], 0), None, epoch, source)

    def _may_be_split(self, event: Event, turn: Turn) -> bool:
        """Whether a group failed of which each sample may be tried alone; what hung or ended a process is not."""
        error = turn.error
        if error is None or self._stage.on_error == "raise" or isinstance(error, StalledError | WorkerError):
            return False
        return type(event[VALUE]) is list and len(event[VALUE]) > 1

    def _one_by_one(self, event: Event) -> Iterator[Event]:
        """Call a group that failed sample by sample, so that none but the bad ones is lost."""
        sub, found, books = event[SUB], list[tuple[Any, Any, SourceEpoch]](), list[tuple[Event, int, Any]]()
        for one in event[VALUE]:
            made, failed = list[Any](), None
            try:
                made = list(self._call((ITEM, sub, [one], event[TOKEN], one[ID], one[EPOCH], one[SOURCE])))
            except Exception as error:  # noqa: BLE001  (counted under the stage's rule)
                failed = error
            books.append((one, len(made), failed))
            found += [(value, *name) for value, name in zip(made, self._names(one, len(made)), strict=True)]
        for k, (value, name, source) in enumerate(found):
            if k >= self._skip[sub]:
                self.tally.out += 1
                yield (ITEM, sub, value, (self._before[sub], k + 1, event[TOKEN]), name, event[EPOCH], source)
        self._given[sub] = self._skip[sub] = 0
        for one, made_of, failed in books:
            self._count(one, made_of)
            if failed is not None:
                self._bad(one, failed)
        self._past(event)
        yield (PASS, sub, None, (event[TOKEN], 0), None, event[EPOCH], event[SOURCE])

    def _past(self, event: Event) -> None:
        self._before[event[SUB]] = event[TOKEN]

    def _names(self, event: Event, made: int) -> list[tuple[Any, SourceEpoch]]:
        """Name outputs and their sources: a batched call that gives as many as it took keeps them."""
        if type(event[VALUE]) is list and made == len(event[VALUE]):
            return [(e[ID], e[SOURCE]) for e in event[VALUE]]
        return [(event[ID] if k == 0 else f"{event[ID]}:{k}", event[SOURCE]) for k in range(made)]

    def _count(self, event: Event, made: int) -> None:
        taken = len(event[VALUE]) if type(event[VALUE]) is list else 1
        self.tally.taken += taken
        if made > taken:
            self.tally.made += made - taken
        elif made < taken:
            self.tally.drop("dropped by the function", taken - made)

    def _bad(self, event: Event, error: BaseException) -> None:
        """Count a failed item, keep it aside where asked, and stop when there are too many."""
        tally = self.tally
        n = len(event[VALUE]) if type(event[VALUE]) is list else 1
        back = min(n, tally.dropped["dropped by the function"])
        tally.dropped["dropped by the function"] -= back
        tally.dropped += Counter()  # forgets counts of zero
        if self._quarantine is not None:
            self._quarantine.keep(event, error)
            tally.quarantined += back
        else:
            tally.drop("failed", back)
        bad = tally.quarantined + tally.dropped["failed"]
        limit = self._stage.max_bad
        allowed = limit if isinstance(limit, int) else limit * max(tally.taken, GRACE)
        if bad > allowed:
            raise BudgetError(
                f"{bad} of {tally.taken} samples failed ({bad / max(tally.taken, 1):.1%}), more than max_bad={limit} "
                f"allows; the last one: {error!r}",
                where=describe_event(event),
                fix="look at the quarantined samples, or raise max_bad=",
            ) from error

    @property
    def choice(self) -> Any:
        """What mode="auto" chose and why; None before it did."""
        return None if self._run is None else getattr(self._run, "choice", None)

    def stats(self) -> dict[str, Any]:
        """Count samples, items in flight, and the consumer's waiting."""
        run = {} if self._run is None else dict(self._run.stats)
        return {**self.tally.to_dict(), **run, "mode": str(self.choice or self._engine.mode)}

    def stop(self) -> None:
        """Wake every wait and end soon."""
        if self._run is not None:
            self._run.stop()
        self._upstream.stop()

    def close(self) -> None:
        """End now. Twice is fine."""
        if self._run is not None:
            self._run.close()
        self._upstream.close()
        if self._quarantine is not None:
            self._quarantine.close()
