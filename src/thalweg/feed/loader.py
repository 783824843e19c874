"""The loader: runs a feed for one rank, batch by batch, with a place that can be saved.

Decides what `for`, `len`, `step`, states and the end mean to the user (SEMANTICS 4). Which engine gives the batches
depends on the feed's kind; how a batch becomes tensors is the business of a callable that is handed in.
"""

import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from thalweg.core.batch import Batch
from thalweg.core.errors import ConfigError, StateError
from thalweg.core.state import digest
from thalweg.core.topology import Topology
from thalweg.feed import stages as st
from thalweg.feed.asked import accumulation_of, check, check_run, endless_rule, whole
from thalweg.feed.changed import going_on
from thalweg.feed.compile import compile_feed
from thalweg.feed.feed import Feed
from thalweg.feed.identity import parts_in
from thalweg.feed.ledger import Ledger
from thalweg.feed.losses import lines
from thalweg.feed.node import BatchNode, RunOptions
from thalweg.feed.once import in_this_thread
from thalweg.feed.pace import Pace
from thalweg.feed.planned import PlannedNode
from thalweg.feed.ranked import is_ranked, ranked
from thalweg.feed.ranksagree import Statement, refuse_difference, statement_of
from thalweg.feed.slicing import slicing_of

Finish = Callable[[Batch], Batch]
Agree = Callable[[str], list[str]]  # this rank's text -> the texts of all ranks, in their order


@runtime_checkable
class FinishAhead(Protocol):
    """A `Finish` that begins with batches before they are handed over."""

    lead: int

    def __call__(self, batch: Batch) -> Batch:
        """Give the batch to hand over."""
        ...

    def ahead(self, batches: Sequence[Batch]) -> None:
        """Begin with the batches to come; others that were begun are forgotten."""
        ...


