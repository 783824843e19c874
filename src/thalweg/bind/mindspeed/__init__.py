"""MindSpeed-MM's names: its streaming datasets, with the behaviour its document promises."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_WHERE = {
    "AsyncPreprocessIterableDataset": "thalweg.bind.mindspeed.asynchronous",
    "DistributedIterableDataset": "thalweg.bind.mindspeed.distributed",
}

__all__ = ["AsyncPreprocessIterableDataset", "DistributedIterableDataset"]

if TYPE_CHECKING:
    from thalweg.bind.mindspeed.asynchronous import AsyncPreprocessIterableDataset
    from thalweg.bind.mindspeed.distributed import DistributedIterableDataset


def __getattr__(name: str) -> Any:
    """Load a name on first use: torch comes with it."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_WHERE[name]), name)
    globals()[name] = value
    return value
