"""The oracle of elastic order: a job in legs on changing numbers of ranks reads what one rank would have read.

Decides what must hold between the ranks of a step and between the legs of a run. Works on loaders (planned feeds),
all ranks in this process. Knows no plan: the order of a single rank is the reference.
"""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

from thalweg.core.topology import Topology

Row: TypeAlias = tuple[str, ...]
MakeLoader: TypeAlias = Callable[[Topology, int], Any]


@dataclass(frozen=True, slots=True)
class Leg:
    """A part of a run on one layout.

    Args:
        steps: optimiser steps until the job is stopped.
        world: data-parallel ranks.
        accumulation: micro-batches of a step.
    """

    steps: int
    world: int = 1
    accumulation: int = 1


def assert_continues_anywhere(make_loader: MakeLoader, legs: Sequence[Leg]) -> list[Row]:
    """Prove that legs on any layouts read the uninterrupted order, and say where they do not.

    The reference is one rank without accumulation. Each leg starts fresh loaders, one a rank, from the state of the
    leg before, kept as JSON. Each step of a leg must hold exactly the next rows of the reference, over its ranks and
    micro-batches; every rank takes the same number of micro-batches, agrees on epoch and step and has `info.last` on
    the step's last micro-batch alone; `info.step_label_tokens` is the sum over ranks and micro-batches, or None on
    all; and the ranks' states are equal.

    Args:
        make_loader: (topology, accumulation) -> a fresh loader over the same feed, its micro-batch the same each time.
            Give it enough epochs for all legs, or the legs will be longer than the order.
        legs: the layouts, one after the other.

    Returns:
        The rows of the legs in order of their steps, each row as the ids of its samples.

    Raises:
        AssertionError: the leg, step and rows that differ.
    """
    reference = _Reference(make_loader(Topology(), 1), _start(make_loader, legs))
    state: str | None = None
    read: list[Row] = []
    for number, leg in enumerate(legs):
        ranks = [_Rank(make_loader, leg, rank, state) for rank in range(leg.world)]
        for step in range(leg.steps):
            where = f"leg {number} ({leg.world} ranks, accumulation {leg.accumulation}), step {step}"
            micros = [rank.step() for rank in ranks]
            _agree(micros, leg, where)
            rows = [row for batches in micros for batch in batches for row in _rows(batch)]
            expected = reference.next(len(rows))
            lost, added = list(Counter(expected) - Counter(rows)), list(Counter(rows) - Counter(expected))
            assert lost == added == [], f"{where}: missing {lost[:3]}, not expected {added[:3]}"
            _totals(micros, where)
            read += rows
        states = [json.dumps(rank.loader.state_dict(), sort_keys=True) for rank in ranks]
        assert len(set(states)) <= 1, f"leg {number}: the ranks' states differ: {states[0]} against {states[-1]}"
        state = states[0] if states else state
        for rank in ranks:
            rank.loader.close()
    reference.close()
    return read


def _start(make_loader: MakeLoader, legs: Sequence[Leg]) -> Any:
    """Give the state before the first leg: what the first start fixes (rows that stay together) holds for all."""
    if not legs:
        return None
    loader = make_loader(Topology(dp_size=legs[0].world), legs[0].accumulation)
    state = loader.state_dict()
    loader.close()
    return json.loads(json.dumps(state))


class _Reference:
    """The order of a single rank, read on demand."""

    def __init__(self, loader: Any, start: Any) -> None:
        own = loader.state_dict()
        fixed = {k: start[k] for k in ("run", "window") if start is not None and start.get(k) != own.get(k)}
        if fixed:
            loader.load_state_dict({**own, **fixed})
        self.loader, self.batches, self.waiting = loader, iter(loader), list[Row]()

    def next(self, n: int) -> list[Row]:
        while len(self.waiting) < n:
            batch = next(self.batches, None)
            assert batch is not None, f"the order of one rank ended with {len(self.waiting)} rows left, {n} were read"
            self.waiting += _rows(batch)
        taken, self.waiting = self.waiting[:n], self.waiting[n:]
        return taken

    def close(self) -> None:
        self.loader.close()


class _Rank:
    """One rank of a leg."""

    def __init__(self, make_loader: MakeLoader, leg: Leg, rank: int, state: str | None) -> None:
        self.loader = make_loader(Topology(dp_rank=rank, dp_size=leg.world), leg.accumulation)
        if state is not None:
            self.loader.load_state_dict(json.loads(state))
        self.batches, self.leg = iter(self.loader), leg

    def step(self) -> list[Any]:
        """Give the micro-batches of one step."""
        return list(islice(self.batches, self.leg.accumulation))


def _agree(ranks: list[list[Any]], leg: Leg, where: str) -> None:
    """Check that the ranks take the same step, with its end marked."""
    counts = [len(batches) for batches in ranks]
    assert set(counts) == {leg.accumulation}, f"{where}: micro-batches of each rank: {counts}"
    places = {(batch.info.epoch, batch.info.step) for batches in ranks for batch in batches}
    assert len(places) == 1, f"{where}: ranks differ in epoch and step: {sorted(places)}"
    for batches in ranks:
        last = [batch.info.last for batch in batches]
        assert last == [False] * (leg.accumulation - 1) + [True], f"{where}: info.last is {last}"


def _totals(ranks: list[list[Any]], where: str) -> None:
    """Check that each rank was told the label tokens of the whole step, or that no rank can know them (None)."""
    infos = [batch.info for batches in ranks for batch in batches]
    told = {info.step_label_tokens for info in infos}
    total = sum(info.num_label_tokens for info in infos)
    assert told in ({total}, {None}), f"{where}: info.step_label_tokens is {told}, the sum over ranks is {total}"


def _rows(batch: Any) -> list[Row]:
    """Rows that count: filler has weight 0."""
    weights = batch.info.weight.tolist()
    return [tuple(ids) for ids, weight in zip(batch.info.ids, weights, strict=True) if weight > 0]
