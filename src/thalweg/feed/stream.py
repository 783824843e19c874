"""Runs a feed of kind "stream": batches of one rank, with a place that can be saved, and equal steps on all ranks.

Decides how far ahead steps are made, when ranks ask each other, and what the place is after a batch. Which rows a
step takes is `feed.streamsteps`; what is granted is `feed.grant`.
"""

import json
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from thalweg.core.batch import Batch
from thalweg.core.errors import StalledError, StateError
from thalweg.core.state import State
from thalweg.feed import stages as st
from thalweg.feed.feed import Feed
from thalweg.feed.grant import ENDED
from thalweg.feed.ledger import Ledger
from thalweg.feed.node import RunOptions
from thalweg.feed.streamagree import answer_of, ask_all
from thalweg.feed.streambatch import NOTHING_NOTED, LaidOut, Noted, StreamBatcher, step_words
from thalweg.feed.streamchain import Chain, build, leg_of
from thalweg.feed.streamgiven import Counts, Given, names_of, together
from thalweg.feed.streamremix import Remix, going_on
from thalweg.feed.streamstate import write
from thalweg.feed.streamsteps import Shape, Stand, StepRows, steps
from thalweg.plan.steps import Place
from thalweg.work.inline import InlineMap
from thalweg.work.ordered import OrderedMap

if TYPE_CHECKING:
    from thalweg.feed.events import SourceEpoch
    from thalweg.work.turns import Turn

FORGET_EVERY = 16  # steps between two looks for states of the source that are not needed any more


