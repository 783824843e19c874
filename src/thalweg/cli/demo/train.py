"""The demo's training process: one data-parallel rank, as a user would write it.

Decides nothing about data: it takes what `tw.Loader` gives, calls `model(**batch)` and writes down what it saw. The
log of a rank is made from the tokens that arrived here (a hash of each document in the row), never from the plan.
Started by `legs` as `python -m thalweg.cli.demo.train SPEC`, with RANK and WORLD_SIZE in the environment.
"""

import json
import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import LlamaConfig, LlamaForCausalLM
from xxhash import xxh3_64_hexdigest

import thalweg as tw
from thalweg.cli.demo.feed import PAD, make_feed

# The tokenizer knows 151,669 ids. A tiny model of that width spends 9/10 of a step in its last layer, so the demo's
# model folds the ids into a smaller vocabulary inside itself; the batch stays as it is.
VOCABULARY = 8_191


def make_model(seed: int = 0) -> LlamaForCausalLM:
    """Make a randomly initialised Llama of 0.6 million parameters that takes any token id."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    model.register_forward_pre_hook(_fold, with_kwargs=True)
    return model


def _fold(module: Any, args: tuple[Any, ...], batch: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    del module
    labels = batch["labels"]
    folded = {"input_ids": batch["input_ids"] % VOCABULARY, "labels": labels.where(labels < 0, labels % VOCABULARY)}
    return args, {**batch, **folded}


def segments(batch: Any) -> list[list[Any]]:
    """Recover the documents of a packed batch from its tokens: [xxh3_64 in hex, length] of each, padding left out.

    A document begins where the position ids restart. Padding is a document of PAD alone, which no real one is.
    """
    found: list[list[Any]] = []
    for tokens, positions in zip(batch["input_ids"].numpy(), batch["position_ids"].numpy(), strict=True):
        starts = np.flatnonzero(positions == 0)
        documents = np.split(tokens.astype("<i4"), starts[1:])
        found += [[xxh3_64_hexdigest(d.tobytes()), len(d)] for d in documents if (d != PAD).any()]
    return found


def step_labels(info: Any, world: int) -> int:
    """Give the tokens in the loss over all ranks and micro-batches of the step; ranks are asked where none knows."""
    if info.step_label_tokens is not None:
        return int(info.step_label_tokens)
    count = torch.tensor(info.num_label_tokens)
    if world > 1:
        dist.all_reduce(count)
    return int(count)


def save(path: Path, model: Any, optimizer: Any, loader: Any, step: int) -> None:
    """Write a checkpoint that appears whole or not at all."""
    whole = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
    draft = path.with_suffix(".part")
    torch.save({**whole, "step": step}, draft)
    draft.replace(path)


def train(spec: dict[str, Any], rank: int, world: int, out: Path) -> None:
    """Train as the spec says; append one line a micro-batch to `out/rank-N.jsonl`."""
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=spec["learning_rate"])
    feed = make_feed(spec["pages"], spec["chat"], spec["capacity"])
    loader = tw.Loader(feed, gradient_accumulation_steps=spec["accumulation"], max_steps=spec["steps"])
    if spec["resume"]:
        saved = torch.load(spec["resume"], weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
    parallel: Any = DistributedDataParallel(model) if world > 1 else model
    with (out / f"rank-{rank}.jsonl").open("a", buffering=1) as log:
        began = time.perf_counter()
        for batch in loader:
            waited = time.perf_counter() - began
            info = batch.info
            whole_step = nullcontext() if info.last or world == 1 else parallel.no_sync()
            with whole_step:
                share = parallel(**batch).loss * (info.num_label_tokens / step_labels(info, world))
                (share * world).backward()  # data-parallel gradients are averaged: times world, they are summed
            if info.last:
                optimizer.step()
                optimizer.zero_grad()
            entry = {"step": info.step, "micro": info.micro, "loss": share.item(), "tokens": info.num_tokens}
            entry |= {"slots": batch["input_ids"].numel(), "segments": segments(batch), "wait_s": waited}
            log.write(json.dumps(entry | {"step_s": time.perf_counter() - began}) + "\n")
            if info.last:
                if (info.step + 1) % spec["save_every"] == 0:
                    if world > 1:
                        dist.barrier()  # what a checkpoint stands for is in the logs of all ranks first
                    if rank == 0:
                        save(out / f"step-{info.step + 1}.pt", model, optimizer, loader, info.step + 1)
                if rank == 0:
                    print(json.dumps({"done": info.step + 1}), flush=True)  # noqa: T201 (read by legs)
            began = time.perf_counter()


def main(path: str) -> None:
    """Read the spec, join the process group and train."""
    spec = json.loads(Path(path).read_text("utf-8"))
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)  # two ranks on two cores, and the same sums on one rank as on two
    if world > 1:
        dist.init_process_group("gloo", init_method=Path(spec["meet"]).as_uri(), rank=rank, world_size=world)
    try:
        train(spec, rank, world, Path(path).parent)
    finally:
        if world > 1:
            dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
