"""A pipeline on its way to workers, and each rank's own copy of it.

Decides what ranks of one process share: objects that say `shared_by_ranks = True` (large and unchanging: tokenizers,
models), and the encoders of this package. Everything else is unpickled anew for each rank, so that no count or open
file of one rank reaches another.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import cloudpickle

_SHARED: dict[bytes, Any] = {}  # digest -> object, once in each process


@dataclass(frozen=True, slots=True)
class Copies:
    """A pickled pipeline.

    Args:
        steps: the steps, with marks in the place of shared objects.
        shared: digest and bytes of each shared object.
    """

    steps: bytes
    shared: tuple[tuple[bytes, bytes], ...]

    def one(self) -> list[Any]:
        """Give a rank its own copy."""
        for key, data in self.shared:
            if key not in _SHARED:
                _SHARED[key] = cloudpickle.loads(data)
        return list(_Reader(io.BytesIO(self.steps), [key for key, _ in self.shared]).load())


def copies_of(pipeline: list[Any]) -> Copies:
    """Pickle a pipeline, shared objects once and apart."""
    buffer = io.BytesIO()
    writer = _Writer(buffer)
    writer.dump(pipeline)
    shared = [cloudpickle.dumps(value) for value in writer.found]
    return Copies(buffer.getvalue(), tuple((blake2b(data, digest_size=16).digest(), data) for data in shared))


class _Writer(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.found: list[Any] = []

    def persistent_id(self, obj: Any) -> int | None:
        if not is_shared(obj):
            return None
        if not any(obj is known for known in self.found):
            self.found.append(obj)
        return next(k for k, known in enumerate(self.found) if known is obj)


class _Reader(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, keys: list[bytes]) -> None:
        super().__init__(file)
        self.keys = keys

    def persistent_load(self, pid: Any) -> Any:
        return _SHARED[self.keys[pid]]


def is_shared(value: Any) -> bool:
    """Say whether ranks of one process share an object."""
    kind = type(value)
    if getattr(kind, "shared_by_ranks", False) is True:
        return True
    return kind.__module__.startswith("thalweg.encode.") and hasattr(kind, "encode_batch")
