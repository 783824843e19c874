"""The place of this process among the ranks of a torch job, and what all ranks say.

Decides that every process of a plain process group is a data-parallel rank; other layouts are given as a Topology.
"""

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from thalweg.core.errors import AgreementError
from thalweg.core.topology import Topology


def initialised() -> bool:
    """Say whether torch.distributed runs in this process."""
    return bool(dist.is_available() and dist.is_initialized())


def topology() -> Topology:
    """Give the place: torch.distributed where it runs, else RANK and WORLD_SIZE, else a job of one."""
    if initialised():
        return Topology(dp_rank=dist.get_rank(), dp_size=dist.get_world_size())
    return Topology.from_env(os.environ)


def agreement(timeout: float = 1800.0) -> Callable[[str], list[str]] | None:
    """Give a function that gathers a text from all ranks; None where there is no process group.

    It uses a group of its own on the CPU, made at its first call, so that it never waits behind the job's work.

    Args:
        timeout: seconds that a rank waits for the others; the ranks that did not come are then named.
    """
    if not initialised() or dist.get_world_size() == 1:
        return None
    made: list[Any] = []
    wait = timedelta(seconds=timeout)

    def gather(text: str) -> list[str]:
        if not made:
            made.append(dist.new_group(backend="gloo", timeout=wait))
        try:
            dist.monitored_barrier(made[0], timeout=wait, wait_all_ranks=True)
        except RuntimeError as error:
            raise AgreementError(
                f"not all ranks came to agree within {timeout:g} s: {str(error).splitlines()[0]}",
                where=f"rank {dist.get_rank()}",
                fix="make and iterate the loader on every rank of the job",
            ) from error
        texts: list[str] = [""] * dist.get_world_size()
        dist.all_gather_object(texts, text, group=made[0])
        return texts

    return gather
