"""A tiny model trained on a mesh of pipeline, data, context and tensor dimensions at once, on our feed.

Two stages of an embedding or a head and a block each: FSDP2 over data and context ranks, the block's matrices parted
over tensor ranks, hidden states sent from stage to stage. No token sees another, so slices of a row add up exactly.
"""

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import thalweg as tw

NAMES = ("pp", "dp", "cp", "tp")
STEPS, ROWS, LENGTH, WIDTH, WORDS = 4, 4, 64, 16, 97


def feed():
    rng = np.random.default_rng(1)
    rows = [{"input_ids": (1 + rng.zipf(1.5, rng.integers(4, 50)) % 96).astype(np.int32)} for _ in range(90)]
    return tw.from_dataset(rows).shuffle().pack(LENGTH, overlong="drop").batch(1)


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, hidden):
        return hidden + self.down(torch.tanh(self.up(hidden)))


class First(torch.nn.Module):
    """Tokens and their positions to hidden states."""

    def __init__(self):
        super().__init__()
        self.tokens, self.places = torch.nn.Embedding(WORDS, WIDTH), torch.nn.Embedding(LENGTH, WIDTH)
        self.block = Block()

    def forward(self, batch):
        return self.block(self.tokens(batch["input_ids"]) + self.places(batch["position_ids"]))


class Second(torch.nn.Module):
    """Hidden states to the summed loss; labels of slices are shifted already."""

    def __init__(self):
        super().__init__()
        self.block, self.head = Block(), torch.nn.Linear(WIDTH, WORDS)

    def forward(self, hidden, batch, *, shifted):
        logits, labels = self.head(self.block(hidden)), batch["labels"]
        if not shifted:
            logits, labels = logits[:, :-1], labels[:, 1:]
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")


def stages():
    torch.manual_seed(0)
    return First(), Second()


def alone():
    """Give the losses of the steps in one process."""
    first, second = stages()
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.5)
    loader = tw.Loader(feed(), topology=tw.Topology(), epochs=None, max_steps=STEPS, global_batch_size=ROWS)
    losses, total = [], 0.0
    for batch in loader:
        loss = second(first(batch), batch, shifted=False) / batch.info.step_label_tokens
        loss.backward()
        total += loss.item()
        if batch.info.last:
            optimizer.step()
            optimizer.zero_grad()
            losses, total = [*losses, total], 0.0
    return losses


def on_mesh(mesh):
    """Give the losses of the steps on a mesh of four dimensions, summed over all ranks."""
    pp = mesh.get_local_rank("pp")
    depth, peers = mesh["pp"].size(), dist.get_process_group_ranks(mesh.get_group("pp"))
    shards, parts = mesh["dp", "cp"]._flatten("dp_cp"), stages()
    mine = list(parts) if depth == 1 else [parts[pp]]
    for part in mine:
        parallelize_module(part.block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(part, mesh=shards)
    optimizer = torch.optim.SGD([p for part in mine for p in part.parameters()], lr=0.5)
    there = tw.Topology.from_device_mesh(mesh)
    words = {"epochs": None, "max_steps": STEPS, "global_batch_size": ROWS, "cp_layout": "zigzag_row"}
    losses, total = [], torch.zeros(())
    for batch in tw.Loader(feed(), topology=there, **words):
        for part in mine:
            part.set_requires_gradient_sync(batch.info.last)
        scale = shards.size() / batch.info.step_label_tokens
        if depth == 1:
            loss = mine[1](mine[0](batch), batch, shifted=batch.info.labels_shifted)
            (loss * scale).backward()
        elif pp == 0:
            hidden = mine[0](batch)
            dist.send(hidden.detach(), peers[1])
            back = torch.empty_like(hidden)
            dist.recv(back, peers[1])
            hidden.backward(back)
            loss = torch.zeros(())
        else:
            hidden = torch.empty(*batch["labels"].shape, WIDTH)
            dist.recv(hidden, peers[0])
            loss = mine[0](hidden.requires_grad_(), batch, shifted=batch.info.labels_shifted)
            (loss * scale).backward()
            dist.send(hidden.grad, peers[0])
        total += loss.detach() / batch.info.step_label_tokens / mesh["tp"].size()
        if batch.info.last:
            optimizer.step()
            optimizer.zero_grad()
            dist.all_reduce(total)
            losses, total = [*losses, total.item()], torch.zeros(())
    return losses
