"""`build_mm_dataloader`: batches of this rank, in an order and with a place that survive a kill.

Decides how the modes `base` and `sampler`, shuffle, drop_last and micro-batches become a feed and its loader, and
which of their combinations contradict each other. Samples are those of the dataset.
"""

from collections.abc import Mapping
from typing import Any

from thalweg.bind.mindspeed.asynchronous import AsyncPreprocessIterableDataset
from thalweg.bind.mindspeed.collate import MMCollator
from thalweg.bind.mindspeed.config import report
from thalweg.bind.mindspeed.dataset import MMDataset
from thalweg.bind.mindspeed.keys import Dataloader, read_dataloader
from thalweg.bind.torch.place import agreement
from thalweg.bind.torch.tensors import finisher
from thalweg.core.batch import Batch
from thalweg.core.errors import ConfigError
from thalweg.core.sample import IGNORE_INDEX
from thalweg.core.topology import Topology
from thalweg.feed.feed import Feed
from thalweg.feed.loader import FeedLoader, Finish
from thalweg.feed.open import from_dataset, from_stream


class RankStreams:
    """A rank's stream as the one sub-stream of it that this process may read.

    Args:
        dataset: of this rank: `state_dict`, `load_state_dict` and `set_epoch` are used.
        place: of this rank.
    """

    def __init__(self, dataset: Any, place: Topology) -> None:
        self.dataset, self.num_shards, self._place = dataset, place.dp_size, place

    def __iter__(self) -> Any:
        """Give the rank's samples."""
        return iter(self.dataset)

    def shard(self, num_shards: int, index: int) -> Any:
        """Give the sub-stream of a rank.

        Raises:
            ConfigError: it is another rank's.
        """
        if (num_shards, index) != (self._place.dp_size, self._place.dp_rank):
            raise ConfigError(f"this process reads for rank {self._place.dp_rank}, not {index} of {num_shards}")
        return self.dataset


def build_mm_dataloader(
    dataset: Any,
    dataloader_param: Mapping[str, Any],
    *,
    micro_batch_size: int = 1,
    seq_length: int | None = None,
    num_workers: int | None = None,
    seed: int = 42,
    gradient_accumulation_steps: int = 1,
) -> FeedLoader:
    """Build the loader of a dataset of `build_mm_dataset`.

    Args:
        dataset: the dataset.
        dataloader_param: as in the configuration file.
        micro_batch_size: samples of a batch (packed: rows).
        seq_length: tokens of a sample at most, on the Megatron path; the FSDP2 path says cutoff_len.
        num_workers: 0 lays batches out in the thread that asks; None: as in dataloader_param.
        seed: of every shuffle.
        gradient_accumulation_steps: micro-batches of an optimiser step.

    Returns:
        An iterable of batches of tensors; one `for` is one epoch, `state_dict` and `load_state_dict` its place. With a
        dataset that has a length it has one too.

    Raises:
        ConfigError: settings that contradict each other, with the remedy.
    """
    param, unknown = read_dataloader(dataloader_param)
    report(unknown, "dataloader_param")
    fn = getattr(dataset, "preprocess_fn", None)
    if fn is None or not hasattr(fn, "limit"):
        raise ConfigError(
            f"{type(dataset).__name__} is not of build_mm_dataset", where="build_mm_dataloader",
            fix="build_mm_dataset(cfg.dataset_param), or tw.Loader for a feed of your own",
        )  # fmt: skip
    if seq_length is not None:
        if "cutoff_len" in fn.param.said:
            raise ConfigError(
                f"seq_length={seq_length} and cutoff_len={fn.param.basic.cutoff_len} both limit a sample",
                where="build_mm_dataloader", fix="seq_length on the Megatron path, cutoff_len on the FSDP2 path",
            )  # fmt: skip
        fn.limit(seq_length)
    feed, place = _feed(dataset, param, seed)
    packing = fn.param.basic.packing
    if packing:
        feed = feed.pack(fn.max_length, policy="fill", overlong="drop")
    collate = MMCollator(param.collate_param, fn.encoder, packed=packing)
    pinned = param.pin_memory

    class MMLoader(FeedLoader):
        """A feed's loader whose filler rows are out of the loss."""

        def _find_finish(self, return_tensors: str, device: Any) -> Finish | None:
            del return_tensors, device
            return _Finish(pin=pinned)

    return MMLoader(
        feed.batch(micro_batch_size, collate=collate),
        topology=place,
        gradient_accumulation_steps=gradient_accumulation_steps,
        tail="drop" if param.drop_last else "pad",
        seed=seed,
        workers=param.num_workers if num_workers is None else num_workers,
        agree=agreement() if place.dp_size > 1 else None,
    )


def _feed(dataset: Any, param: Dataloader, seed: int) -> tuple[Feed, Topology]:
    """Choose the order: that of the stream, windows of it, that of the table, or a permutation for each epoch."""
    if isinstance(dataset, MMDataset):
        feed = from_dataset(dataset, fingerprint=dataset.fingerprint)
        return (feed.shuffle(seed) if param.shuffle else feed), dataset.place
    if not isinstance(dataset, AsyncPreprocessIterableDataset):
        raise ConfigError(f"{type(dataset).__name__} is not of build_mm_dataset", where="build_mm_dataloader")
    if param.dataloader_mode == "sampler":
        raise ConfigError(
            "dataloader_mode 'sampler' needs len(dataset) and dataset[i], and a stream has neither",
            where="dataloader_param", fix="dataloader_mode: base, or streaming: false",
        )  # fmt: skip
    shard = dataset.dataset
    place = Topology(dp_rank=shard.dp_rank, dp_size=shard.num_dp)
    feed = from_stream(RankStreams(dataset, place), shards=place.dp_size, shard_by="file")
    if param.shuffle:
        feed = feed.shuffle(seed, buffer_size=param.shuffle_buffer_size)
    return feed, place


class _Finish:
    """Batches to tensors; rows that only fill a last batch up are taken out of the loss."""

    def __init__(self, *, pin: bool) -> None:
        self._pin, self._tensors = pin, finisher(None)

    def __call__(self, batch: Batch) -> Batch:
        """Finish one batch."""
        weight = batch.info.weight
        if len(weight) and not weight.all():
            labels = batch["labels"]
            batch["labels"] = labels.copy()
            batch["labels"][weight == 0] = IGNORE_INDEX
        made = self._tensors(batch)
        return made.pin_memory() if self._pin and _has_gpu() else made


def _has_gpu() -> bool:
    import torch  # noqa: PLC0415

    return bool(torch.cuda.is_available())
