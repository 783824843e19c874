"""MindSpeed-MM's names: its streaming datasets and its configuration, with the behaviour its document promises."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_WHERE = {
    "AsyncPreprocessIterableDataset": "thalweg.bind.mindspeed.asynchronous",
    "DistributedIterableDataset": "thalweg.bind.mindspeed.distributed",
    "MMDataset": "thalweg.bind.mindspeed.dataset",
    "MappedIterableDataset": "thalweg.bind.mindspeed.mapped",
    "align_dataset": "thalweg.bind.mindspeed.dataset",
    "build_mm_dataloader": "thalweg.bind.mindspeed.loader",
    "build_mm_dataset": "thalweg.bind.mindspeed.dataset",
    "load_config": "thalweg.bind.mindspeed.config",
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


def __getattr__(name: str) -> Any:
    """Load a name on first use: torch comes with it."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_WHERE[name]), name)
    globals()[name] = value
    return value
