"""Places in meshes of devices and in Megatron's groups: peers of a data-parallel rank are told the same place."""

import math
from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg.core.errors import ConfigError
from thalweg.core.topology import Topology


@dataclass
class Mesh:
    mesh_dim_names: tuple[str, ...] | None
    shape: tuple[int, ...]
    at: tuple[int, ...] | None = None

    def size(self, dim):
        return self.shape[dim]

    def get_coordinate(self):
        return self.at


def everybody(names, shape):
    return [Mesh(names, shape, at) for at in product(*map(range, shape))]


dims = st.lists(
    st.tuples(st.sampled_from(["pp", "dp_replicate", "dp_shard", "fsdp", "cp", "tp"]), st.integers(1, 3)),
    min_size=1, max_size=4, unique_by=lambda d: d[0],
)  # fmt: skip


# E47 E48
@given(dims)
def test_data_ranks_are_dealt_evenly_and_peers_get_the_same_rows(given_dims):
    names, shape = zip(*given_dims, strict=True)
    places = [Topology.from_device_mesh(m) for m in everybody(names, shape)]
    size = dict(given_dims)
    dp = math.prod(k for n, k in given_dims if n.startswith("dp") or n == "fsdp")
    cp = size.get("cp", 1)
    assert {(t.dp_size, t.cp_size) for t in places} == {(dp, cp)}
    seen = [(t.dp_rank, t.cp_rank) for t in places]
    peers = size.get("tp", 1) * size.get("pp", 1)
    assert sorted(seen) == sorted(list(product(range(dp), range(cp))) * peers)


def test_several_data_dimensions_are_one_in_the_order_of_the_mesh():
    places = [Topology.from_device_mesh(m).dp_rank for m in everybody(("dp_replicate", "dp_shard", "tp"), (2, 2, 2))]
    assert places == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (None, "no names"),
        (("dp", "ep"), "'ep' of the mesh dp, ep is none of dp, cp and same"),
        (("replicate", "shard"), "replicate"),
        (("dp_shard_cp", "tp"), "dp and cp"),
    ],
)
def test_a_dimension_that_may_mean_either_is_refused_by_name(names, words):
    with pytest.raises(ConfigError, match=words):
        Topology.from_device_mesh(Mesh(names, (2, 2), (0, 1)))


def test_a_dimension_can_be_named():
    mesh = Mesh(("replicate", "shard", "ep", "model"), (2, 2, 2, 2), (1, 0, 1, 1))
    found = Topology.from_device_mesh(mesh, dp=("replicate", "shard", "ep"), same="model")
    assert found == Topology(dp_rank=5, dp_size=8)


def test_a_process_outside_the_mesh_is_told():
    with pytest.raises(ConfigError, match="not in the mesh"):
        Topology.from_device_mesh(Mesh(("dp",), (2,), None))


@pytest.mark.slow
@pytest.mark.parametrize("rank", range(8))
def test_a_real_device_mesh_and_real_megatron_groups_agree(rank):  # E48
    dist = pytest.importorskip("torch.distributed")
    state = pytest.importorskip("megatron.core.parallel_state")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=8)
    try:
        hybrid = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("dp_replicate", "dp_shard", "cp"))
        assert Topology.from_device_mesh(hybrid) == Topology(rank // 2, 4, rank % 2, 2)
        assert Topology.from_device_mesh(hybrid["dp_replicate", "dp_shard"]) == Topology(rank // 2, 4)
        mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("dp", "cp", "tp"))
        there = Topology.from_device_mesh(mesh)
        assert there == Topology(rank // 4, 2, rank // 2 % 2, 2)
        with pytest.raises(ConfigError, match="not made yet"):
            Topology.from_megatron()
        state.initialize_model_parallel(2, context_parallel_size=2, create_gloo_process_groups=False)
        try:
            assert Topology.from_megatron() == there  # tp innermost, then cp, then dp: Megatron's default order
        finally:
            state.destroy_model_parallel()
    finally:
        dist.destroy_process_group()


def test_older_states_without_context_parallelism_do(monkeypatch):
    old = SimpleNamespace(
        model_parallel_is_initialized=lambda: True,
        get_data_parallel_rank=lambda: 1,
        get_data_parallel_world_size=lambda: 3,
    )
    assert Topology.from_megatron(old) == Topology(1, 3)
    monkeypatch.setitem(__import__("sys").modules, "megatron.core.parallel_state", None)
    with pytest.raises(ConfigError, match="not installed"):
        Topology.from_megatron()
