"""Which place of a parallel job this process holds, as far as data is concerned.

Only the data-parallel and the context-parallel coordinates matter: tensor- and pipeline-parallel peers of a
data-parallel rank get the same rows. Meshes and Megatron's groups are read by `core.mesh`; a live process group is the
business of `bind`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass
from typing import Any

from thalweg.core import mesh as of_mesh
from thalweg.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Topology:
    """Place of one process.

    Args:
        dp_rank: data-parallel rank, 0 <= dp_rank < dp_size.
        dp_size: number of data-parallel ranks.
        cp_rank: context-parallel rank within the data-parallel rank.
        cp_size: number of context-parallel ranks.
        rank: another name of dp_rank.
        world: another name of dp_size.

    Raises:
        ConfigError: a rank outside its size, or a size below 1.
    """

    dp_rank: int = 0
    dp_size: int = 1
    cp_rank: int = 0
    cp_size: int = 1
    rank: InitVar[int | None] = None
    world: InitVar[int | None] = None

    def __post_init__(self, rank: int | None, world: int | None) -> None:
        """Take the short names and check the ranges."""
        if isinstance(rank, int):
            object.__setattr__(self, "dp_rank", rank)
        if isinstance(world, int):
            object.__setattr__(self, "dp_size", world)
        for name, r, size in (("dp", self.dp_rank, self.dp_size), ("cp", self.cp_rank, self.cp_size)):
            if size < 1 or not 0 <= r < size:
                raise ConfigError(
                    f"{name}_rank {r} does not fit {name}_size {size}",
                    fix=f"give 0 <= {name}_rank < {name}_size; with torchrun both come from RANK and WORLD_SIZE",
                )

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> "Topology":
        """Read RANK and WORLD_SIZE, as torchrun sets them; a job of one where both are absent.

        Raises:
            ConfigError: only one of the two is set, or one is not a number.
        """
        rank, world = environ.get("RANK"), environ.get("WORLD_SIZE")
        if rank is None and world is None:
            return cls()
        if rank is None or world is None:
            raise ConfigError("only one of RANK and WORLD_SIZE is set", where="environment", fix="set both, or neither")
        try:
            return cls(dp_rank=int(rank), dp_size=int(world))
        except ValueError as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"RANK={rank!r} and WORLD_SIZE={world!r} must be numbers", where="environment") from error

    @classmethod
    def from_device_mesh(
        cls,
        mesh: Any,
        *,
        dp: str | Sequence[str] = of_mesh.DP,
        cp: str | Sequence[str] = of_mesh.CP,
        same: str | Sequence[str] = of_mesh.SAME,
    ) -> "Topology":
        """Read the place from a `torch.distributed.DeviceMesh` with named dimensions.

        Args:
            mesh: of all processes of the job.
            dp: names or patterns of the dimensions that part the data; several are one, in the mesh's order.
            cp: of those that part a row.
            same: of those whose ranks get the same rows (tensor and pipeline parallel).

        Raises:
            ConfigError: a dimension that is in none or two of them; no names; a process outside the mesh.
        """
        dp_rank, dp_size, cp_rank, cp_size = of_mesh.in_mesh(mesh, dp, cp, same)
        return cls(dp_rank, dp_size, cp_rank, cp_size)

    @classmethod
    def from_megatron(cls, state: Any = None) -> "Topology":
        """Read the place from `megatron.core.parallel_state`, or what has its functions.

        Raises:
            ConfigError: Megatron is not installed, or its groups are not made yet.
        """
        dp_rank, dp_size, cp_rank, cp_size = of_mesh.in_megatron(state)
        return cls(dp_rank, dp_size, cp_rank, cp_size)
