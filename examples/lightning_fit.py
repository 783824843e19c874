"""Lightning: a feed as its train loader, broken off after 6 steps and continued from Lightning's own checkpoint."""

import lightning.pytorch as pl
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import thalweg as tw

rng = np.random.default_rng(0)
rows = [{"input_ids": rng.integers(3, 97, rng.integers(5, 60)).astype(np.int32), "id": f"d{i}"} for i in range(300)]
feed = tw.from_dataset(rows, id="id").shuffle().pack(128, overlong="drop").batch(2)
SIZE = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}


class Module(pl.LightningModule):
    """A tiny Llama; `batch.info` says which step a batch belongs to and which documents it holds."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.model, self.seen = LlamaForCausalLM(LlamaConfig(vocab_size=97, **SIZE)), []

    def training_step(self, batch):
        """Sum the losses of the step's two micro-batches as one mean over all its tokens in the loss."""
        info = batch.info
        self.seen.append((info.step, info.ids))
        weight = 2 * info.num_label_tokens / info.step_label_tokens  # Lightning divides by the micro-batches
        return self.model(**batch).loss * weight

    def configure_optimizers(self):
        """Give the optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def fit(steps, checkpoint=None):
    """Train up to a step; give what was seen and where the checkpoint lies."""
    module = Module()
    loader = tw.bind.lightning.Loader(feed, epochs=None, gradient_accumulation_steps=2)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(max_steps=steps, accumulate_grad_batches=2, accelerator="cpu", default_root_dir=".", **quiet)
    trainer.fit(module, train_dataloaders=loader, ckpt_path=checkpoint)
    path = f"step-{steps}.ckpt"
    trainer.save_checkpoint(path)
    return module.seen, path


whole, _ = fit(10)
first, checkpoint = fit(6)
rest, _ = fit(10, checkpoint)
print(f"{len(first)} micro-batches before the break, {len(rest)} after: the same as {len(whole)} at one go")
assert first + rest == whole
