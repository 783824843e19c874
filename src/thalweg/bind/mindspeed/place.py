"""Which data-parallel rank this process is, asked of the parallel state that the training stack has set up.

Decides that the global rank alone never says it: tensor- and context-parallel peers must read the same samples.
Knows the two stacks by the names of their modules; imports neither.
"""

import sys
from collections.abc import Mapping
from typing import Any

from thalweg.core.errors import ConfigError

MEGATRON = "megatron.core.parallel_state"
FSDP2 = "mindspeed_mm.fsdp.distributed.parallel_state"


def data_parallel_place() -> tuple[int, int]:
    """Give (data-parallel size, data-parallel rank).

    Asked are Megatron's parallel state, then that of the FSDP2 stack, where they are loaded and initialised. A
    process without a process group is rank 0 of 1.

    Raises:
        ConfigError: several processes run and no parallel state says which of them share samples.
    """
    megatron: Any = sys.modules.get(MEGATRON)
    if megatron is not None and megatron.model_parallel_is_initialized():
        return int(megatron.get_data_parallel_world_size()), int(megatron.get_data_parallel_rank())
    fsdp: Any = sys.modules.get(FSDP2)
    if fsdp is not None and fsdp.is_parallel_state_initialized():
        state = fsdp.get_parallel_state()
        return int(state.get_dp_group_size()), int(state.get_dp_rank())
    dist: Any = sys.modules.get("torch.distributed")
    world = int(dist.get_world_size()) if dist is not None and dist.is_available() and dist.is_initialized() else 1
    if world > 1:
        raise ConfigError(
            f"{world} processes run, and no parallel state says which of them read the same samples",
            where="DistributedIterableDataset",
            fix="initialise the parallel state first, or give num_dp= and dp_rank=",
        )
    return 1, 0


def place_of(parallel: Mapping[str, Any], rank: int, world: int) -> tuple[int, int]:
    """Work out (data-parallel size, data-parallel rank) of a process from the sizes of a configuration.

    The mesh is (data, Ulysses, ring, tensor), the last innermost: peers of one data-parallel rank are neighbours.

    Args:
        parallel: `tensor_parallel_size`, `ring_attention_size`, `ulysses_parallel_size`; each 1 where it is not said.
            `expert_parallel_size` shares the data-parallel ranks and does not count.
        rank: of the process, 0 <= rank < world.
        world: number of processes.

    Raises:
        ConfigError: the sizes do not divide the processes.
    """
    sizes = {
        name: int(parallel.get(name) or 1)
        for name in ("tensor_parallel_size", "ring_attention_size", "ulysses_parallel_size")
    }
    peers = 1
    for size in sizes.values():
        peers *= size
    if peers < 1 or world % peers or not 0 <= rank < world:
        said = " x ".join(f"{name} {size}" for name, size in sizes.items())
        raise ConfigError(f"rank {rank} of {world} processes does not fit {said}", where="parallel")
    return world // peers, rank // peers
