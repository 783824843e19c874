"""`tw.Loader`: the loader of `feed.loader`, with its place found and its batches as tensors where torch is there.

Decides what "auto" means for topology and tensors. Everything else is `feed.loader`.
"""

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from thalweg.core.errors import ConfigError, nearest
from thalweg.core.topology import Topology
from thalweg.feed.feed import Feed
from thalweg.feed.loader import Agree, FeedLoader, Finish


class Loader(FeedLoader):
    """Batches of one rank, in one order that any number of ranks continues.

    Args:
        feed: what is read.
        topology: "auto" takes torch.distributed, else RANK and WORLD_SIZE: every process a data-parallel rank.
        epochs: of one `for`: 1 makes each `for` an epoch, 3 makes one `for` three, None is endless.
        max_steps: optimiser steps of the run at which it ends.
        gradient_accumulation_steps: micro-batches of a step.
        global_batch_size: rows of a step over all ranks; decides the accumulation.
        tail: "drop" | "carry" | "pad" | "repeat"; None is "drop" for epochs=1, else "carry".
        seed: of every random stage without its own.
        workers: where a stage does not say; 0 runs all inline.
        max_bytes: in flight on this rank.
        prefetch: batches made ahead.
        return_tensors: "auto" (torch where it is installed) | "pt" | "np".
        device: where tensors go; None leaves them on the CPU.
        require: "planned" refuses a stream.
        ledger: folder of the ledger; None keeps none.
        until: streams on several ranks: "first" ends all with the first to end, "all" with the last (filler rows).
        stall_after: streams: seconds without progress before an error that says who waits for what.

    Raises:
        ConfigError: a combination that cannot be right.
        MissingExtraError: tensors are asked for and torch is not installed.
    """

    def __init__(
        self,
        feed: Feed,
        *,
        topology: Topology | str = "auto",
        epochs: int | None = 1,
        max_steps: int | None = None,
        gradient_accumulation_steps: int = 1,
        global_batch_size: int | None = None,
        tail: str | None = None,
        seed: int = 0,
        workers: int | str = "auto",
        max_bytes: int | str = "auto",
        prefetch: int = 2,
        return_tensors: str = "auto",
        device: Any = None,
        require: str | None = None,
        ledger: str | os.PathLike[str] | None = None,
        until: str = "first",
        stall_after: float = 300.0,
    ) -> None:
        place, agree = _place(topology)
        super().__init__(
            feed,
            topology=place,
            epochs=epochs,
            max_steps=max_steps,
            gradient_accumulation_steps=gradient_accumulation_steps,
            global_batch_size=global_batch_size,
            tail=tail,
            seed=seed,
            workers=workers,
            max_bytes=max_bytes,
            prefetch=prefetch,
            require=require,
            ledger=None if ledger is None else str(ledger),
            until=until,
            stall_after=stall_after,
            finish=_finisher(return_tensors, device),
            agree=agree,
        )


def _place(topology: Topology | str) -> tuple[Topology, Agree | None]:
    """Find the place; torch is asked only where the job has loaded it, for else it can't have a process group."""
    torch_runs = "torch.distributed" in sys.modules
    place = import_module("thalweg.bind.torch.place") if torch_runs else None
    agree = None if place is None else place.agreement()
    if isinstance(topology, Topology):
        return topology, agree if topology.dp_size > 1 else None
    if topology != "auto":
        raise ConfigError(
            f"topology={topology!r} is unknown", where="Loader", fix='"auto", or tw.Topology(rank=..., world=...)'
        )
    if place is None:
        return Topology.from_env(os.environ), None
    return place.topology(), agree


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
