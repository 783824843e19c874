"""The way of a dataset from its settings to a loader: aligned, sharded, preprocessed, in the document's order.

Decides what `streaming` and `async_preprocess` mean together, for training and validation alike, and which loader
modes a stream can have. Knows no file and no key of a configuration: those are handed in as arguments.
"""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from thalweg.bind.mindspeed.asynchronous import AsyncPreprocessIterableDataset, Hook, unwrapped
from thalweg.bind.mindspeed.distributed import DistributedIterableDataset
from thalweg.core.errors import ConfigError, nearest
from thalweg.feed.call import EventCall
from thalweg.feed.events import VALUE, Event, EventNode
from thalweg.feed.window import GroupNode
from thalweg.work.percopy import for_worker

BATCH = 1000  # samples of a call where nobody says, as `datasets` does
MODES = ("base", "sampler")


def preprocessed(
    dataset: Any,
    preprocess_fn: Callable[[dict[str, list[Any]]], Any],
    *,
    streaming: bool,
    async_preprocess: bool = False,
    async_preprocess_buffer_size: int | None = None,
    preprocessing_num_workers: int | None = None,
    preprocessing_batch_size: int | None = None,
    align: Callable[[Any], Any] | None = None,
    num_dp: int | None = None,
    dp_rank: int | None = None,
    shuffle_buffer: int | None = None,
    seed: int = 0,
    mode: str = "threads",
    on_message: Hook | None = None,
) -> Any:
    """Preprocess a dataset as its settings say; a validation dataset goes through the same call.

    With `streaming` the data is aligned, then this rank's part is taken, then it is preprocessed: in background
    workers where `async_preprocess` says so, else as it is read, in batches. Both give the same samples in the same
    order. Without `streaming`, `async_preprocess` changes nothing: `datasets` maps the whole set.

    Args:
        dataset: iterable of dict samples; without `streaming` a `datasets.Dataset`.
        preprocess_fn: batched: dict of lists -> dict of lists; its columns replace those of the sample.
        streaming: read as a stream.
        async_preprocess: preprocess a stream in background workers, one sample a call.
        async_preprocess_buffer_size: samples between reading and hand-over, asynchronous streams only.
        preprocessing_num_workers: workers of an asynchronous stream, processes of a map without `streaming`.
        preprocessing_batch_size: samples of a call, where the calls are batched; None: 1,000.
        align: dataset -> dataset with the columns that `preprocess_fn` wants.
        num_dp, dp_rank: the data-parallel place; None asks the parallel state.
        shuffle_buffer: shuffle a stream in seeded windows of so many samples; None keeps its order.
        seed: of the windows.
        mode: "threads" | "processes" | "auto" | "inline", asynchronous streams only.
        on_message: see `AsyncPreprocessIterableDataset`.

    Returns:
        A torch IterableDataset with `state_dict`, or what `dataset.map` gives.

    Raises:
        ConfigError: without `streaming`, a dataset that has no `map`.
    """
    aligned = dataset if align is None else align(dataset)
    batch = preprocessing_batch_size or BATCH
    if not streaming:
        return _mapped(aligned, preprocess_fn, batch, preprocessing_num_workers)
    mine = DistributedIterableDataset(aligned, num_dp=num_dp, dp_rank=dp_rank)
    if not async_preprocess:
        return BatchedPreprocessIterableDataset(mine, preprocess_fn, batch, shuffle_buffer=shuffle_buffer, seed=seed)
    return AsyncPreprocessIterableDataset(
        mine,
        preprocess_fn,
        async_preprocess_buffer_size,
        preprocessing_num_workers,
        mode=mode,
        on_message=on_message,
        shuffle_buffer=shuffle_buffer,
        seed=seed,
    )


def _mapped(dataset: Any, fn: Callable[..., Any], batch: int, processes: int | None) -> Any:
    if not hasattr(dataset, "map") or not hasattr(dataset, "column_names"):
        raise ConfigError(
            f"streaming: false maps a whole datasets.Dataset, and this is {type(dataset).__name__}",
            where="dataset_param",
            fix="say streaming: true, or load it with datasets.load_dataset",
        )
    return dataset.map(
        fn, batched=True, batch_size=batch, num_proc=processes, remove_columns=list(dataset.column_names)
    )


