"""Settings of other trainers as feeds to look at.

Decides that MindSpeed-MM's settings are looked at through its own datasets and loader, on rank 0 of the smallest job
that they fit, in this thread: what is looked at is what training gets. What is measured is that, with the preprocessing
of a stream as a function of the feed. What their keys mean is the business of `bind`.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from math import prod
from typing import Any

from thalweg.feed.feed import Feed

FOREIGN = ("dataset_param",)  # words at the top of other trainers' settings
SEQ_LENGTH = 4096  # tokens of a sample where the settings leave that to the command line
TOGETHER = 64  # records preprocessed at once: a look takes few
_PEERS = ("tensor_parallel_size", "ring_attention_size", "ulysses_parallel_size")


def read(path: str) -> tuple[dict[str, Feed], Any]:
    """Give the feeds of a trainer's settings by name, and their tokenizer (None: it is found in the feeds).

    Args:
        path: of a file that has one of `FOREIGN` at its top, or below `data`.

    Raises:
        ConfigError: what the settings describe cannot be read.
        InputError: a file that they name is not there.
    """
    face = import_module("thalweg.bind.mindspeed")
    config = face.load_config(path)
    if hasattr(config, "feed"):
        return {str(name): config.feed(name) for name in config.names}, None
    built = face.build_mm_dataset(
        quietly(config.dataset_param), parallel=config.parallel, rank=0,
        world=prod(int(config.parallel.get(name) or 1) for name in _PEERS),
    )  # fmt: skip
    parts = dict(zip(("train", "val"), built if isinstance(built, tuple) else (built,), strict=False))
    training, feeds = config.training, dict[str, Feed]()
    for name, part in parts.items():
        loader = face.build_mm_dataloader(
            part, config.dataloader_param, micro_batch_size=int(training.get("micro_batch_size", 1)),
            seq_length=SEQ_LENGTH if config.kind == "megatron" else None, num_workers=0,
            seed=int(training.get("seed", 42)),
        )  # fmt: skip
        feeds[name] = loader.feed
        loader.close()
        if hasattr(part, "mode"):
            part.mode = "inline"
    return feeds, parts["train"].preprocess_fn.encoder.tokenizer


def quietly(dataset_param: Mapping[str, Any]) -> dict[str, Any]:
    """Give the same data, preprocessed a few records at a time."""
    basic = dict(dataset_param.get("basic_parameters") or {})
    size = min(int(basic.get("preprocessing_batch_size") or TOGETHER), TOGETHER)
    return {**dataset_param, "basic_parameters": {**basic, "preprocessing_batch_size": size}}


def measurable(feed: Feed) -> Feed:
    """Give a feed of `read` with the preprocessing of its stream as a stage, run as the settings say; others as is."""
    dataset: Any = getattr(getattr(feed.stages[0], "make", None), "dataset", None)
    if not hasattr(dataset, "preprocess_fn"):
        return feed
    asked = dataset.preprocess_fn.param.basic.async_preprocess
    how = {"mode": "threads", "workers": dataset.num_workers} if asked else {"mode": "inline"}
    head = import_module("thalweg.feed.open").from_stream(dataset.dataset, shards=1)
    mapped = head.map(Preprocessing(dataset.preprocess_fn), remove_columns="all", **how)
    return Feed((*mapped.stages, *feed.stages[1:]))


class Preprocessing:
    """A batched function, called with one record.

    Args:
        fn: columns of records -> columns of samples.
    """

    def __init__(self, fn: Callable[[dict[str, list[Any]]], Any]) -> None:
        self.fn = fn

    def __call__(self, record: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Give the samples that it makes of a record."""
        unwrapped = import_module("thalweg.bind.mindspeed.asynchronous").unwrapped
        return list(unwrapped(self.fn({name: [value] for name, value in record.items()})))
