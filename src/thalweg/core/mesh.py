"""The place of a process in a mesh of devices or in Megatron's groups, as far as data is concerned.

Decides which dimensions of a mesh part the data and which hold peers that get the same rows. Knows neither torch nor
Megatron: it asks the object that it is given for names, sizes and coordinates.
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from importlib import import_module
from typing import Any

from thalweg.core.errors import ConfigError

DP, CP = ("dp*", "fsdp"), "cp"
SAME = ("tp*", "pp*", "etp*", "sp*")  # dimensions whose ranks get the same rows
Place = tuple[int, int, int, int]  # dp_rank, dp_size, cp_rank, cp_size


def _words(patterns: str | Sequence[str]) -> tuple[str, ...]:
    return (patterns,) if isinstance(patterns, str) else tuple(patterns)


def _is(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, p) for p in patterns)


def in_mesh(
    mesh: Any, dp: str | Sequence[str] = DP, cp: str | Sequence[str] = CP, same: str | Sequence[str] = SAME
) -> Place:
    """Read a process's place from a `torch.distributed.DeviceMesh`, or what looks like one.

    Args:
        mesh: has `mesh_dim_names`, `size(dim)` and `get_coordinate()`.
        dp: names or patterns of the dimensions that part the data; several are one, in the mesh's order.
        cp: of the dimensions that part a row.
        same: of the dimensions whose ranks get the same rows (tensor and pipeline parallel).

    Returns:
        (dp_rank, dp_size, cp_rank, cp_size).

    Raises:
        ConfigError: dimensions without names, one that is in none or in two of the three, or a process outside.
    """
    names: tuple[str, ...] | None = getattr(mesh, "mesh_dim_names", None)
    if names is None:
        raise ConfigError(
            "the dimensions of the mesh have no names, so which of them part the data is unknown",
            where="Topology.from_device_mesh",
            fix='init_device_mesh(..., mesh_dim_names=("dp", "tp")), or tw.Topology(dp_rank=..., dp_size=...)',
        )
    at = mesh.get_coordinate()
    if at is None:
        raise ConfigError("this process is not in the mesh", where="Topology.from_device_mesh")
    place = [0, 1, 0, 1]
    for dim, (name, coordinate) in enumerate(zip(names, at, strict=True)):
        kinds = {"dp": _is(name, _words(dp)), "cp": _is(name, _words(cp)), "same": _is(name, _words(same))}
        if kinds["dp"] and name not in _words(dp) and _is(name, ("*cp*",)):
            kinds["cp"] = True  # such as torchtitan's "dp_shard_cp": rows and parts of rows in one dimension
        if sum(kinds.values()) != 1:
            is_none = not any(kinds.values())
            raise ConfigError(
                f"dimension {name!r} of the mesh {', '.join(names)} is "
                + ("none of dp, cp and same" if is_none else " and ".join(k for k, v in kinds.items() if v)),
                where="Topology.from_device_mesh",
                fix=f"say what its ranks get: other rows dp=({name!r}, ...), the same rows same=({name!r}, ...)"
                if is_none
                else "give the mesh before its dimensions were joined",
            )
        if kinds["same"]:
            continue
        i, n = (0 if kinds["dp"] else 2), int(mesh.size(dim))
        place[i], place[i + 1] = place[i] * n + int(coordinate), place[i + 1] * n
    return place[0], place[1], place[2], place[3]


def in_megatron(state: Any = None) -> Place:
    """Read a process's place from Megatron's parallel state.

    Args:
        state: the module `megatron.core.parallel_state`, or what has its functions; None imports it.

    Returns:
        (dp_rank, dp_size, cp_rank, cp_size); data-parallel ranks without context-parallel ones.

    Raises:
        ConfigError: Megatron is not there, or its groups are not made yet.
    """
    where = "Topology.from_megatron"
    if state is None:
        try:
            state = import_module("megatron.core.parallel_state")
        except ImportError as error:
            raise ConfigError(
                f"Megatron is not installed: {error}", where=where, fix="pip install megatron-core"
            ) from None
    ready = getattr(state, "is_initialized", None) or getattr(state, "model_parallel_is_initialized", None)
    if ready is not None and not ready():
        raise ConfigError(
            "Megatron's groups are not made yet", where=where, fix="call it behind initialize_model_parallel()"
        )
    cp_size = getattr(state, "get_context_parallel_world_size", None)
    cp_rank = getattr(state, "get_context_parallel_rank", None)
    return (
        int(state.get_data_parallel_rank()),
        int(state.get_data_parallel_world_size()),
        0 if cp_rank is None else int(cp_rank()),
        1 if cp_size is None else int(cp_size()),
    )
