"""A batch: a dict of exactly what the model's `forward` takes, with everything for the trainer in `.info`.

Decides how a batch moves (`to`, `pin_memory`) without knowing torch: any value that has the method is moved by it.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


def _ones() -> NDArray[np.float32]:
    return np.ones(0, np.float32)


@dataclass(slots=True)
class BatchInfo:
    """What a trainer wants to know of one micro-batch on one rank. Never part of the model's input.

    Args:
        ids: ids of the samples of each row, in token order.
        sources: name of the source of each sample, row by row.
        epoch: epoch of the step's first row.
        step: optimiser step in the run, from 0.
        micro: micro-batch within the step, from 0.
        last: True on the step's last micro-batch: time for `optimizer.step()`.
        num_tokens: real tokens of this micro-batch on this rank, padding excluded.
        num_label_tokens: tokens in the loss of this micro-batch on this rank, after the shift.
        step_label_tokens: the same over all micro-batches and ranks of the step; None where unknown (streams).
        weight: float32 (B,), 0 on filler rows.
        labels_shifted: True where labels already stand one to the left (Megatron, torchtitan, context-parallel slices).
        straggler: with balance, cost of the step's busiest rank over the mean of all, at least 1.0; else None.
    """

    ids: list[list[str]] = field(default_factory=list)
    sources: list[list[str]] = field(default_factory=list)
    epoch: int = 0
    step: int = 0
    micro: int = 0
    last: bool = True
    num_tokens: int = 0
    num_label_tokens: int = 0
    step_label_tokens: int | None = None
    weight: NDArray[np.float32] = field(default_factory=_ones)
    labels_shifted: bool = False
    straggler: float | None = None


class Batch(dict[str, Any]):
    """A dict that the caller owns, plus `.info`.

    Built from a plain dict too (Trainer code does `type(data)({...})`); `.info` is then empty.
    """

    info: BatchInfo

    def __init__(self, values: Any = (), /, *, info: BatchInfo | None = None, **more: Any) -> None:
        super().__init__(values, **more)
        self.info = BatchInfo() if info is None else info

    def to(self, *args: Any, **kwargs: Any) -> "Batch":
        """Move every tensor by its own `.to`; other values and `.info` stay. Returns a new batch."""
        return self._each("to", *args, **kwargs)

    def pin_memory(self) -> "Batch":
        """Copy every tensor to page-locked memory. Returns a new batch."""
        return self._each("pin_memory")

    def _each(self, method: str, *args: Any, **kwargs: Any) -> "Batch":
        moved = {k: getattr(v, method)(*args, **kwargs) if hasattr(v, method) else v for k, v in self.items()}
        return type(self)(moved, info=self.info)
