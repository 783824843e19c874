"""`dataset.map(batched=True)` on one rank's stream, and aligned streams: iterables with a place of their own.

Decides that records are preprocessed in groups in the thread that asks, that the order is that of the stream, and
what the place between two samples of one group is. Knows no function and no format.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, NoReturn

from torch.utils.data import IterableDataset

from thalweg.bind.mindspeed.distributed import DistributedIterableDataset, raise_no_length
from thalweg.bind.torch.worker import division
from thalweg.core.errors import StateError

KIND, VERSION = "mapped", 1


class AlignedIterable:
    """Each item of a stream through a function; state and epoch are the stream's own.

    Args:
        dataset: iterable of records.
        fn: record -> aligned record, or None, which leaves it out.
    """

    def __init__(self, dataset: Any, fn: Callable[[Any], Any]) -> None:
        self.dataset, self.fn = dataset, fn
        for name in ("state_dict", "load_state_dict", "set_epoch"):
            if hasattr(dataset, name):
                setattr(self, name, getattr(dataset, name))

    def __iter__(self) -> Iterator[Any]:
        """Give them in order."""
        for item in self.dataset:
            made = self.fn(item)
            if made is not None:
                yield made


class MappedIterableDataset(IterableDataset[dict[str, Any]]):  # type: ignore[misc]
    """Preprocess a rank's stream in groups, synchronously: the same samples in the same order as asynchronously.

    Args:
        dataset: of this rank, sharded before it comes here.
        preprocess_fn: dict of lists -> dict of lists.
        batch_size: records of a call.
    """

    def __init__(self, dataset: DistributedIterableDataset, preprocess_fn: Any, batch_size: int = 1000) -> None:
        self.dataset, self.preprocess_fn, self.batch_size = dataset, preprocess_fn, batch_size
        self._before: Any = None  # place of the stream at the beginning of the group under way
        self._given = 0  # samples of that group handed over
        self._resumed = False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Give one pass: from the place of a loaded state right after `load_state_dict`, else from the beginning."""
        resumed, self._resumed = self._resumed, False
        skip = self._given if resumed else 0
        if not resumed:
            self._before, self._given = None, 0
        if resumed and self._before is not None:
            self.dataset.load_state_dict(self._before)
        worker, workers = division()
        items = self.dataset.items()
        while True:
            before = self.dataset.state_dict()
            group = list(islice(items, self.batch_size * workers))
            if not group:
                self._before, self._given = None, 0
                return
            self._before, self._given = before, skip
            columns = {k: [r[k] for r in group[worker::workers]] for k in group[0]}
            made = self.preprocess_fn(columns)
            count = len(next(iter(made.values()), []))
            for i in range(skip, count):
                self._given = i + 1
                yield {k: v[i] for k, v in made.items()}
            skip = 0

    def state_dict(self) -> dict[str, Any]:
        """Give the place after the last sample handed over, as plain data."""
        return {
            "kind": KIND,
            "version": VERSION,
            "before": self._before,
            "given": self._given,
            "workers": division()[1],
            "batch_size": self.batch_size,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state at the next `iter`.

        Raises:
            StateError: a state of something else, or of groups of another size.
        """
        if state.get("kind") != KIND or state.get("version", 0) > VERSION:
            raise StateError(f"a state of kind {state.get('kind')!r} was given to {KIND!r}")
        if (state["batch_size"], state["workers"]) != (self.batch_size, division()[1]):
            raise StateError(
                f"the state is of groups of {state['batch_size']} in {state['workers']} workers",
                fix="keep preprocessing_batch_size and num_workers",
            )
        self._before, self._given, self._resumed = state["before"], int(state["given"]), True

    def set_epoch(self, epoch: int) -> None:
        """Use another order from the next `iter` on, where the source has one."""
        self.dataset.set_epoch(epoch)

    def __len__(self) -> NoReturn:  # noqa: PLE0303
        """Refuse: a stream has no length."""
        raise_no_length(type(self).__name__)

    def __getitem__(self, index: Any) -> NoReturn:
        """Refuse: a stream has no random access."""
        raise_no_length(type(self).__name__)
