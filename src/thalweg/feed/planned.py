"""Walks a plan: the next rows of this rank, read ahead and handed over batch by batch.

Decides how far to read ahead and what a state holds: the edge of the last step at or before the batch handed over,
never work made ahead. Which rows a step takes is `plan.steps`; what a batch looks like is `feed.batch`.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from itertools import pairwise
from time import perf_counter
from typing import Any

from thalweg.core.allocator import keep_freed_memory
from thalweg.core.batch import Batch
from thalweg.core.errors import ConfigError, StateError
from thalweg.core.state import State
from thalweg.feed import remix
from thalweg.feed import stages as st
from thalweg.feed.announce import announced
from thalweg.feed.batch import Collator, LazyInfo, row_digests
from thalweg.feed.behind import made_behind
from thalweg.feed.compile import Compiled
from thalweg.feed.even import fixed
from thalweg.feed.gather import Documents, Reader, request_of, select
from thalweg.feed.grouping import Grouping
from thalweg.feed.handed import Handed
from thalweg.feed.identity import compare, numbers_of, parts_of, refuse_kind, whole, written
from thalweg.feed.ledger import Ledger
from thalweg.feed.lookahead import Lookahead
from thalweg.feed.mapread import read_ahead, words_of
from thalweg.feed.meters import Meters
from thalweg.feed.micros import Micro, Micros
from thalweg.feed.node import RunOptions
from thalweg.feed.together import can, lay_out_together
from thalweg.plan.steps import Place
from thalweg.work.cpus import usable_cpus

Made = tuple[dict[str, Any], LazyInfo]  # values of a batch, and what is told beside them
KIND, VERSION = "planned", "1"


class PlannedNode:
    """Micro-batches of one rank of a planned feed.

    Args:
        compiled: the feed.
        options: how it is run.
        ledger: told of every micro-batch handed over, and of restarts; None keeps none.
    """

    def __init__(self, compiled: Compiled, options: RunOptions, ledger: Ledger | None = None) -> None:
        keep_freed_memory()
        self.compiled, self.options, self.ledger = compiled, options, ledger
        stage = compiled.batch if compiled.batch is not None else st.Batch(1)
        raw = not isinstance(stage.collate, str) or stage.collate == "raw"
        by_rows = bool(getattr(stage.collate, "packed", False))  # a function that lays out rows of samples itself
        self.reader = Reader(compiled.leaves, options.seed, as_samples=raw and (compiled.pack is None or by_rows))
        lineage = compiled.leaves[0].source.lineage if compiled.leaves else {}
        self.micros, maps = Micros(compiled, options), compiled.row_maps
        self.collator = Collator(stage, compiled.pack, self.reader, lineage, maps, slicing=options.slicing)
        self.reader.segments, self.reader.dtype = self.collator.segments, self.collator.dtype
        self.meters = Meters()
        self._alone = not self.micros.labels.known and options.topology.dp_size == 1  # a step's loss is counted here
        self._grouping: Grouping  # of the running `for`
        self.handed = Handed(compiled)
        self.parts = parts_of(compiled)
        changes = remix.packed(compiled.changes)
        self._identity = {"fingerprint": whole(self.parts), "parts": written(self.parts), "changes": changes}
        self._place, self._step, self._epoch = Place(), 0, 0
        self._started = self._resumed = False
        self._ahead: Lookahead[tuple[Batch, Micro]] | None = None

    # ---- where it is

    @property
    def step(self) -> int:
        """Count the steps handed over in the run."""
        return self._step

    @property
    def epoch(self) -> int:
        """Epoch of the last batch handed over."""
        return self._epoch

    @property
    def place(self) -> Place:
        """Where the run stands: the edge of a step."""
        return self._place

    def state(self) -> State:
        """Give the place as a flat dict of str to str, the same on all ranks."""
        p = self._place
        numbers = {
            "epoch": p.epoch,
            "block": p.block,
            "row": p.row,
            "row_in_epoch": p.passed,
            "rows_before": p.base + p.passed,
            "step": self._step,
        }
        numbers |= self.micros.fixed
        out = {"kind": KIND, "version": VERSION, "tail": self.options.tail, **self._identity}
        out.update((k, str(v)) for k, v in numbers.items())
        return out

    def restore(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Go to a state's place.

        Raises:
            StateError: another kind, version or feed; the first difference is named.
        """
        refuse_kind(state, KIND, int(VERSION))
        compare(state, self.parts, strict=strict)
        numbers_of(state, ("epoch", "block", "row", "row_in_epoch", "rows_before", "step"))
        if (
            self.micros.even is not None
            and state["tail"] != self.options.tail
            and "carry" in {state["tail"], self.options.tail}
        ):
            raise StateError(
                f"the state was saved with tail={state['tail']!r}, and with balance the order depends on it",
                fix=f"Loader(tail={state['tail']!r})",
            )
        if self.micros.even is not None:
            numbers_of(state, ("run", "window"))
            self.micros.arrange(*fixed(state, self.compiled.balance))
        self.micros.refuse_outside(int(state["epoch"]), int(state["block"]), int(state["row"]))
        index = int(state["row_in_epoch"])
        base = int(state["rows_before"]) - index if self.options.tail == "carry" else 0
        base = base or self.micros.base(int(state["epoch"]))  # a state of another tail has none
        self._place = Place(int(state["epoch"]), int(state["block"]), int(state["row"]), index, base)
        self._step, self._epoch = int(state["step"]), self._place.epoch
        self._started, self._resumed = False, True
        self._drop()
        if self.ledger is not None:
            self.ledger.event("resumed", self._place, self._step)

    def go_on(self, other: "PlannedNode") -> None:
        """Stand where another node of the same order stands: it goes on here, under new weights."""
        if other.micros.fixed:
            self.micros.arrange(**other.micros.fixed)
        self._place, self._step, self._epoch = other.place, other.step, other.epoch
        self._started, self._resumed = False, True
        if self.ledger is not None:
            self.ledger.event("resumed", self._place, self._step)

    def seek(self, rows: int) -> None:
        """Go to the place behind so many rows of the run, over all ranks; only where rows carry over to the next epoch.

        Raises:
            ConfigError: another tail.
            InputError: an epoch without a row.
        """
        if self.options.tail != "carry":
            raise ConfigError(f"tail={self.options.tail!r} leaves rows out or repeats some", fix='tail="carry"')
        rowsof = import_module("thalweg.feed.rowsof")  # not needed for a first batch
        self._place, self._resumed = rowsof.place_of(self.micros.order, Place(), rows), True
        self._step, self._epoch, self._started = self.micros.ramp.steps(0, rows, whole=True), self._place.epoch, False
        self._drop()
        if self.ledger is not None:
            self.ledger.event("resumed", self._place, self._step)

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; of the running one: nothing."""
        if epoch == self._place.epoch:
            return
        self._place, self._resumed = self._start(epoch), True
        self._drop()

    def _start(self, epoch: int) -> Place:
        if epoch == self._place.epoch:
            return remix.start_of(Place(epoch, base=self._place.base), self.compiled.order, self.compiled.changes)
        return Place(epoch, base=self.micros.base(epoch))

    def begin(self) -> None:
        """Start a `for`: go on right after a restore, else restart an epoch that was broken off."""
        self._drop()
        if self.ledger is not None:
            self.note_leg()
            self.ledger.start()
        if self._started and not self._resumed:
            self._place = self._start(self._place.epoch)
            if self.ledger is not None:
                self.ledger.event("restarted", self._place, self._step)
        self._started, self._resumed = True, False
        self._ahead = Lookahead(self._run())

    def note_leg(self) -> None:
        """Tell the ledger how this leg runs and where it begins."""
        assert self.ledger is not None
        place = self._place
        at = {"step": self._step, "epoch": place.epoch, "index": place.passed}
        self.ledger.describe({**self.micros.layout, **at, **self._identity})

    def _drop(self) -> None:
        if self._ahead is not None:
            self._ahead.close()  # ends the workers
        self.meters.levels.update(ready=0, in_flight=0)
        self._ahead = None

    # ---- hand over

    def __iter__(self) -> "PlannedNode":
        """Start a `for`."""
        self.begin()
        return self

    def __next__(self) -> Batch:
        """Hand over the next micro-batch and move past it."""
        if self._ahead is None:
            raise StopIteration
        try:
            batch, micro = self._ahead.pop()
        except StopIteration:
            self._started, self._ahead = False, None  # a finished `for`: the next one is the next
            raise
        self._epoch = micro.step.epoch
        if self.ledger is not None and micro.digests is not None:
            self.ledger.add(micro.number, micro.micro, micro.spans, micro.digests)
        if micro.last:
            self._place, self._step = micro.step.after, micro.number + 1
            self.handed.add(micro, self.micros.order)
        return batch

    def look(self) -> Batch:
        """Give the next micro-batch without moving, also before a `for`."""
        if self._ahead is None:
            self._ahead = Lookahead(self._run())
        return self.peek()

    def coming(self, n: int) -> list[Batch]:
        """Give up to n micro-batches of the running `for` behind the last one handed over, without moving."""
        return [] if self._ahead is None else [batch for batch, _ in self._ahead.coming(n)]

    def peek(self) -> Batch:
        """Give the next micro-batch of the running `for` without moving.

        Raises:
            StopIteration: the `for` is over.
        """
        if self._ahead is None:
            raise StopIteration
        try:
            return self._ahead.peek()[0]
        except StopIteration:
            self._started, self._ahead = False, None  # a finished `for`: the next one is the next
            raise

    def _run(self) -> Iterator[tuple[Batch, Micro]]:
        """Give all micro-batches of a `for`, read some at a time."""
        if not self.options.read:
            yield from self.micros.unread(self._place, self._step)
            return
        self._grouping = Grouping(whole_steps=self._alone, near=self.reader.near)
        groups = self._grouping.of(self.micros.of(self._place, self._step))
        planned = ((group, self._selected(group)) for group in groups)
        chosen = announced(planned, [leaf.source for leaf in self.compiled.leaves])
        stage = words_of(self.compiled.leaves)
        if stage is None or self.options.workers == 0:
            yield from self._inline(chosen)
            return
        asked = ((pair, request_of(pair[1])) for pair in chosen)
        results = read_ahead(
            asked,
            self.reader.call,
            stage,
            workers=self.options.workers,
            ahead=self.options.prefetch,
            stall_after=self.options.stall_after,
        )
        for (group, documents), result in self.meters.waiting("wait", results):
            self.reader.fill(documents, result)
            self._digest(group, documents)
            yield from self._made(group, documents)

    def _inline(self, chosen: Iterator[tuple[list[Micro], Documents]]) -> Iterator[tuple[Batch, Micro]]:
        """Read here, and lay out batch by batch; where a CPU is free, a thread reads what comes behind."""

        def read(pair: tuple[list[Micro], Documents]) -> Documents:
            group, documents = pair
            start = perf_counter()
            self.reader.read(documents)
            self._digest(group, documents)
            documents.seconds += perf_counter() - start
            self.meters.seconds["samples" if self.reader.by_samples else "read"] += documents.seconds
            return documents

        def found() -> Iterator[tuple[list[Micro], Documents]]:
            for group, documents in chosen:
                start = perf_counter()
                self.reader.find(documents)
                if documents.copy is not None:  # a thread is left with nothing but the copy
                    self._digest(group, documents)
                documents.seconds = perf_counter() - start
                yield group, documents

        ours = self.reader.ours and not self.reader.by_samples
        if ours and self.options.workers != 0 and self.options.prefetch and usable_cpus() > 1:
            pairs = self.meters.waiting("wait", made_behind(found(), read, name="thalweg-read"))
        else:
            pairs = ((pair, read(pair)) for pair in found())
        for (group, _), documents in pairs:
            yield from self._made(group, documents)

    def _selected(self, group: list[Micro]) -> Documents:
        self.meters.levels["in_flight"] += 1
        with self.meters.time("plan"):
            return select(self.micros.blocks(group))

    def _made(self, group: list[Micro], documents: Documents) -> Iterator[tuple[Batch, Micro]]:
        """Make the batches of a group whose documents are read."""
        self._count(group, documents)
        meters, levels = self.meters, self.meters.levels
        levels["in_flight"], levels["ready"] = levels["in_flight"] - 1, len(group)
        bounds = [0]
        for micro in group:
            bounds.append(bounds[-1] + micro.rows)
        with meters.time("collate"):
            together = self._together(group, documents, bounds)
            totals = self.micros.label_tokens(group)
        if together is not None:
            meters.made([values for values, _ in together])
        made = iter(together) if together is not None else self._each(group, documents, bounds)
        if self._alone:
            made = self._with_totals(made)
        for (values, info), micro, total in zip(made, group, totals, strict=True):
            self.micros.inform(info, micro, total)
            levels["ready"] -= 1
            yield Batch(values, info=info), micro

    @staticmethod
    def _with_totals(made: Iterator[Made]) -> Iterator[Made]:
        """Count the tokens in the loss of a whole step, which are known when all of it is laid out."""
        step = list(made)
        total = sum(info.whole_label_tokens for _, info in step)
        for values, info in step:
            info.step_label_tokens = total
            yield values, info

    def _together(self, group: list[Micro], documents: Documents, bounds: list[int]) -> list[Made] | None:
        """Lay all batches out at once, where that is the same as one by one; else None."""
        widths = {m.width for m in group}
        if len(group) < 2 or len(widths) > 1 or any(m.filler or m.shape for m in group):
            return None
        if not can(self.collator, documents, bounds):
            return None
        self.collator.refuse_labels(documents)
        laid = lay_out_together(self.collator, documents, bounds, widths.pop())
        dress = self.collator.dressed
        return [dress(rows, documents, a, b) for rows, (a, b) in zip(laid, pairwise(bounds), strict=True)]

    def _each(self, group: list[Micro], documents: Documents, bounds: list[int]) -> Iterator[Made]:
        """Lay batches out one by one, each when it is asked for."""
        for (a, b), m in zip(pairwise(bounds), group, strict=True):
            with self.meters.time("collate"):
                values, info = self.collator.collate(documents.part(a, b), m.filler, m.shape, m.width)
            self.meters.made([values])
            yield values, info

    def _digest(self, group: list[Micro], documents: Documents) -> None:
        """Digest the ids of each row for the ledger, as they are read with the data."""
        if self.ledger is None or group[0].digests is not None:
            return
        rows = row_digests(self.reader.id_hashes(documents), documents.offsets).tobytes()
        at = 0
        for micro in group:
            end = at + micro.rows * 8
            micro.digests, at = rows[at:end], end

    def _count(self, group: list[Micro], documents: Documents) -> None:
        """Count what was read."""
        self.meters.add("rows", documents.num_rows)
        self.meters.add("tokens", documents.num_tokens)
        self.meters.add("read_bytes", 0 if documents.tokens is None else documents.tokens.values.nbytes)
        if not self.reader.by_samples:
            self._grouping.took(len(group), documents.num_tokens, documents.seconds)

    def count(self) -> int:
        """Count the micro-batches of a full `for` from the present layout: of the group of epochs of the place."""
        epochs = self.options.epochs
        assert epochs is not None
        first = self._place.epoch // epochs * epochs
        return self.micros.walk.count(Place(first)) * self.options.accumulation

    def steps_per_epoch(self) -> int:
        """Count the steps that begin in the running epoch."""
        return self.micros.walk.count_in(self._place.epoch)

    def stats(self) -> dict[str, Any]:
        """Give counters and seconds by stage."""
        more = self.micros.stats(self._place) | self.handed.stats(self.micros.order)
        found = self.meters.read()
        if self.reader.by_samples:
            found["seconds"].pop("samples", None)
            found["seconds"].update(zip(("read", "map"), self.reader.seconds, strict=True))
        return {**found, **more, "epoch": self._epoch, "step": self._step}

    def close(self) -> None:
        """Forget what was read ahead."""
        self._drop()
