"""One rank of a gloo job on a device mesh. Run as mesh_job.py STORE RANK WORLD FOLDER WHAT, prints JSON lines.

WHAT is "mesh": places on meshes, what a planned feed and a stream give there, and a model trained on four dimensions
at once. "save": reads a stream and a
planned feed on dp x tp, saves a distributed checkpoint in the middle. "load": goes on from it on dp alone.
"""

import io
import json
import sys
from itertools import islice

import four_ways
import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh

import thalweg as tw

RUN = {"epochs": None, "workers": 0, "gradient_accumulation_steps": 2}


def rows(n=96):
    return [{"input_ids": np.full(4 * (1 + i % 3), i, np.int32), "id": f"r{i}"} for i in range(n)]


def planned():
    return tw.from_dataset(rows(), id="id").shuffle().pack(16, overlong="drop", align=4).batch(1)


def stream():
    return tw.from_stream(rows(), shards=4).shuffle(buffer_size=5).pack(16, policy="fill", overlong="drop").batch(1)


def ids(batches):
    return [row for batch in batches for row in batch.info.ids]


def place(t):
    return [t.dp_rank, t.dp_size, t.cp_rank, t.cp_size]


def on_meshes():
    first = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("pp", "dp_shard", "tp"))
    second = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("dp_replicate", "dp_shard", "cp"))
    out = {"first": place(tw.Topology.from_device_mesh(first)), "second": place(tw.Topology.from_device_mesh(second))}
    there = tw.Topology.from_device_mesh(first)
    out["planned"] = ids(islice(tw.Loader(planned(), topology=there, **RUN), 6))
    out["stream"] = ids(tw.Loader(stream(), topology=there, **(RUN | {"epochs": 1})))
    out["cp"] = ids(islice(tw.Loader(planned(), topology=tw.Topology.from_device_mesh(second), **RUN), 4))
    for shape in ((2, 1, 2, 2), (1, 2, 2, 2)):
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=four_ways.NAMES)
        out["x".join(map(str, shape))] = on_four(mesh) | {"losses": four_ways.on_mesh(mesh)}
    out["alone"] = four_ways.alone()
    return out


class Unreadable:
    """Stands where samples are read."""

    def read(self, *_):
        raise AssertionError("a stage without tokens read a sample")


def on_four(mesh):
    """Give the place on four dimensions, what is read there, and the steps of a stage that reads nothing."""
    there = tw.Topology.from_device_mesh(mesh)
    words = RUN | {"topology": there, "max_steps": 3}
    batches = list(tw.Loader(planned(), **words))
    idle = tw.Loader(planned(), read=False, **words)
    idle.node.reader = Unreadable()
    steps = [[b.info.step, b.info.micro, b.info.last, b.info.step_label_tokens] for b in batches]
    assert steps == [[b.info.step, b.info.micro, b.info.last, b.info.step_label_tokens] for b in idle]
    return {
        "place": place(there), "at": list(mesh.get_coordinate()), "steps": steps, "ids": ids(batches),
        "tokens": [[b[k].tolist() for k in ("input_ids", "position_ids")] for b in batches],
    }  # fmt: skip


def loaders(names, shape):
    there = tw.Topology.from_device_mesh(init_device_mesh("cpu", shape, mesh_dim_names=names))
    return tw.Loader(stream(), topology=there, **RUN), tw.Loader(planned(), topology=there, **RUN)


def saved(folder, world):
    a, b = loaders(("dp", "tp"), (2, world // 2))
    fresh = [sorted(x.state_dict()) for x in (a, b)]
    each = [iter(x) for x in (a, b)]
    before = [ids(islice(x, 6)) for x in each]
    states = [x.state_dict() for x in (a, b)]
    dcp.save({"stream": a, "planned": b}, checkpoint_id=folder)
    file = io.BytesIO()
    torch.save(states, file)
    file.seek(0)
    plain = torch.load(file, weights_only=True) == states
    keys = [sorted(s) for s in states] == fresh
    return {"before": before, "after": [ids(islice(x, 6)) for x in each], "same_keys": keys, "weights_only": plain}


def loaded(folder, world):
    a, b = loaders(("dp",), (world,))
    dcp.load({"stream": a, "planned": b}, checkpoint_id=folder)
    steps = [a.step, b.step]
    return {"after": [ids(islice(x, 12 // world)) for x in (a, b)], "steps": steps}


def main():
    store, rank, world, folder, what = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    told = on_meshes() if what == "mesh" else saved(folder, world) if what == "save" else loaded(folder, world)
    print(json.dumps(told), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
