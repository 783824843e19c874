"""Accelerate: the model is prepared, the loader is not, since its rows are this rank's own already."""

import numpy as np
import torch
from accelerate import Accelerator
from transformers import LlamaConfig, LlamaForCausalLM

import thalweg as tw

rng = np.random.default_rng(0)
rows = [{"input_ids": rng.integers(3, 97, rng.integers(5, 60)).astype(np.int32), "id": f"d{i}"} for i in range(300)]
feed = tw.from_dataset(rows, id="id").shuffle().pack(128, overlong="drop").batch(2)
SIZE = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}


def train(steps, saved=None):
    """Train up to a step, from a checkpoint folder where one is named; give the losses by step."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=97, **SIZE))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = tw.Loader(
        feed, epochs=None, max_steps=steps, gradient_accumulation_steps=2, device=accelerator.device
    )  # fmt: skip
    model, optimizer = accelerator.prepare(model, optimizer)
    accelerator.register_for_checkpointing(loader)
    if saved:
        accelerator.load_state(saved)
    losses = {}
    for batch in loader:
        info = batch.info
        with accelerator.accumulate(model):
            weight = 2 * info.num_label_tokens / info.step_label_tokens  # accelerate divides by the micro-batches
            loss = model(**batch).loss * weight
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        losses[info.step] = losses.get(info.step, 0.0) + loss.item() / 2
    accelerator.save_state(f"step-{steps}")
    return losses


whole = train(10)
first = train(6)
rest = train(10, "step-6")
assert list(rest) == [6, 7, 8, 9]
print("losses of 6 steps, a break and 4 steps: as at one go")
assert all(abs(whole[step] - loss) < 1e-4 for step, loss in (first | rest).items())
