"""`tw.Loader`: the loader of `feed.loader`, with its place found and its batches as tensors where torch is there.

Decides what "auto" means for topology and tensors. Everything else is `feed.loader`.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from thalweg.core.errors import ConfigError, nearest
from thalweg.core.topology import Topology
from thalweg.feed.loader import Agree, FeedLoader, Finish


class Loader(FeedLoader):  # noqa: D101  (the same words)
    __doc__ = FeedLoader.__doc__

    def _find_place(self, topology: Topology | str) -> tuple[Topology, Agree | None]:
        """Find the place; torch is asked only where the job has loaded it, for else it can't have a process group."""
        if "torch.distributed" not in sys.modules:
            return super()._find_place(topology)
        place = import_module("thalweg.bind.torch.place")
        agree: Agree | None = place.agreement()
        if isinstance(topology, Topology):
            return topology, agree if topology.dp_size > 1 else None
        if topology != "auto":
            return super()._find_place(topology)
        return place.topology(), agree

    def _find_finish(self, return_tensors: str, device: Any) -> Finish | None:
        return _finisher(return_tensors, device)


def _finisher(return_tensors: str, device: Any) -> Finish | None:
    if return_tensors not in {"auto", "pt", "np"}:
        raise ConfigError(
            f"return_tensors={return_tensors!r} is unknown", fix=nearest(return_tensors, ("auto", "pt", "np"))
        )
    if return_tensors == "np" or (return_tensors == "auto" and device is None and find_spec("torch") is None):
        if device is not None:
            raise ConfigError("numpy arrays have no device", where="Loader", fix='return_tensors="pt"')
        return None
    from thalweg.core.extras import need  # noqa: PLC0415

    need("torch", why="Loader(return_tensors='pt')")
    tensors = import_module("thalweg.bind.torch.tensors")
    finish: Finish = tensors.finisher(device)
    return finish
