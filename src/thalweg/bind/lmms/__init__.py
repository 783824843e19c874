"""LMMS Engine's names: its DatasetConfig and its two datasets, with the behaviour that its guide promises."""

from typing import TYPE_CHECKING

from thalweg.core.lazy import lazy_names

_WHERE = {
    "DatasetConfig": "config",
    "MultiModalDataset": "naive",
    "MultiModalIterableDataset": "streaming",
    "register_processor": "processors",
    "sequence_metrics": "metrics",
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

__getattr__ = lazy_names(__name__, _WHERE)
