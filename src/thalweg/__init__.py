"""thalweg: training data from raw files to the batch on the device, by one ordered path.

Names load on first use (PEP 562), so `import thalweg` costs milliseconds and pulls in no heavy library.
Decides: which public names exist and where each lives. Knows nothing of what they do.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_WHERE = {
    "Topology": "thalweg.core.topology",
    "Batch": "thalweg.core.batch",
    "Document": "thalweg.core.document",
    "Ragged": "thalweg.core.sample",
    "ThalwegError": "thalweg.core.errors",
    "from_stream": "thalweg.feed.open",
    "merge_states": "thalweg.feed.streamstate",
    "from_records": "thalweg.feed.open",
    "from_files": "thalweg.feed.open",
    "from_dataset": "thalweg.feed.open",
    "from_megatron": "thalweg.feed.binidx",
    "mix": "thalweg.feed.join",
    "Loader": "thalweg.bind.loader",
    "load_config": "thalweg.bind.config",
    "concat": "thalweg.feed.join",
    "Feed": "thalweg.feed.feed",
    "create_records": "thalweg.store.records.writer",
    "open_records": "thalweg.store.records.reader",
    "inspect": "thalweg.check.inspect",
    "doctor": "thalweg.check.doctor",
}
_ROOMS = ("bind", "check", "cli", "core", "encode", "feed", "plan", "run", "steps", "store", "testing", "work")

__all__ = [
    "Batch",
    "Document",
    "Feed",
    "Loader",
    "Ragged",
    "ThalwegError",
    "Topology",
    "__version__",
    "concat",
    "create_records",
    "doctor",
    "from_dataset",
    "from_files",
    "from_megatron",
    "from_records",
    "from_stream",
    "inspect",
    "load_config",
    "merge_states",
    "mix",
    "open_records",
]

if TYPE_CHECKING:
    from thalweg.bind.config import load_config
    from thalweg.bind.loader import Loader
    from thalweg.check.doctor import doctor
    from thalweg.check.inspect import inspect
    from thalweg.core.batch import Batch
    from thalweg.core.document import Document
    from thalweg.core.errors import ThalwegError
    from thalweg.core.sample import Ragged
    from thalweg.core.topology import Topology
    from thalweg.feed.binidx import from_megatron
    from thalweg.feed.feed import Feed
    from thalweg.feed.join import concat, mix
    from thalweg.feed.open import from_dataset, from_files, from_records, from_stream
    from thalweg.feed.streamstate import merge_states
    from thalweg.store.records.reader import open_records
    from thalweg.store.records.writer import create_records


def __getattr__(name: str) -> Any:
    """Load a public name or a room on first use."""
    if name in _ROOMS:
        return import_module(f"thalweg.{name}")
    where = _WHERE.get(name)
    if where is None:
        raise AttributeError(f"module 'thalweg' has no attribute {name!r}")
    value = getattr(import_module(where), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Names that exist, loaded or not."""
    return sorted({*__all__, *_ROOMS})
