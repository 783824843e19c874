"""A Trainer whose data are feeds: in front of any Trainer class.

Decides where a feed enters (the loaders), where its place is saved and read (the checkpoint folder), and that an
evaluation is the mean over what is in the loss, whatever the number of ranks and rows. All else is the Trainer's.
"""

from collections.abc import Mapping
from typing import Any

import torch
from transformers import TrainerCallback

from thalweg.bind.loader import Loader
from thalweg.bind.trainer import places
from thalweg.bind.trainer import settings as given
from thalweg.bind.trainer.batches import EvalBatches, TrainBatches
from thalweg.bind.trainer.standin import first_sample, stand_in
from thalweg.core.batch import Batch
from thalweg.core.errors import ConfigError
from thalweg.core.sample import INPUT_IDS
from thalweg.core.topology import Topology
from thalweg.feed.feed import Feed


def _feeds(value: Any) -> list[Feed]:
    values = list(value.values()) if isinstance(value, Mapping) else [value]
    return [v for v in values if isinstance(v, Feed)]


class _Epochs(TrainerCallback):  # type: ignore[misc]
    """Says which part of the run is done: a Trainer that resumes without a replay counts from the pass's start."""

    def __init__(self, trainer: "FeedMixin") -> None:
        self._trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Count in epochs of the run."""
        train = self._trainer.train_batches
        if train is not None:
            state.epoch = train.epochs * state.global_step / train.steps


class FeedMixin:
    """What stands before a Trainer class; see `with_feed`."""

    args: Any
    accelerator: Any
    data_collator: Any
    state: Any
    train_dataset: Any
    eval_dataset: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Make the Trainer; a feed is kept from what its constructor does to datasets."""
        train, evaluated = kwargs.get("train_dataset"), kwargs.get("eval_dataset")
        feeds = _feeds(train) + _feeds(evaluated)
        self._own_collator = kwargs.get("data_collator") is not None
        self._resume_from: str | None = None
        self._eval_made: list[tuple[Feed, EvalBatches]] = []
        self._eval_sums: list[Any] | None = None
        self.train_batches: TrainBatches | None = None
        self._stand_ins: list[Any] = []
        if feeds:
            kwargs = {**kwargs, "train_dataset": self._stood_in(train), "eval_dataset": self._stood_in(evaluated)}
        self._behind.__init__(*args, **kwargs)
        if not feeds:
            return
        for feed in feeds:
            given.check(self.args, feed)
        if isinstance(train, Feed):
            self.train_dataset = train
            self._behind.add_callback(_Epochs(self))
        if _feeds(evaluated):
            self.eval_dataset = evaluated

    @property
    def _behind(self) -> Any:
        """The Trainer class that this one stands before."""
        return super()

    def _stood_in(self, value: Any) -> Any:
        """Give what a constructor may look at: a small dataset for each feed."""
        if isinstance(value, Mapping):
            return {name: self._stood_in(v) for name, v in value.items()}
        if not isinstance(value, Feed):
            return value
        self._stand_ins.append(stand_in(value))
        return self._stand_ins[-1]

    # ---- loaders

    def _topology(self) -> Topology | str:
        mesh = getattr(self.accelerator, "torch_device_mesh", None)
        return "auto" if mesh is None else Topology.from_device_mesh(mesh)

    def _batched(self, feed: Feed, size: int, word: str) -> tuple[Feed, Any]:
        """Give the feed in batches, and the function that collates them (None: made already)."""
        multiple = getattr(self.args, "pad_to_multiple_of", None) or 1
        batches = feed.stages[-1].verb in {"batch", "bucket", "token_budget"}
        packs = any(s.verb == "pack" for s in feed.stages)
        if self._own_collator and (batches or packs):
            raise ConfigError(
                "data_collator=... in the Trainer, and the feed makes its batches itself", where="with_feed",
                fix="leave data_collator out, or say .batch(n, collate=...) in the feed",
            )  # fmt: skip
        tokens = batches or packs or (not self._own_collator and INPUT_IDS in first_sample(feed))
        collate = "hf" if tokens else self.data_collator
        whole = given.batched(feed, size, word, multiple=multiple, collate=collate)
        return given.collated_raw(whole)

    def get_train_dataloader(self) -> Any:
        """Give the passes of a run over the feed; after `resume_from_checkpoint` from its place."""
        feed = self.train_dataset
        if not isinstance(feed, Feed):
            return self._behind.get_train_dataloader()
        args = self.args
        size = getattr(self, "_train_batch_size", None) or args.per_device_train_batch_size
        whole, collate = self._batched(feed, size, "per_device_train_batch_size")
        settings = given.common(args, self._topology())
        settings["gradient_accumulation_steps"] = args.gradient_accumulation_steps
        loader, steps = given.run_length(whole, args, settings)
        if self._resume_from is not None:
            loader.load_state_dict(places.load(self._resume_from))
        epochs = float(args.num_train_epochs)
        if args.max_steps > 0:
            epochs = steps / max(1, loader.steps_per_epoch) if whole.kind == "planned" else 1.0
        self.train_batches = TrainBatches(loader, steps, epochs, lambda: int(self.state.global_step), collate)
        return self.train_batches

    def set_initial_training_values(self, args: Any, dataloader: Any, *more: Any) -> Any:
        """Count the steps of the run as the loader does: its last pass may be shorter than the others."""
        values = self._behind.set_initial_training_values(args, dataloader, *more)
        return (*values[:-1], dataloader.steps) if isinstance(dataloader, TrainBatches) else values

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Give every row of a feed once; running it leaves the training loader where it is."""
        wanted = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(wanted, str):
            wanted = self.eval_dataset[wanted]
        if not isinstance(wanted, Feed):
            return self._behind.get_eval_dataloader(eval_dataset)
        return self._evaluated(wanted)

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """Give every row of a feed once."""
        if not isinstance(test_dataset, Feed):
            return self._behind.get_test_dataloader(test_dataset)
        return self._evaluated(test_dataset)

    def _evaluated(self, feed: Feed) -> EvalBatches:
        for known, made in self._eval_made:
            if known is feed:
                return made
        whole, collate = self._batched(feed, self.args.per_device_eval_batch_size, "per_device_eval_batch_size")
        made = EvalBatches(Loader(whole, tail="pad", **given.common(self.args, self._topology())), collate)
        self._eval_made.append((feed, made))
        return made

    def num_examples(self, dataloader: Any) -> int:
        """Count rows: of a pass, or of the evaluation."""
        if isinstance(dataloader, EvalBatches) and dataloader.rows is not None:
            return dataloader.rows
        if isinstance(dataloader, TrainBatches):
            return len(dataloader) * int(self.args.per_device_train_batch_size) * dataloader.loader.topology.dp_size
        return int(self._behind.num_examples(dataloader))

    def _prepare_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """TRL's preparation: a feed is prepared, and so is what stands for it."""
        if isinstance(dataset, Feed) or any(dataset is s for s in self._stand_ins):
            return dataset
        return self._behind._prepare_dataset(dataset, *args, **kwargs)  # noqa: SLF001

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> Any:
        """Log; beside the loss of training the tokens of the last step on a rank (if any): mean, least, most."""
        if self.train_batches is not None and "loss" in logs:
            mine = torch.tensor([float(self.train_batches.step_tokens)], device=self.args.device)
            tokens = self.accelerator.gather(mine)
            found = {"avg": tokens.mean(), "min": tokens.min(), "max": tokens.max()} if tokens.any() else {}
            logs = {**logs, **{f"perf/global_seq_len_{k}": float(v) for k, v in found.items()}}
        return self._behind.log(logs, *args, **kwargs)

    # ---- checkpoints

    def _inner_training_loop(self, *args: Any, **kwargs: Any) -> Any:
        """Note where to resume from; the order is not replayed, the loader goes there."""
        resume = kwargs.get("resume_from_checkpoint", args[2] if len(args) > 2 else None)
        if not isinstance(self.train_dataset, Feed):
            return self._behind._inner_training_loop(*args, **kwargs)  # noqa: SLF001
        self._resume_from, kept = resume, self.args.ignore_data_skip
        self.args.ignore_data_skip = True
        try:
            return self._behind._inner_training_loop(*args, **kwargs)  # noqa: SLF001
        finally:
            self.args.ignore_data_skip, self._resume_from = kept, None
            if self.train_batches is not None:
                self.train_batches.loader.close()

    def _save_rng_state(self, output_dir: str) -> None:
        """Save the place of the data beside the state of random numbers: both belong to a resume."""
        self._behind._save_rng_state(output_dir)  # noqa: SLF001
        if self.train_batches is not None:
            loader = self.train_batches.loader
            planned, rank = loader.feed.kind == "planned", loader.topology.dp_rank
            places.save(output_dir, loader.state_dict(), planned=planned, rank=rank)

    # ---- evaluation

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """In an evaluation of a feed: the mean of this batch on this rank; it is weighed later."""
        if self._eval_sums is not None:
            kwargs["num_items_in_batch"] = None
        return self._behind.compute_loss(model, inputs, *args, **kwargs)

    def prediction_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Weigh the loss of a batch by its tokens in the loss, or its rows where it has no tokens."""
        info = inputs.info if isinstance(inputs, Batch) else None
        found = self._behind.prediction_step(model, inputs, *args, **kwargs)
        if self._eval_sums is None or info is None or found[0] is None:
            return found
        weight = float(info.num_label_tokens or (0 if info.num_tokens else info.weight.sum()))
        loss = found[0].detach().float().mean() if weight else torch.zeros_like(found[0].detach().float().mean())
        self._eval_sums[0] = self._eval_sums[0] + loss * weight
        self._eval_sums[1] = self._eval_sums[1] + weight
        return (loss, *found[1:])

    def evaluation_loop(self, dataloader: Any, *args: Any, **kwargs: Any) -> Any:
        """Evaluate; of a feed the loss is the mean over all tokens in the loss, on all ranks."""
        if not isinstance(dataloader, EvalBatches):
            return self._behind.evaluation_loop(dataloader, *args, **kwargs)
        self._eval_sums = [torch.zeros((), device=self.args.device), torch.zeros((), device=self.args.device)]
        try:
            output = self._behind.evaluation_loop(dataloader, *args, **kwargs)
            total, weight = self.accelerator.reduce(torch.stack(self._eval_sums), reduction="sum").tolist()
        finally:
            self._eval_sums = None
        name = f"{kwargs.get('metric_key_prefix', 'eval')}_loss"
        if weight and name in output.metrics:
            output.metrics[name] = total / weight
        return output