class StreamNode:
    """Micro-batches of one rank of a stream.

    Args:
        feed: of kind "stream".
        options: how it is run.
        ledger: told of every micro-batch handed over, and of restarts; None keeps none.
    """

    def __init__(self, feed: Feed, options: RunOptions, ledger: Ledger | None = None) -> None:
        self.feed, self.options, self.ledger = feed, options, ledger
        self._remix = Remix()
        self._plan = build(feed, options, None)  # names sub-streams and checks stages; reads nothing
        self._now = self._stand({s: self._plan.node.first(s) for s in self._plan.subs}, {}, {})
        self._snapshots: list[Any] = []
        self._edge = (0, self._now)  # steps, and where the sub-streams stand: replaced whole
        self._step, self._epoch = 0, 0
        self._resumed = False  # the next `for` goes on from here
        self._looked = False
        self._untouched = False  # resumed, and no step handed over since
        self._chain: Chain | None = None
        self._run: InlineMap | OrderedMap | None = None
        self._turns: Iterator[Turn] | None = None
        self._ready: deque[tuple[Batch, Noted]] = deque()
        self._taken: deque[Turn] = deque()  # steps that were looked at before their turn
        self._granted, self._fill = 0, False
        self._ended, self._until = False, options.epochs
        self._waited = 0.0
        self._came: Mapping[SourceEpoch, int] = {}  # samples of the step that is handed over, by source
        self._shares: Counter[str] = Counter()  # the same of all steps so far
        self._mixed = isinstance(feed.stages[0], st.Concat | st.Mix)

    @property
    def step(self) -> int:
        """Count the steps handed over in the run."""
        return self._step

    @property
    def epoch(self) -> int:
        """Epoch of the last batch handed over."""
        return self._epoch

    @property
    def given(self) -> Counts:
        """Give source -> (epoch of its own, samples of it handed over) at the last step's edge; {} of one source."""
        return together((g.counts for g in self._edge[1].given.values()), names_of(self.feed)) if self._mixed else {}

    def _epoch_of(self, token: Any) -> int:
        return int(self._plan.node.origin_of(token)[0])

    def _running_epoch(self) -> int:
        return min(map(self._epoch_of, self._now.places.values()), default=0)

    def _stand(self, places: dict[int, Any], rows: Mapping[int, int], given: Mapping[int, Given]) -> Stand:
        epochs = {s: self._epoch_of(t) for s, t in places.items()}
        return Stand(places, {s: rows.get(s, 0) for s in places}, epochs, {s: given.get(s, Given()) for s in places})

    def _beginning(self, epoch: int) -> Stand:
        """Give the place where each sub-stream began an epoch, or would."""
        node, now = self._plan.node, self._now
        there = {s for s, t in now.places.items() if self._epoch_of(t) == epoch}
        places = {s: node.begin_of(s, t) if s in there else node.first(s, epoch) for s, t in now.places.items()}
        return self._stand(places, {}, {s: now.given[s].where_began(epoch) for s in there})

    def begin(self) -> None:
        """Start a `for`: right after `restore` go on, else go to the first row of the running epoch."""
        if self._looked:
            self._looked = False  # a look has begun it, and nothing was handed over
            return
        if self.ledger is not None:
            self.note_leg()
            self.ledger.start()
        if not self._resumed and self._turns is not None and not self._ended:
            self._go_to(self._beginning(self._running_epoch()))
            self._note("restarted")
        self._untouched, self._resumed = self._resumed, False
        self._start()

    def _go_to(self, stand: Stand) -> None:
        self._close_run()
        self._now, self._edge = stand, (self._step, stand)

    def _start(self) -> None:
        """Make the chain and what runs it; threads start with the first batch."""
        self._close_run()
        options = self.options
        running = self._running_epoch()
        group = options.epochs
        until = self._until = None if group is None else (running // group + 1) * group
        beyond = options.tail == "carry" or until is None
        chain = self._chain = build(self.feed, options, None if beyond else until, self._remix.for_chain())
        chain.source.take_snapshots(self._snapshots)
        chain.node.restore(self._now.places)
        batcher = self._batcher = StreamBatcher(chain.batch, chain.pack, chain.row_maps, options.slicing)
        size, packed = batcher.stage.sizes[0], chain.pack is not None
        shape = Shape(size, options.accumulation, options.tail, until, packed, self._mixed)
        firsts = {s: chain.node.begin_of(s, t) for s, t in self._now.places.items()}
        whole = json.dumps(firsts) == json.dumps(self._now.places)
        source = steps(chain.node, self._now, shape, lambda: chain.source.read, whole=whole)
        call = LaidOut(batcher, self.ledger is not None)
        if options.workers == 0:
            self._run = InlineMap(source, call, describe=step_words, wake=chain.node.stop)
        else:
            ahead = max(1, -(-options.prefetch // options.accumulation)) + 1
            self._run = OrderedMap(
                source, call, workers=1, ahead=ahead, chunk=1, name="batches", describe=step_words,
                stall_after=options.stall_after, wake=chain.node.stop,
            )  # fmt: skip
        self._turns = self._run.turns()
        self._ended = False
        self._granted = 0

    def __iter__(self) -> Iterator[Batch]:
        """Give itself."""
        return self

    def __next__(self) -> Batch:
        """Hand over the next micro-batch; an error of a sample comes after all rows before it."""
        self.look()
        self._looked = False
        batch, noted = self._ready.popleft()
        if self.ledger is not None:
            self.ledger.add_rows(batch.info.step, batch.info.micro, *noted)
        if not self._ready:
            self._step += 1
            for source, n in self._came.items():
                self._shares[source.name] += n
            self._edge = (self._step, self._now)
            if self._step % FORGET_EVERY == 0:
                self._forget()
        return batch

    def look(self) -> Batch:
        """Give the next micro-batch without moving, also before a `for`."""
        if self._turns is None and not self._ended:
            self.begin()
            self._looked = True
        if not self._ready:
            self._next_step()
        return self._ready[0][0]

    def coming(self, n: int) -> list[Batch]:
        """Give up to n micro-batches behind the last one handed over, as far as they are ready and granted."""
        run, turns = self._run, self._turns
        out = [batch for batch, _ in self._ready]
        for turn in self._taken:
            out += turn.outputs[0][1] if turn.error is None else []
        while len(out) < n and turns is not None and isinstance(run, OrderedMap) and not self._fill:
            if any(t.error is not None or not t.outputs[0][1] for t in self._taken) or not run.poll()[0]:
                break  # an error or an end comes at its place
            if self.options.agree is not None and len(self._taken) >= self._granted:
                break
            self._taken.append(next(turns))
            out += self._taken[-1].outputs[0][1] if self._taken[-1].error is None else []
        return out[:n]

    def _next_step(self) -> None:
        limit = self.options.max_steps
        if self._ended or (limit is not None and self._step >= limit):
            raise StopIteration
        if self.options.agree is not None and self._granted == 0:
            self._agree()
            if self._ready:
                return
        self._granted -= 1
        if self._fill:
            self._came = {}
            self._hold([self._batcher.zero() for _ in range(self.options.accumulation)], [])
            return
        step, batches, noted = self._take()
        self._epoch, self._now, self._came = step.epoch, step.after, step.came
        if not batches:
            self._edge = (self._step, self._now)
            self._end_of_group()
            return
        self._untouched = False
        self._hold(batches, noted)

    def _end_of_group(self) -> None:
        """End the `for`; one that went on after the last step of an epoch is the `for` of the next."""
        self._close_run()
        if self._untouched:
            self._untouched = False
            self._start()
            self._next_step()
            return
        self._ended = True
        raise StopIteration

    def _hold(self, batches: list[Batch], noted: list[Noted]) -> None:
        """Number the micro-batches of a step, and keep them until their turn."""
        for micro, batch in enumerate(batches):
            info = batch.info
            info.epoch, info.step, info.micro = self._epoch, self._step, micro
            info.last, info.step_label_tokens = micro == len(batches) - 1, None
            self._ready.append((batch, noted[micro] if noted else NOTHING_NOTED))

    def _take(self) -> tuple[StepRows, list[Batch], list[Noted]]:
        assert self._turns is not None
        start = time.perf_counter()
        try:
            turn = self._taken.popleft() if self._taken else next(self._turns)
        except StopIteration:
            raise StateError("the stream ended without saying where", fix="this is a fault of thalweg") from None
        finally:
            self._waited += time.perf_counter() - start
        if turn.error is not None:
            self._close_run()
            raise turn.error
        made: tuple[StepRows, list[Batch], list[Noted]] = turn.outputs[0]
        return made

    # ---- equal steps

    def _agree(self) -> None:
        found = ask_all(self.options, lambda: answer_of(self._run))
        if found.over:
            self._end_together(found.failed, found.empty)
        self._fill, self._granted = self.options.topology.dp_rank in found.filler, found.steps

    def _end_together(self, failed: int | None, empty: int | None) -> None:
        """End at the same step on all ranks; where one failed, all raise."""
        rank = self.options.topology.dp_rank
        for other, what in ((failed, "failed"), (empty, "gave no row in a whole pass")):
            if other is not None and other == rank:
                self._take()  # raises this rank's own error
            if other is not None:
                self._close_run()
                raise StalledError(
                    f"rank {other} {what}, so no rank can take another step",
                    where=f"rank {rank}",
                    fix=f"look at the error of rank {other}",
                )
        self._skip_group()
        self._edge = (self._step, self._now)
        self._end_of_group()

    def _skip_group(self) -> None:
        """Go behind this group of epochs: rows that other ranks have no partner for are left out."""
        if answer_of(self._run).status == ENDED:
            self._now = self._take()[0].after
            return
        node, epoch, now = self._plan.node, self._running_epoch() + 1 if self._until is None else self._until, self._now
        left = {s for s, t in now.places.items() if self._epoch_of(t) < epoch}
        places = {s: node.first(s, epoch) if s in left else t for s, t in now.places.items()}
        kept = places.keys() - left
        self._now = self._stand(places, {s: now.counts[s] for s in kept}, {s: now.given[s] for s in kept})

    # ---- place

    def state(self) -> State:
        """Give the place at the last step's edge at or before the batch handed over."""
        step, stand = self._edge
        source = self._plan.source if self._chain is None else self._chain.source
        held = {}
        for sub, token in stand.places.items():
            place = self._plan.node.origin_of(token)
            found = source.snapshot_for(sub, place)
            held[sub] = (token, self._plan.source.snapshot_for(sub, place) if found is None else found)
        more: Any = {"changes": self._remix.text, "begins": self._remix.begins}
        more |= {"given": stand.given} if self._mixed else {}
        return write(self._plan.identity, self._plan.shards, step, held, stand.counts, **more)

    def _forget(self) -> None:
        if self._chain is not None and self._now.places:
            node = self._plan.node
            self._chain.source.forget_before({s: node.origin_of(t) for s, t in self._now.places.items()})

    def restore(self, state: Mapping[str, Any], *, mix: Mapping[str, Any] | None = None) -> None:
        """Go to a state's place; a step that was under way is begun again.

        Args:
            state: what `state` gave, of all sub-streams of this rank.
            mix: weights of the mix behind what was read for the state; None changes nothing.

        Raises:
            StateError: another feed, or a state that lacks a sub-stream of this rank.
            ConfigError: weights that cannot be meant.
        """
        self._remix, self._plan, self._step, saved = going_on(self.feed, self.options, state, mix)
        self._ready.clear()
        mine = {s: saved[s] for s in self._plan.subs}
        rows, given = {s: m.rows for s, m in mine.items()}, {s: m.given for s, m in mine.items()}
        self._go_to(self._stand({s: m.token for s, m in mine.items()}, rows, given))
        self._note("resumed")
        self._snapshots = [m.source for m in mine.values() if m.source is not None]
        self._plan.source.take_snapshots(self._snapshots)
        self._epoch = self._running_epoch()
        self._resumed, self._ended = True, False

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; of the running one: nothing."""
        if epoch != self._running_epoch():
            self._ready.clear()
            self._go_to(self._beginning(epoch))
            self._resumed, self._ended = True, False

    # ---- ledger

    def note_leg(self) -> None:
        """Tell the ledger how this leg runs and where it begins."""
        assert self.ledger is not None
        more = {"step": self._step, "changes": self._remix.text}
        self.ledger.describe({**leg_of(self._plan, self.options), **more})

    def _note(self, event: str) -> None:
        if self.ledger is not None:
            self.ledger.event(event, Place(self._running_epoch()), self._step)

    # ---- end

    def stats(self) -> dict[str, Any]:
        """Count by stage, and the seconds that the consumer waited."""
        out: dict[str, Any] = {"steps": self._step, "epoch": self._epoch, "waited_s": self._waited}
        chain = self._chain or self._plan
        out["read"] = chain.source.read
        if self._chain is not None:
            packed = sum(getattr(node, "seconds", 0.0) for _, node in chain.named)
            out["seconds"] = {"plan": packed, "collate": self._batcher.seconds}
        if self._shares:
            out["proportions"] = {name: n / self._shares.total() for name, n in sorted(self._shares.items())}
        for name, node in chain.named:
            if hasattr(node, "stats"):
                out[name] = node.stats()
            elif hasattr(node, "tally"):
                out[name] = node.tally.to_dict()
        return out

    def _close_run(self) -> None:
        self._looked = False
        run, self._run, self._turns = self._run, None, None
        self._taken.clear()
        if run is not None:
            run.close()
        if self._chain is not None:
            self._chain.node.close()
        self._ready.clear()

    def close(self) -> None:
        """End threads and processes. Twice is fine."""
        self._close_run()


def batches(feed: Feed, options: RunOptions, ledger: Ledger | None = None) -> StreamNode:
    """Run a stream; this is what the loader calls."""
    return StreamNode(feed, options, ledger)
