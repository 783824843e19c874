"""MindSpeed-MM's names: its streaming datasets and its configuration, with the behaviour its document promises."""

from typing import TYPE_CHECKING

from thalweg.core.lazy import lazy_names

_WHERE = {
    "AsyncPreprocessIterableDataset": "asynchronous",
    "DistributedIterableDataset": "distributed",
    "MMDataset": "dataset",
    "MappedIterableDataset": "mapped",
    "align_dataset": "dataset",
    "build_mm_dataloader": "loader",
    "build_mm_dataset": "dataset",
    "load_config": "config",
}

__all__ = [
    "AsyncPreprocessIterableDataset",
    "DistributedIterableDataset",
    "MMDataset",
    "MappedIterableDataset",
    "align_dataset",
    "build_mm_dataloader",
    "build_mm_dataset",
    "load_config",
]

if TYPE_CHECKING:
    from thalweg.bind.mindspeed.asynchronous import AsyncPreprocessIterableDataset
    from thalweg.bind.mindspeed.config import load_config
    from thalweg.bind.mindspeed.dataset import MMDataset, align_dataset, build_mm_dataset
    from thalweg.bind.mindspeed.distributed import DistributedIterableDataset
    from thalweg.bind.mindspeed.loader import build_mm_dataloader
    from thalweg.bind.mindspeed.mapped import MappedIterableDataset

__getattr__ = lazy_names(__name__, _WHERE)
