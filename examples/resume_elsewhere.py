"""FSDP2: two ranks are killed in the middle, four go on from the distributed checkpoint, with the losses of one run."""

import contextlib
import multiprocessing
import os

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import thalweg as tw

rng = np.random.default_rng(0)
rows = [{"input_ids": (1 + rng.zipf(1.5, rng.integers(5, 40)) % 96).astype(np.int32)} for _ in range(300)]
feed = tw.from_dataset(rows).shuffle().pack(64, overlong="drop").batch(1)


def train(rank, world, name, killed, losses):
    dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/{name}", rank=rank, world_size=world)
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("dp",))
    model = fully_shard(torch.nn.Sequential(torch.nn.Embedding(97, 16), torch.nn.Linear(16, 97)), mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    loader = tw.Loader(feed, topology=tw.Topology.from_device_mesh(mesh), epochs=None, max_steps=9, global_batch_size=8)
    state = {"model": model.state_dict(), "loader": loader}
    if os.path.exists("ck"):
        dcp.load(state, checkpoint_id="ck")  # in place
    for batch in loader:  # batch.info.step goes on from the checkpoint
        info, logits = batch.info, model(batch["input_ids"])
        model.set_requires_gradient_sync(info.last)
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())
        loss = loss * info.num_label_tokens / info.step_label_tokens  # its share of the step, over all ranks
        (loss * world).backward()
        losses[info.step, info.micro, rank] = loss.item()
        if info.last:
            optimizer.step()
            optimizer.zero_grad()
        if info.last and killed == "later" and info.step == 4:
            dcp.save(state, checkpoint_id="ck")
        if info.last and killed == "later" and info.step == 6:
            os.kill(os.getpid(), 9)  # no time to say goodbye


def run(world, name, killed="never"):
    with multiprocessing.Manager() as manager:
        told = world, name, killed, (losses := manager.dict())
        ranks = torch.multiprocessing.start_processes(train, told, world, join=False, start_method="fork")
        with contextlib.suppress(torch.multiprocessing.ProcessExitedException):
            while not ranks.join():
                pass
        return {s: sum(v for k, v in losses.items() if k[0] == s) for s, _, _ in losses.copy()}


if __name__ == "__main__":
    whole, first, rest = run(2, "whole"), run(2, "first", "later"), run(4, "rest")
    print(f"killed after step {max(first)}, gone on at step {min(rest)}: loss {rest[8]:.4f}, unbroken {whole[8]:.4f}")
    assert (min(rest), all(abs((first | rest)[s] - whole[s]) < 1e-4 for s in range(9))) == (5, True)