class _BatchOfMany:
    """Calls a batched function with a group of samples."""

    def __init__(self, fn: Callable[[dict[str, list[Any]]], Any]) -> None:
        self.fn = fn

    def __call__(self, event: Event) -> list[dict[str, Any]]:
        """Give the samples that the function makes of a group."""
        samples = [e[VALUE] for e in event[VALUE]]
        names = dict.fromkeys(name for sample in samples for name in sample)
        return unwrapped(self.fn({name: [sample.get(name) for sample in samples] for name in names}))

    def for_worker(self) -> EventCall:
        """Give a call for one worker thread: tokenizers are its own."""
        fn = for_worker(self.fn)
        return self if fn is self.fn else _BatchOfMany(fn)


class BatchedPreprocessIterableDataset(AsyncPreprocessIterableDataset):
    """Preprocess the samples of a stream as they are read, `batch_size` in a call, in the consumer's thread.

    What `datasets.IterableDataset.map(batched=True)` does, behind sharding and with a place between any two samples.

    Args:
        dataset: iterable of dict samples, sharded for this rank.
        preprocess_fn: batched: dict of lists -> dict of lists.
        batch_size: samples of a call, at least 1; the last one of a pass may have fewer.
        shuffle_buffer, seed: as in `AsyncPreprocessIterableDataset`.
    """

    def __init__(
        self,
        dataset: Any,
        preprocess_fn: Callable[[dict[str, list[Any]]], Any],
        batch_size: int = BATCH,
        *,
        shuffle_buffer: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(dataset, preprocess_fn, 1, 1, mode="inline", shuffle_buffer=shuffle_buffer, seed=seed)
        self.batch_size = max(1, batch_size)

    def _grouped(self, samples: EventNode) -> EventNode:
        """Give `batch_size` samples to a call."""
        return GroupNode(samples, self.batch_size)

    def _call(self) -> EventCall:
        return _BatchOfMany(self.preprocess_fn)


def stream_loader(
    dataset: Any,
    *,
    batch_size: int,
    dataloader_mode: str = "base",
    shuffle: bool = False,
    num_workers: int = 0,
    drop_last: bool = False,
    pin_memory: bool = False,
    collate_fn: Callable[[list[Any]], Any] | None = None,
) -> Any:
    """Put a stream into a loader: torchdata's StatefulDataLoader where it is installed, else torch's DataLoader.

    Args:
        dataset: what `preprocessed` gave.
        batch_size: samples of a micro-batch.
        dataloader_mode: "base", the dataset's own order. "sampler" needs len() and [i].
        shuffle: refused: the order of a stream is its own, or that of seeded windows.
        num_workers, drop_last, pin_memory, collate_fn: as the loader takes them.

    Raises:
        ConfigError: a mode or a shuffle that a stream cannot have, and what to say instead.
    """
    where = "dataloader_param"
    if dataloader_mode not in MODES:
        raise ConfigError(
            f"dataloader_mode {dataloader_mode!r} is unknown", where=where, fix=nearest(dataloader_mode, MODES)
        )
    if isinstance(dataset, IterableDataset):
        if dataloader_mode == "sampler":
            raise ConfigError(
                "dataloader_mode 'sampler' needs a dataset with len() and [i], and a stream has neither", where=where,
                fix="say dataloader_mode: base, or streaming: false",
            )  # fmt: skip
        if shuffle:
            raise ConfigError(
                "shuffle: true cannot permute a stream", where=where,
                fix="say shuffle: false, and shuffle_buffer=10_000 for seeded windows before preprocessing",
            )  # fmt: skip
    made: Any = DataLoader
    if find_spec("torchdata") is not None:
        made = import_module("torchdata.stateful_dataloader").StatefulDataLoader
    more: dict[str, Any] = {} if isinstance(dataset, IterableDataset) else {"shuffle": shuffle}
    return made(
        dataset, batch_size=batch_size, num_workers=num_workers, drop_last=drop_last, pin_memory=pin_memory,
        collate_fn=collate_fn, **more,
    )  # fmt: skip
