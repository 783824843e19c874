"""A training job of one engine with its own package. Run as engine_job.py ENGINE FOLDER KILL_AT, prints a loss a step.

Packed rows, two micro-batches a step. Saves as the engine does, every third step; kills itself without a word behind
step KILL_AT; goes on from what FOLDER holds.
"""

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np
import torch

import thalweg as tw

STEPS, ACCUMULATION, LENGTH = 10, 2, 48
ENGINE, FOLDER, KILL = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])


def feed():
    rng = np.random.default_rng(0)
    rows = []
    for i in range(64):
        ids = (1 + rng.zipf(1.5, rng.integers(4, 40)) % 96).astype(np.int32)
        labels = ids.astype(np.int64)
        labels[: len(ids) // 3] = -100
        rows.append({"input_ids": ids, "labels": labels, "id": f"r{i}"})
    return tw.from_dataset(rows, id="id").shuffle().pack(LENGTH, overlong="drop")


class Tiny(torch.nn.Module):
    """Tokens and positions to the next token."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.places = torch.nn.Embedding(97, 16), torch.nn.Embedding(LENGTH, 16)
        self.out = torch.nn.Linear(16, 97)

    def forward(self, input_ids, labels, position_ids, **more):
        logits = self.out(torch.tanh(self.tokens(input_ids) + self.places(position_ids)))
        return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def told(step, loss):
    print(json.dumps({"step": step, "loss": float(loss)}), flush=True)


def ended(step):
    if step == KILL >= 0:
        os.kill(os.getpid(), signal.SIGKILL)


def written(state):
    torch.save(state, FOLDER / "new.pt")
    (FOLDER / "new.pt").replace(FOLDER / "state.pt")


def read():
    path = FOLDER / "state.pt"
    return torch.load(path, weights_only=ENGINE != "stateful") if path.exists() else None


def loop(batches, state_of, load):
    """Train in a plain loop over (step, last, share of the step, batch)."""
    model = Tiny()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    saved, first = read(), 0
    if saved is not None:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        load(saved["loader"])
        first = saved["step"] + 1
    total = 0.0
    for step, last, share, batch in batches(first):
        loss = model(**batch) * share
        loss.backward()
        total += loss.item()
        if not last:
            continue
        optimizer.step()
        optimizer.zero_grad()
        told(step, total)
        total = 0.0
        if step % 3 == 2:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            written({**state, "loader": state_of(), "step": step})
        ended(step)
        if step == STEPS - 1:
            return


def plain():
    loader = tw.Loader(feed().batch(2), epochs=3, max_steps=STEPS, gradient_accumulation_steps=ACCUMULATION)

    def batches(_first):
        for b in loader:
            yield b.info.step, b.info.last, b.info.num_label_tokens / b.info.step_label_tokens, b

    loop(batches, loader.state_dict, loader.load_state_dict)


def stateful():
    from torchdata.stateful_dataloader import StatefulDataLoader

    dataset = tw.bind.torch.IterableDataset(feed().batch(2), epochs=None)
    loader = StatefulDataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="fork")

    def batches(first):
        for n, b in enumerate(loader, first * ACCUMULATION):
            yield n // ACCUMULATION, n % ACCUMULATION == ACCUMULATION - 1, 1 / ACCUMULATION, b

    loop(batches, loader.state_dict, loader.load_state_dict)


def titan():
    from torchtitan.components.dataloader import BaseDataLoader

    loader = tw.bind.torchtitan.FeedDataLoader.Config(feed=feed()).build(
        dp_world_size=1, dp_rank=0, tokenizer=None, seq_len=LENGTH, local_batch_size=2, snapshot_every_n_steps=1
    )
    assert isinstance(loader, BaseDataLoader)

    def batches(first):
        for n, (inputs, labels) in enumerate(loader, first * ACCUMULATION):
            assert set(inputs) == {"input", "positions"}
            b = {"input_ids": inputs["input"], "position_ids": inputs["positions"]}
            b["labels"] = torch.nn.functional.pad(labels, (1, 0), value=-100)[:, :-1]  # the model shifts
            yield n // ACCUMULATION, n % ACCUMULATION == ACCUMULATION - 1, 1 / ACCUMULATION, b

    loop(batches, loader.state_dict, loader.load_state_dict)


def accelerate():
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATION)
    model = Tiny()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = tw.Loader(feed().batch(2), epochs=3, max_steps=STEPS, gradient_accumulation_steps=ACCUMULATION)
    model, optimizer, same = accelerator.prepare(model, optimizer, loader)
    assert same is loader  # the rows are this rank's own already: no second split
    accelerator.register_for_checkpointing(loader)
    if (FOLDER / "saved").exists():
        accelerator.load_state(str(FOLDER / "saved"))
    total = 0.0
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch) * ACCUMULATION * batch.info.num_label_tokens / batch.info.step_label_tokens
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        assert accelerator.sync_gradients == batch.info.last
        total += loss.item() / ACCUMULATION
        if batch.info.last:
            told(batch.info.step, total)
            total = 0.0
            if batch.info.step % 3 == 2:
                accelerator.save_state(str(FOLDER / "saved"))
            ended(batch.info.step)


def lightning(endless=False):
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model, self.total = Tiny(), 0.0

        def training_step(self, batch, _index):
            loss = self.model(**batch) * ACCUMULATION * batch.info.num_label_tokens / batch.info.step_label_tokens
            self.total += loss.item() / ACCUMULATION
            return loss

        def on_train_batch_end(self, _outputs, batch, _index):
            if batch.info.last:
                told(batch.info.step, self.total)
                self.total = 0.0
                if batch.info.step % 3 != 2:
                    ended(batch.info.step)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    words = {"epochs": None} if endless else {}
    loader = tw.bind.lightning.Loader(feed().batch(2), gradient_accumulation_steps=ACCUMULATION, **words)
    trainer = pl.Trainer(
        accelerator="cpu", max_steps=STEPS, accumulate_grad_batches=ACCUMULATION, logger=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=FOLDER,
        callbacks=[ModelCheckpoint(FOLDER, filename="last", every_n_train_steps=3, enable_version_counter=False)],
    )  # fmt: skip
    saved = FOLDER / "last.ckpt"
    trainer.fit(Module(), train_dataloaders=loader, ckpt_path=str(saved) if saved.exists() else None)


def trainer_args(kind, **more):
    """Give the arguments of a Trainer that saves every third step and logs every step."""
    return kind(
        str(FOLDER), per_device_train_batch_size=2, gradient_accumulation_steps=ACCUMULATION, max_steps=STEPS,
        logging_steps=1, save_steps=3, report_to=[], use_cpu=True, disable_tqdm=True, learning_rate=1e-2, **more,
    )  # fmt: skip


def trained(made):
    """Train with a Trainer, killed behind the log of a step; resumed where the folder holds a checkpoint."""
    import transformers

    class Told(transformers.TrainerCallback):
        def on_log(self, args, state, control, logs, **more):
            if "loss" in logs:
                told(state.global_step - 1, logs["loss"])

        def on_step_end(self, args, state, control, **more):
            ended(state.global_step - 2)  # behind the log of the step before

    made.add_callback(Told())
    made.train(resume_from_checkpoint=any(FOLDER.glob("checkpoint-*")))


def trainer():
    import transformers

    made = tw.bind.trainer.with_feed(transformers.Trainer)
    trained(made(tiny().model(), trainer_args(transformers.TrainingArguments), train_dataset=feed()))


def sft():
    """TRL's own SFTTrainer on real conversations, packed."""
    import trl

    from thalweg.encode import ChatEncoder

    words = tiny().small_tokenizer()
    chat = tw.from_files(str(tiny().SHARED / "data/chat/alpaca_en_demo.json")).take(60)
    chat = chat.map(ChatEncoder(words)).cache(str(FOLDER / "cache")).shuffle()
    args = trainer_args(trl.SFTConfig, max_length=160, bf16=False)
    made = tw.bind.trainer.with_feed(trl.SFTTrainer)
    trained(
        made(
            model=tiny().model(len(words)), args=args, train_dataset=chat.pack(160, overlong="drop"),
            processing_class=words,
        )
    )  # fmt: skip


def dpo():
    """TRL's own DPOTrainer on real preference pairs, with its own collator."""
    import trl

    words = tiny().small_tokenizer()
    made = tw.bind.trainer.with_feed(trl.DPOTrainer)
    args = trainer_args(trl.DPOConfig, max_length=64, bf16=False)
    models = {"model": tiny().model(len(words)), "ref_model": tiny().model(len(words))}
    pairs = tw.from_dataset(tiny().pairs(24), id="id").shuffle()
    trained(made(**models, args=args, train_dataset=pairs, processing_class=words))


def tiny():
    sys.path.insert(0, str(Path(__file__).parent / "trainer"))
    import tiny

    return tiny


if __name__ == "__main__":
    torch.set_num_threads(1)
    if ENGINE == "lightning_endless":
        lightning(endless=True)
    else:
        globals()[ENGINE]()
