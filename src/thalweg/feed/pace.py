"""What a training loop waits for, always on: seconds in the loader and outside of it, batches, tokens, places.

Decides what counts as waiting: the time in `next` but for the finishing of the batch. Four clock readings and a few
additions a batch. Knows no stage.
"""

from collections.abc import Callable
from time import perf_counter
from typing import Any, TypeVar

from thalweg.core.batch import Batch

T = TypeVar("T")


class Pace:
    """Seconds and counts of one loader, from its first batch on.

    Attributes:
        waited: seconds until batches came.
        finished: seconds in which they became tensors or were sent to the device.
        consumed: seconds between batches: the training step. The first batch of each `for` begins the clock.
        first: seconds until the first batch of each `for`, in no other count.
        batches, tokens, label_tokens, places: handed over; places are rows times width.
    """

    __slots__ = (
        "_asked",
        "_left",
        "batches",
        "consumed",
        "finished",
        "first",
        "label_tokens",
        "places",
        "tokens",
        "waited",
    )

    def __init__(self) -> None:
        self.waited = self.finished = self.consumed = self.first = 0.0
        self.batches = self.tokens = self.label_tokens = self.places = 0
        self._left: float | None = None  # when the last batch was handed over
        self._asked = 0.0

    def begin(self) -> None:
        """Begin a `for`: the time since the last one is nobody's."""
        self._left = None

    def asked(self) -> None:
        """Note that the loop wants a batch."""
        self._asked = now = perf_counter()
        if self._left is not None:
            self.consumed += now - self._left

    def timed(self, finish: Callable[[T], T], batch: T) -> T:
        """Finish a batch, and count that apart."""
        start = perf_counter()
        done = finish(batch)
        took = perf_counter() - start
        self.finished += took
        self._asked += took
        return done

    def gave(self, batch: Batch) -> None:
        """Note that the loop has it."""
        now = perf_counter()
        if self._left is None:
            self.first += now - self._asked
        else:
            self.waited += now - self._asked
        self._left = now
        self.batches += 1
        info = batch.info
        self.tokens += info.num_tokens
        self.label_tokens += info.num_label_tokens
        ids: Any = batch.get("input_ids")
        if ids is None:
            ids = batch.get("tokens")
        shape: Any = getattr(ids, "shape", ())
        if len(shape) == 2:
            self.places += shape[0] * shape[1]

    def read(self) -> dict[str, Any]:
        """Give the figures, `waiting_share` and `tokens_per_second` among them."""
        loop = self.waited + self.finished + self.consumed
        padding = 1 - self.tokens / self.places if self.places else 0.0
        return {
            "batches": self.batches,
            "tokens": self.tokens,
            "label_tokens": self.label_tokens,
            "padding": round(padding, 6),
            "first_s": round(self.first, 6),
            "waited_s": round(self.waited, 6),
            "finished_s": round(self.finished, 6),
            "consumed_s": round(self.consumed, 6),
            "waiting_share": round(self.waited / loop, 6) if loop else 0.0,
            "tokens_per_second": round(self.tokens / (loop + self.first), 3) if loop + self.first else 0.0,
        }
