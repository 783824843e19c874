"""PyTorch: tensors, the place in a process group, agreement of ranks. The only room besides that imports torch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["IterableDataset"]

if TYPE_CHECKING:
    from thalweg.bind.torch.iterable import IterableDataset


def __getattr__(name: str) -> Any:
    """Load a name on first use: torch comes with it."""
    if name != "IterableDataset":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module("thalweg.bind.torch.iterable").IterableDataset
