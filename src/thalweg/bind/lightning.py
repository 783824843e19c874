"""Lightning: a loader whose state in a checkpoint is that of the batch that was trained.

Lightning fetches one batch ahead where a loader has no length, and saves the state of rank 0 alone. Decides that the
state is one batch behind in that case, and that a stream's state holds the sub-streams of all ranks.
"""

import json
from collections.abc import Iterator
from typing import Any

from thalweg.bind.loader import Loader as TensorLoader
from thalweg.core.batch import Batch
from thalweg.feed.streamstate import merge_states

__all__ = ["Loader"]


class Loader(TensorLoader):
    """`tw.Loader` for `lightning.pytorch.Trainer.fit(model, train_dataloaders=loader)`.

    `gradient_accumulation_steps` is the Trainer's `accumulate_grad_batches`. The Trainer saves the place with its
    checkpoints and goes there with `ckpt_path=`; on any number of ranks. Validation: `tw.Loader(val, tail="pad")`.
    Arguments and errors are those of `tw.Loader`.
    """

    _before: dict[str, str] | None = None  # the state before the batch handed over last
    _ended = True

    def _walk(self) -> Iterator[Batch]:
        self._before, self._ended = super().state_dict(), False
        for batch in super()._walk():
            yield batch
            self._before = super().state_dict()
        self._ended = True

    def _counted(self) -> bool:
        """Say whether Lightning knows the length, and so fetches no batch ahead."""
        try:
            len(self)
        except TypeError:
            return False
        return True

    def state_dict(self) -> dict[str, str]:
        """Give the place behind the batch that was trained last; of a stream: of all ranks, which all must ask."""
        state = super().state_dict()
        if not self._ended and self._before is not None and not self._counted():
            state = self._before
        if self.feed.kind == "planned" or self._agree is None:
            return state
        return merge_states(json.loads(text) for text in self._agree(json.dumps(state)))

    def load_state_dict(self, state: Any, strict: bool = True, **more: Any) -> None:
        """Go on from a state at the next `for`."""
        super().load_state_dict(state, strict, **more)
        self._before, self._ended = None, True
