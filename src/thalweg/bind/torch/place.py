"""The place of this process among the ranks of a torch job, and what all ranks say.

Decides that every process of a plain process group is a data-parallel rank; other layouts are given as a Topology.
"""

import os
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from thalweg.core.topology import Topology


def initialised() -> bool:
    """Say whether torch.distributed runs in this process."""
    return bool(dist.is_available() and dist.is_initialized())


def topology() -> Topology:
    """Give the place: torch.distributed where it runs, else RANK and WORLD_SIZE, else a job of one."""
    if initialised():
        return Topology(dp_rank=dist.get_rank(), dp_size=dist.get_world_size())
    return Topology.from_env(os.environ)


def agreement() -> Callable[[str], list[str]] | None:
    """Give a function that gathers a text from all ranks; None where there is no process group.

    It uses a group of its own on the CPU, made at its first call, so that it never waits behind the job's work.
    """
    if not initialised() or dist.get_world_size() == 1:
        return None
    made: list[Any] = []

    def gather(text: str) -> list[str]:
        if not made:
            made.append(dist.new_group(backend="gloo"))
        texts: list[str] = [""] * dist.get_world_size()
        dist.all_gather_object(texts, text, group=made[0])
        return texts

    return gather
