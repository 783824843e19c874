"""LMMS Engine's names: its DatasetConfig and its two datasets, with the behaviour that its guide promises."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_WHERE = {
    "DatasetConfig": "thalweg.bind.lmms.config",
    "MultiModalDataset": "thalweg.bind.lmms.naive",
    "MultiModalIterableDataset": "thalweg.bind.lmms.streaming",
    "register_processor": "thalweg.bind.lmms.processors",
    "sequence_metrics": "thalweg.bind.lmms.metrics",
}

__all__ = [
    "DatasetConfig",
    "MultiModalDataset",
    "MultiModalIterableDataset",
    "register_processor",
    "sequence_metrics",
]

if TYPE_CHECKING:
    from thalweg.bind.lmms.config import DatasetConfig
    from thalweg.bind.lmms.metrics import sequence_metrics
    from thalweg.bind.lmms.naive import MultiModalDataset
    from thalweg.bind.lmms.processors import register_processor
    from thalweg.bind.lmms.streaming import MultiModalIterableDataset


def __getattr__(name: str) -> Any:
    """Load a name on first use: torch comes with the datasets."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_WHERE[name]), name)
    globals()[name] = value
    return value
