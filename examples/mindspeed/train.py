"""Train a few steps from a configuration of MindSpeed-MM as it stands: python train.py CONFIG [--iters 10] [--stop 4].

A run that was killed goes on from its last checkpoint. Decides the training loop; data and models are made beside it.
"""

import argparse
from pathlib import Path

import data
import models
import torch
import weights

from thalweg.bind.lmms import sequence_metrics
from thalweg.bind.mindspeed import build_mm_dataloader, build_mm_dataset, load_config

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("config")
parser.add_argument("--iters", type=int, default=10)  # at most; train_iters of the file may be fewer
parser.add_argument("--stop", type=int, default=-1)  # stands in for a kill: end after so many steps
args = parser.parse_args()

cfg = load_config(args.config)
basic, name = cfg.dataset_param["basic_parameters"], cfg.dataset_param["preprocess_parameters"]["model_name_or_path"]
models.make(name, name)
data.make(basic["dataset"], basic["dataset_dir"])
told = {"micro_batch_size": 1, "gradient_accumulation_steps": 1, "seed": 42, "lr": 1e-3, "save": "out", **cfg.training}
loader = build_mm_dataloader(
    build_mm_dataset(cfg.dataset_param, parallel=cfg.parallel), cfg.dataloader_param,
    micro_batch_size=told["micro_batch_size"], gradient_accumulation_steps=told["gradient_accumulation_steps"],
    seed=told["seed"], seq_length=4096 if cfg.kind == "megatron" else None,
)  # fmt: skip
model = weights.load(name, told.get("load"), cfg.model.get("freeze", []), told["seed"])
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=told["lr"])
parts, losses = {"model": model, "optimizer": optimizer, "loader": loader}, []
if (checkpoint := Path(told["save"]) / "checkpoint.pt").is_file():
    kept = torch.load(checkpoint, weights_only=True)
    losses = kept.pop("losses")
    for part, state in kept.items():
        parts[part].load_state_dict(state)

iters, total = min(args.iters, told.get("train_iters", args.iters)), 0.0
while len(losses) not in {iters, args.stop}:
    for batch in loader:
        loss = model(**batch, use_cache=False).loss / told["gradient_accumulation_steps"]
        loss.backward()
        total += loss.item()
        if batch.info.last:
            optimizer.step(), optimizer.zero_grad()
            losses, total = [*losses, total], 0.0
            tokens = [f"{name} {n:.0f}" for name, n in sequence_metrics(batch).items()]
            print(f"step {len(losses)}  loss {losses[-1]:.6f}", *tokens, sep="  ", flush=True)
            checkpoint.parent.mkdir(parents=True, exist_ok=True)
            state = {part: thing.state_dict() for part, thing in parts.items()}
            torch.save({**state, "losses": losses}, checkpoint.with_suffix(".new"))
            checkpoint.with_suffix(".new").replace(checkpoint)
            if len(losses) in {iters, args.stop}:
                break
loader.close()
assert len(losses) in {iters, args.stop}
