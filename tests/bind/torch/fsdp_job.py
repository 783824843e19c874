"""One rank of an FSDP2 job on the CPU, with the loop of the interface page; prints a loss a step.

Run as fsdp_job.py STORE RANK WORLD FOLDER KILL_AT.

Reads 8 rows a step whatever the number of ranks; saves every third step; kills itself without a word inside the step
KILL_AT; goes on from the checkpoint in FOLDER where there is one.
"""

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import Qwen3Config, Qwen3ForCausalLM

import thalweg as tw

STEPS = 9


def feed():
    rng = np.random.default_rng(0)
    rows = []
    for i in range(160):
        n = int(rng.integers(4, 40))
        ids = (1 + rng.zipf(1.5, n) % 96).astype(np.int32)
        labels = ids.astype(np.int64)
        labels[: n // 3] = -100
        rows.append({"input_ids": ids, "labels": labels, "id": f"r{i}"})
    return tw.from_dataset(rows, id="id").shuffle().pack(48, overlong="drop").batch(1)


class Optim:
    """An optimiser as a Stateful whose state names parameters: a fresh one of torch shows no keys to load into."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self.step, self.zero_grad = optimizer.step, optimizer.zero_grad

    def state_dict(self):
        return get_optimizer_state_dict(self.model, self.optimizer)

    def load_state_dict(self, state):
        set_optimizer_state_dict(self.model, self.optimizer, optim_state_dict=state)


def tiny():
    torch.manual_seed(0)
    size = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    return Qwen3ForCausalLM(Qwen3Config(vocab_size=97, num_key_value_heads=1, head_dim=16, **size))


def main():
    store, rank, world, folder, kill = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("dp",))
    model, dp_size = tiny(), world
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optim = Optim(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    loader = tw.Loader(
        feed(), topology=tw.Topology.from_device_mesh(mesh), epochs=None, max_steps=STEPS, global_batch_size=8
    )
    newest = max(Path(folder).glob("*/.metadata"), key=lambda p: int(p.parent.name), default=None)
    total = torch.zeros(())

    state = {"model": model, "optim": optim, "loader": loader}
    if newest is not None:
        dcp.load(state, checkpoint_id=newest.parent)  # on any number of ranks
    for batch in loader:  # batch.info.step goes on from the checkpoint
        model.set_requires_gradient_sync(batch.info.last)
        loss = model(**batch).loss * batch.info.num_label_tokens / batch.info.step_label_tokens
        (loss * dp_size).backward()
        total += loss.detach()
        if batch.info.step == kill and rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        if batch.info.last:
            optim.step()
            optim.zero_grad()
            dist.all_reduce(total)
            if rank == 0:
                print(json.dumps({"step": batch.info.step, "loss": total.item()}), flush=True)
            total = torch.zeros(())
            if batch.info.step % 3 == 2:
                dcp.save(state, checkpoint_id=f"{folder}/{batch.info.step}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
