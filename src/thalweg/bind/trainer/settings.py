"""What `args` and the feed say of the same thing, and the loader that follows from both.

Decides which of `TrainingArguments` reach the loader, which are refused because the feed says it (each by name, with
the place where it belongs), and how many steps a run has. Knows no model.
"""

import math
from dataclasses import fields, replace
from typing import Any

from thalweg.bind.loader import Loader
from thalweg.core.errors import ConfigError
from thalweg.core.topology import Topology
from thalweg.feed import stages as st
from thalweg.feed.feed import Feed

# Words of args that prepare data: with a feed they would do nothing, so each is refused where it is not its default.
_ELSEWHERE = {
    "packing": ".pack(capacity) in the feed",
    "eval_packing": ".pack(capacity) in the feed",
    "padding_free": '.batch(n, pad="none") in the feed',
    "assistant_only_loss": 'ChatEncoder(train_on="assistant") in the feed',
    "completion_only_loss": 'ChatEncoder(train_on="last") in the feed',
    "dataset_text_field": "ChatEncoder(columns=...) or TextEncoder(text=...) in the feed",
    "dataset_kwargs": "the feed's own verbs",
    "dataset_num_proc": ".map(workers=...) in the feed",
    "shuffle_dataset": ".shuffle() in the feed",
    "chat_template_path": "ChatEncoder(chat_template=...) in the feed",
    "group_by_length": ".group_by_length() in the feed",
    "precompute_ref_log_probs": "a .map(...).cache() in the feed that adds ref_chosen_logps and ref_rejected_logps",
}


def check(args: Any, feed: Feed) -> None:
    """Refuse what `args` and the feed say with two values.

    Raises:
        ConfigError: names the argument, its value and the other place.
    """
    defaults = {f.name: f.default for f in fields(args)}
    for name, there in _ELSEWHERE.items():
        value = getattr(args, name, None)
        if name in defaults and value != defaults[name] and value not in (None, False):
            raise ConfigError(f"{name}={value!r} would do nothing: the data is a feed", where="args", fix=there)
    strategy = getattr(args, "train_sampling_strategy", "random")
    if strategy != "random":
        raise ConfigError(
            f"train_sampling_strategy={strategy!r}, and the order is the feed's", where="args",
            fix="leave it out; .shuffle() or .group_by_length() in the feed",
        )  # fmt: skip
    accelerator = getattr(args, "accelerator_config", None)
    for name in ("split_batches", "dispatch_batches"):
        if getattr(accelerator, name, None):
            raise ConfigError(
                f"{name}=True would divide batches that are each rank's own already", where="args.accelerator_config",
                fix=f"leave {name} out",
            )  # fmt: skip
    _check_length(args, feed, defaults)
    seeds = [s.seed for s in feed.stages if isinstance(s, st.Shuffle) and s.seed is not None]
    if args.data_seed is not None and seeds and seeds[0] != args.data_seed:
        raise ConfigError(
            f"data_seed={args.data_seed} in args and shuffle({seeds[0]}) in the feed", fix="say it in one of the two"
        )


def _check_length(args: Any, feed: Feed, defaults: dict[str, Any]) -> None:
    """SFT's `max_length` would cut samples; a feed's rows have a length of their own."""
    if "packing" not in defaults or args.max_length in (None, defaults.get("max_length")):
        return
    pack = next((s for s in feed.stages if isinstance(s, st.Pack)), None)
    if pack is None or pack.capacity != args.max_length:
        other = "the feed has rows of their own length" if pack is None else f"the feed packs rows of {pack.capacity}"
        raise ConfigError(
            f"max_length={args.max_length} in args, and {other}", fix="ChatEncoder(max_length=...) or .pack(capacity)"
        )


def batched(feed: Feed, size: int, word: str, *, multiple: int = 1, collate: Any = "hf") -> Feed:
    """Give the feed with its batching stage: its own where it has one, else `.batch(size)`.

    Args:
        feed: as the user gave it.
        size: rows of a micro-batch, from args.
        word: of args that says it, for the error.
        multiple: pad_to_multiple_of of args.
        collate: dialect or function, where the feed has no batching stage.

    Raises:
        ConfigError: the feed batches another number of rows (a ramp: none of its numbers).
    """
    there = next((s for s in feed.stages if isinstance(s, st.BATCHING)), None)
    if there is None:
        return feed.batch(size, pad_to_multiple_of=multiple, collate=collate)
    sizes = there.sizes if isinstance(there, st.Batch) else [size]
    if size not in sizes:
        raise ConfigError(
            f"{there} in the feed and {word}={size} in args", where="with_feed",
            fix=f"leave .batch out of the feed, or say {word}={max(sizes)}",
        )  # fmt: skip
    return feed


def collated_raw(feed: Feed) -> tuple[Feed, Any]:
    """Take a collate function out of a feed: (feed that gives samples, the function), or (feed, None).

    A function sees the real samples only, so that the last batch of an evaluation is exact.
    """
    last = feed.stages[-1]
    if isinstance(last, st.Batch) and callable(last.collate):
        return Feed((*feed.stages[:-1], replace(last, collate="raw"))), last.collate
    return feed, None


def run_length(feed: Feed, args: Any, settings: dict[str, Any]) -> tuple[Loader, int]:
    """Make the loader of a training run, and count its optimiser steps.

    Raises:
        ConfigError: a stream, and `max_steps` is not said.
    """
    tail = "drop" if args.dataloader_drop_last else "carry"
    if args.max_steps > 0:
        return Loader(feed, epochs=None, max_steps=args.max_steps, tail=tail, **settings), int(args.max_steps)
    if feed.kind != "planned":
        raise ConfigError(f"a stream has no length: {feed.why}", where="args", fix="say max_steps=")
    whole = int(args.num_train_epochs)
    if whole == args.num_train_epochs:
        loader = Loader(feed, epochs=whole, tail=tail, **settings)
        return loader, len(loader) // args.gradient_accumulation_steps
    loader = Loader(feed, epochs=None, tail=tail, **settings)
    steps = math.ceil(args.num_train_epochs * loader.steps_per_epoch)
    loader.close()
    return Loader(feed, epochs=None, max_steps=steps, tail=tail, **settings), steps


def common(args: Any, topology: Topology | str) -> dict[str, Any]:
    """Give the words of a loader that follow from `args`."""
    workers = args.dataloader_num_workers
    return {
        "topology": topology,
        "seed": args.seed if args.data_seed is None else args.data_seed,
        "workers": "auto" if workers == 0 else workers,
        "return_tensors": "pt",
        "device": None if args.device.type == "cpu" else args.device,
    }