class FeedLoader:
    """Batches of one rank, in one order that any number of ranks continues.

    Args:
        feed: what is read.
        topology: place of this process; "auto": torch.distributed, else RANK and WORLD_SIZE: each process a
            data-parallel rank.
        epochs: of one `for`: 1 makes each `for` an epoch, 3 makes one `for` three, None is endless.
        max_steps: optimiser steps of the run at which it ends.
        gradient_accumulation_steps: micro-batches of a step.
        global_batch_size: rows of a step over all ranks; decides the accumulation.
        tail: "drop" | "carry" | "pad" | "repeat"; None is "drop" for epochs=1, else "carry".
        seed: of every random stage without its own.
        workers: where a stage does not say; 0 runs all inline.
        max_bytes: in flight on this rank.
        prefetch: batches made ahead.
        return_tensors: "auto" (torch where it is installed) | "pt" | "np".
        device: where tensors go, copied two batches ahead where it has streams; None leaves them on the CPU.
        require: "planned" refuses a stream.
        ledger: folder of the ledger; None keeps none.
        until: streams on several ranks: "first" ends all with the first to end, "all" with the last (filler rows).
        stall_after: streams: seconds without progress before an error that says who waits for what.
        cp_layout: how rows are cut where there are context-parallel ranks: "zigzag" (each document) | "zigzag_row" |
            "contiguous", labels shifted before the cut; None gives all of them the whole rows.
        read: False on a pipeline stage that needs no tokens: empty batches; its steps, its states and the place in
            `info` are those of its peers.
        agree: gives the texts of all ranks; None: that of the place, where there are several ranks.

    Raises:
        ConfigError: a combination that cannot be right; a stream where a planned feed is required.
        MissingExtraError: tensors are asked for and torch is not installed.
    """

    def __init__(
        self,
        feed: Feed,
        *,
        topology: Topology | str = "auto",
        epochs: int | None = 1,
        max_steps: int | None = None,
        gradient_accumulation_steps: int = 1,
        global_batch_size: int | None = None,
        tail: str | None = None,
        seed: int = 0,
        workers: int | str = "auto",
        max_bytes: int | str = "auto",
        prefetch: int = 2,
        return_tensors: str = "auto",
        device: Any = None,
        require: str | None = None,
        ledger: str | os.PathLike[str] | None = None,
        until: str = "first",
        stall_after: float = 300.0,
        cp_layout: str | None = "zigzag",
        read: bool = True,
        agree: Agree | None = None,
    ) -> None:
        check(feed, epochs, max_steps, tail, require if read else "planned")
        check_run(seed, workers, max_bytes, prefetch)
        place, asked = self._find_place(topology)
        accumulation = accumulation_of(feed, place, gradient_accumulation_steps, global_batch_size)
        self.feed, self.topology, self._finish = feed, place, self._find_finish(return_tensors, device)
        self._begins = self._finish if isinstance(self._finish, FinishAhead) else None  # asked once: a slow question
        self._agree = agree = agree or asked
        self.options = RunOptions(
            place, epochs, max_steps, accumulation, tail or ("drop" if epochs == 1 else "carry"), seed, workers,
            max_bytes, prefetch, until=until, stall_after=stall_after, slicing=slicing_of(feed, place, cp_layout),
            read=read,
        )  # fmt: skip
        self.settings: dict[str, Any] | None = None  # the resolved whole of the file that made this loader
        self._ledger = None if ledger is None else Ledger(str(ledger), place)
        self.node: BatchNode = self._engine()
        alone = topology != "auto" or agree is not None or place.dp_size == 1
        self._statement = None if alone else statement_of(place.dp_rank, None if ledger is None else Path(ledger))
        self._agreed, self._closed, self._warm = agree is None and self._statement is None, False, False
        self.pace = Pace()
        self._finalizer = weakref.finalize(self, _end, self.node, self._ledger, self._statement)

    def _find_place(self, topology: Topology | str) -> tuple[Topology, Agree | None]:
        """Give the place, and what asks all ranks; where torch may be asked `bind.loader` does it."""
        if isinstance(topology, Topology):
            return topology, None
        if topology != "auto":
            raise ConfigError(
                f"topology={topology!r} is unknown", where="Loader", fix='"auto", or tw.Topology(rank=..., world=...)'
            )
        return Topology.from_env(os.environ), None

    def _find_finish(self, return_tensors: str, device: Any) -> Finish | None:
        """Give what numpy batches become; here they stay what they are."""
        if return_tensors == "pt" or device is not None:
            raise ConfigError("this loader gives numpy arrays", where="FeedLoader", fix="tw.Loader")
        return None

    def _engine(self) -> BatchNode:
        if self.feed.kind == "planned":
            if is_ranked(self.feed) and self.options.topology.dp_size > 1:
                return ranked(self.feed, self.options, ledger=self._ledger)
            with in_this_thread(self.options.workers == 0):
                compiled = compile_feed(self.feed, self.options.seed)
            if compiled.leaves and self.options.epochs is not None and endless_rule(self.feed):
                raise ConfigError(
                    'on_exhausted="repeat" never ends an epoch', where="Loader", fix="epochs=None, or max_steps="
                )
            return PlannedNode(compiled, self.options, self._ledger)
        streams, agree = import_module("thalweg.feed.stream"), import_module("thalweg.feed.streamagree")
        ask = None if self._agree is None else agree.asking(self._agree, self.topology)
        node: BatchNode = streams.batches(self.feed, replace(self.options, agree=ask), self._ledger)
        return node

    # ---- iterate

    def __iter__(self) -> Iterator[Batch]:
        """Start a `for`: a broken-off epoch starts anew, except right after `load_state_dict`."""
        self._must_be_open()
        self._agreement()
        self.node.begin()
        self._warm = False
        self.pace.begin()
        return self._walk()

    def _walk(self) -> Iterator[Batch]:
        while True:
            self.pace.asked()
            try:
                batch = self._next()
            except StopIteration:
                if self._ledger is not None:
                    self._ledger.flush()
                return
            self.pace.gave(batch)
            yield batch

    def _next(self) -> Batch:
        batch = next(self.node)
        if self._finish is None:
            return batch
        done = self.pace.timed(self._finish, batch)
        if self._warm and self._begins is not None:  # the first batch waits for none behind it
            self._begins.ahead(self.node.coming(self._begins.lead))
        self._warm = True
        return done

    def _agreement(self) -> None:
        """Stop where ranks differ in feed, seed or place, before the first batch."""
        if self._agreed:
            return
        rank, mine = self.topology.dp_rank, " ".join(f"{k}={v}" for k, v in self.describe().items())
        if self._agree is None:
            texts = {rank: mine} if self._statement is None else self._statement.say(mine)
        else:
            if self._ledger is not None:  # one number for the files of all ranks
                self.node.note_leg()
                self._ledger.agree(self._agree)
            texts = dict(enumerate(self._agree(mine)))
        told = {r: dict(item.split("=", 1) for item in text.split(" ")) for r, text in texts.items()}
        refuse_difference(told, rank)
        self._agreed = True

    @property
    def agreement(self) -> str:
        """Say by what the ranks were held to agree before the first batch."""
        if self._agree is not None:
            return "process group"
        if self._statement is not None:
            return f"files in {self._statement.folder}: of ranks that differ, the one that comes later stops"
        if self.topology.dp_size == 1:
            return "one rank"
        return "unchecked: no process group; with Loader(ledger=...), or THALWEG_RUN=<name of this start>, files do it"

    def describe(self) -> dict[str, str]:
        """Give what all ranks must agree on, as short words."""
        planned = self.feed.kind == "planned"
        state = {k: v for k, v in self.node.state().items() if planned or k in {"kind", "fingerprint"}}
        parts = parts_in(state.pop("parts", ""))
        state.pop("changes", None)  # a digest of them is among the parts
        return {
            "seed": str(self.options.seed),
            **{f"feed.{k}": v for k, v in parts.items()},
            **{k: str(v) for k, v in state.items()},
            "batch": digest(str(next((s for s in self.feed.stages if isinstance(s, st.BATCHING)), None))),
            "accumulation": str(self.options.accumulation),
            "world": str(self.topology.dp_size),
        }

    def peek(self) -> Batch:
        """Give the next batch without moving.

        Raises:
            StopIteration: there is none.
        """
        self._must_be_open()
        batch: Batch = self.node.look()
        return batch if self._finish is None else self._finish(batch)

    def __len__(self) -> int:
        """Count the micro-batches of a full `for` on this rank; equal on all ranks, a multiple of the accumulation.

        Raises:
            TypeError: endless epochs, or a stream.
        """
        if self.feed.kind != "planned":
            raise TypeError(f"a stream has no length: {self.feed.why}")
        if self.options.epochs is None:
            raise TypeError("epochs=None has no end: ask loader.steps_per_epoch, or give max_steps and count those")
        count = self._planned("len").count()
        limit = self.options.max_steps
        return count if limit is None else min(count, limit * self.options.accumulation)

    @property
    def steps_per_epoch(self) -> int:
        """Count the optimiser steps that begin in the running epoch."""
        return self._planned("steps_per_epoch").steps_per_epoch()

    def _planned(self, what: str) -> PlannedNode:
        if not isinstance(self.node, PlannedNode):
            raise TypeError(f"{what}: a stream has none. {self.feed.why}")
        return self.node

    # ---- place

    @property
    def step(self) -> int:
        """Count the steps handed over in the run."""
        return int(self.node.step)

    @property
    def epoch(self) -> int:
        """Epoch of the last batch handed over."""
        return int(self.node.epoch)

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; of the running one: nothing."""
        if not whole(epoch, 0):
            raise ConfigError(f"set_epoch({epoch!r}): epochs count from 0", where="Loader")
        self.node.set_epoch(int(epoch))

    def state_dict(self) -> dict[str, str]:
        """Give the place as a flat dict of str to str, under 1 kB: the last step's edge at or before the last batch.

        On a planned feed it is the same on all ranks. May be called from another thread.
        """
        if self._ledger is not None:
            self._ledger.flush()
        return dict(self.node.state())

    def load_state_dict(
        self,
        state: Mapping[str, Any],
        strict: bool = True,
        *,
        mix: Mapping[str, float] | None = None,
        new_data: Sequence[str] = (),
    ) -> None:
        """Go on from a state, at this layout, whatever the layout was that saved it.

        Args:
            state: what `state_dict` gave.
            strict: warn where the code of a map differs.
            mix: weight of every source of the mix from here on (packed: from the end of the running block; streams:
                behind the samples that windows and packers hold); written into the next state and the ledger. The
                feed keeps the weights that it began with.
            new_data: sources of the mix that the state does not know; their weight was 0.

        Raises:
            ConfigError: weights that cannot be meant.
            StateError: the state of another feed; the first difference is named.
        """
        if not isinstance(state, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise StateError(f"a state is a dict, not {type(state).__name__}", fix="give what state_dict() returned")
        if not isinstance(self.node, PlannedNode):
            if new_data:
                raise ConfigError(
                    "new sources join planned feeds only: a stream's place has one in each of its sources",
                    where="load_state_dict(new_data=...)",
                    fix="have it in the mix from the start with weight 0 and give it one by mix=, or start anew",
                )
            node: Any = self.node
            node.restore(dict(state), **({} if mix is None else {"mix": mix}))
        elif mix is None and not new_data and (state.get("changes") or "") == self.node.state()["changes"]:
            self.node.restore(state, strict=strict)
        else:
            with in_this_thread(self.options.workers == 0):
                node = going_on(self.feed, self.options, self._ledger, state, mix=mix, new_data=new_data, strict=strict)
            self._finalizer.detach()
            self.node.close()
            self.node, self._finalizer = node, weakref.finalize(self, _end, node, self._ledger, self._statement)
        self._agreed = self._agree is None and self._statement is None

    @property
    def lineage(self) -> dict[str, Any]:
        """Say what the batches come from: {"sources": what made the data, "settings": the resolved file, or None}."""
        sources = {s.origin: dict(s.source.lineage) for s in self.feed.stages if isinstance(s, st.From)}
        for head in self.feed.stages[:1]:
            for name, part in getattr(head, "feeds", ()):
                first = part.stages[0]
                sources |= {name: dict(first.source.lineage)} if isinstance(first, st.From) else {}
        return {"sources": sources, "settings": self.settings}

    # ---- end

    def stats(self) -> dict[str, Any]:
        """Give counters and seconds by stage, and of the loop ("loop": waiting share, tokens a second); always on."""
        return {**self.node.stats(), "loop": self.pace.read(), "agreement": self.agreement}

    def __str__(self) -> str:
        """Say the feed, this process's place, how it runs, and so far the shares of sources and what rows leave out."""
        place, run = self.topology, self.options
        epochs = "endless" if run.epochs is None else f"{run.epochs} epoch{'s' * (run.epochs > 1)}"
        at = f"Loader, rank {place.dp_rank} of {place.dp_size}: {epochs}, {run.accumulation} micro-batches a step"
        out = [f"{at}, tail {run.tail}, seed {run.seed}", *("  " + line for line in str(self.feed).splitlines())]
        found = self.node.stats()
        shares = ", ".join(f"{name} {share:.1%}" for name, share in found.get("proportions", {}).items())
        out += [f"  shares so far: {shares}"] * bool(shares)
        out += lines(found.get("lost", {}))
        for stage, counts in found.items():
            if isinstance(counts, dict) and "lost" in counts:
                out += lines(counts["lost"], f"{stage}: ")
        return "\n".join(out)

    __repr__ = __str__

    def close(self) -> None:
        """End what runs and write the ledger. Twice is fine."""
        self._closed = True
        self._finalizer()

    def _must_be_open(self) -> None:
        if self._closed:
            raise ConfigError("the loader is closed", fix="make a new one and load the state")


def _end(node: BatchNode, ledger: Ledger | None, statement: Statement | None) -> None:
    """End what runs and write what the ledger holds; also when the loader is forgotten, or the process ends."""
    node.close()
    if statement is not None:
        statement.close()
    if ledger is not None:
        ledger.close()
