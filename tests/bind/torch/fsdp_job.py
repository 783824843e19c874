"""One rank of an FSDP2 job on the CPU. Run as fsdp_job.py STORE RANK WORLD FOLDER KILL_AT, prints a loss a step.

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
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
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


class Job:
    """Model and optimiser as one Stateful."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state):
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def main():
    store, rank, world, folder, kill = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("dp",))
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "head_dim": 16,
    }
    model = Qwen3ForCausalLM(Qwen3Config(vocab_size=97, num_key_value_heads=1, **sizes))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = tw.Loader(
        feed(), topology=tw.Topology.from_device_mesh(mesh), epochs=None, max_steps=STEPS, global_batch_size=8
    )
    state = {"job": Job(model, optimizer), "loader": loader}
    newest = max(Path(folder).glob("*/.metadata"), key=lambda p: int(p.parent.name), default=None)
    if newest is not None:
        dcp.load(state, checkpoint_id=str(newest.parent))
    total = 0.0
    for batch in loader:
        info = batch.info
        model.set_requires_gradient_sync(info.last)
        loss = model(**batch).loss * info.num_label_tokens / info.step_label_tokens
        (loss * world).backward()
        total += loss.item()
        if info.step == kill and rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        if not info.last:
            continue
        optimizer.step()
        optimizer.zero_grad()
        told = torch.tensor(total)
        dist.all_reduce(told)
        total = 0.0
        if rank == 0:
            print(json.dumps({"step": info.step, "loss": told.item(), "epoch": info.epoch}), flush=True)
        if info.step % 3 == 2:
            dcp.save(state, checkpoint_id=f"{folder}/{info.step}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
