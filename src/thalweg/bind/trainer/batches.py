"""What a Trainer iterates: passes of a fixed number of micro-batches out of one run of a loader.

Decides where a pass begins and ends. A Trainer counts epochs of equal length; the epochs of a packed feed may differ
by a step, so its passes are cut out of one order that goes on, and nothing is lost between two. Knows no model.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

from thalweg.bind.loader import Loader
from thalweg.core.batch import Batch
from thalweg.encode.collate_theirs import collate_by

Collate = Callable[[list[Any]], Any] | None


def finished(batch: Batch, collate: Collate, spare: list[Any]) -> Batch:
    """Give a batch as the model takes it: samples go through the collate function.

    Args:
        batch: of a loader.
        collate: None where the batch is made already.
        spare: one sample, which stands in where this rank has none for a step that others take; filled here.
    """
    if collate is None:
        return batch
    samples = batch["samples"]
    spare[:] = samples[:1] or spare
    return Batch(collate_by(collate, samples or spare), info=batch.info)


class TrainBatches:
    """Micro-batches of a training run, pass by pass.

    Args:
        loader: of the run.
        steps: optimiser steps of the run.
        epochs: of the run, as the Trainer counts them: a part of one makes a shorter last pass.
        at: gives the steps that were taken.
        collate: a function of samples, or None.

    Attributes:
        step_tokens: tokens of the last whole step on this rank, padding excluded.
    """

    def __init__(self, loader: Loader, steps: int, epochs: float, at: Callable[[], int], collate: Collate) -> None:
        self.loader, self.steps, self.epochs = loader, steps, epochs
        self.steps_per_pass = max(1, math.ceil(steps / epochs))
        self._at, self._collate = at, collate
        self._running: Iterator[Batch] | None = None
        self._spare: list[Any] = []
        self.step_tokens = self._tokens = 0

    def __iter__(self) -> Iterator[Batch]:
        """Give what is left of the pass; a pass that was broken off goes on with the next row."""
        if self._running is None:
            self._running = iter(self.loader)
        accumulation = self.loader.options.accumulation
        left = self.steps_per_pass - self._at() % self.steps_per_pass
        left = min(left, self.steps - self._at())  # a run that is resumed at its end is over
        for _ in range(left * accumulation):
            try:
                batch = next(self._running)
            except StopIteration:
                return
            self._tokens += batch.info.num_tokens
            if batch.info.last:
                self.step_tokens, self._tokens = self._tokens, 0
            yield finished(batch, self._collate, self._spare)

    def __len__(self) -> int:
        """Count the micro-batches of a pass.

        Raises:
            TypeError: a stream: only its steps are known.
        """
        if self.loader.feed.kind != "planned":
            raise TypeError("a stream has no length")
        return self.steps_per_pass * self.loader.options.accumulation


class EvalBatches:
    """Every row of a feed once, whenever it is iterated; filler has weight zero.

    Args:
        loader: with tail="pad".
        collate: a function of samples, or None.
    """

    def __init__(self, loader: Loader, collate: Collate) -> None:
        self.loader, self._collate = loader, collate
        self._spare: list[Any] = []
        self.rows = loader.feed.num_rows if loader.feed.kind == "planned" else None

    def __iter__(self) -> Iterator[Batch]:
        """Begin anew, also behind a pass that was broken off."""
        self.loader.set_epoch(0)
        if self._collate is not None and not self._spare:
            self._spare = list(self.loader.feed.peek()[0]["samples"][:1])
        for batch in self.loader:
            yield finished(batch, self._collate, self._spare)

    def __len__(self) -> int:
        """Count the micro-batches, the same on all ranks."""
        return len(self.loader)
