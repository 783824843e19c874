"""`dataset.map(batched=True)` on one rank's stream, aligned streams, and which of the two ways a stream is mapped.

Decides that records are preprocessed in groups in the thread that asks, where `async_preprocess` does not say
otherwise; order, windows and places are those of the asynchronous dataset. Knows no function and no format.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from thalweg.bind.mindspeed.asynchronous import AsyncPreprocessIterableDataset, unwrapped
from thalweg.bind.mindspeed.distributed import DistributedIterableDataset
from thalweg.core.errors import StateError
from thalweg.feed.call import EventCall
from thalweg.feed.events import VALUE, Event, EventNode
from thalweg.feed.window import GroupNode
from thalweg.work.percopy import for_worker

BATCH = 1000  # records of a call where nobody says, as `datasets` does
Batched = Callable[[dict[str, list[Any]]], Any]


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


def preprocessed(
    shard: DistributedIterableDataset,
    preprocess_fn: Batched,
    *,
    async_preprocess: bool = False,
    buffer_size: int | None = None,
    num_workers: int | None = None,
    batch_size: int | None = None,
    **words: Any,
) -> AsyncPreprocessIterableDataset:
    """Preprocess a rank's stream as its settings say; both ways give the same samples in the same order.

    Args:
        shard: of this rank.
        preprocess_fn: dict of lists -> dict of lists; its columns replace those of the record.
        async_preprocess: in background workers, one record a call; else as it is read, in groups.
        buffer_size: samples between reading and hand-over, asynchronously only.
        num_workers: asynchronously only.
        batch_size: records of a call, where calls take groups; None: 1,000.
        words: of `AsyncPreprocessIterableDataset`.
    """
    if async_preprocess:
        return AsyncPreprocessIterableDataset(shard, preprocess_fn, buffer_size, num_workers, **words)
    return MappedIterableDataset(shard, preprocess_fn, batch_size or BATCH, **words)


class _BatchOfMany:
    """Calls a batched function with a group of records."""

    def __init__(self, fn: Batched) -> None:
        self.fn = fn

    def __call__(self, event: Event) -> list[dict[str, Any]]:
        """Give the samples that the function makes of a group."""
        records = [e[VALUE] for e in event[VALUE]]
        names = dict.fromkeys(name for record in records for name in record)
        return unwrapped(self.fn({name: [record.get(name) for record in records] for name in names}))

    def for_worker(self) -> EventCall:
        """Give a call for one worker thread: tokenizers are its own."""
        fn = for_worker(self.fn)
        return self if fn is self.fn else _BatchOfMany(fn)


class MappedIterableDataset(AsyncPreprocessIterableDataset):
    """Preprocess a rank's stream in groups, in the thread that asks, with a place between any two samples.

    Args:
        dataset: of this rank, sharded before it comes here.
        preprocess_fn: dict of lists -> dict of lists.
        batch_size: records of a call, at least 1; the last one of a pass may have fewer.
        shuffle_buffer: see `AsyncPreprocessIterableDataset`.
        seed: of the windows.
    """

    def __init__(
        self,
        dataset: Any,
        preprocess_fn: Batched,
        batch_size: int = BATCH,
        *,
        shuffle_buffer: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(dataset, preprocess_fn, 1, 1, mode="inline", shuffle_buffer=shuffle_buffer, seed=seed)
        self.batch_size = max(1, batch_size)

    def _grouped(self, samples: EventNode) -> EventNode:
        """Give `batch_size` records to a call."""
        return GroupNode(samples, self.batch_size)

    def _call(self) -> EventCall:
        return _BatchOfMany(self.preprocess_fn)

    def state_dict(self) -> dict[str, Any]:
        """Give the place after the last sample handed over, as plain data."""
        return {**super().state_dict(), "batch_size": self.batch_size}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state at the next `iter`.

        Raises:
            StateError: a state of something else, of groups of another size, or of other DataLoader workers.
        """
        if state.get("batch_size") != self.batch_size:
            raise StateError(
                f"the state is of groups of {state.get('batch_size')}, and these are of {self.batch_size}",
                fix="keep preprocessing_batch_size and async_preprocess",
            )
        super().load_state_dict(state)
