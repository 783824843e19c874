"""Settings of other trainers as feeds to look at.

Decides that MindSpeed-MM's settings are looked at through its own datasets and loader, on rank 0 of the smallest job
that they fit, in this thread: what is looked at is what training gets. What their keys mean is the business of `bind`.
"""

from collections.abc import Mapping
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
    return feeds, parts["train"].preprocess_fn.encoder.tokenizer


def quietly(dataset_param: Mapping[str, Any]) -> dict[str, Any]:
    """Give the same data, preprocessed in this thread and a few records at a time."""
    basic = dict(dataset_param.get("basic_parameters") or {})
    size = min(int(basic.get("preprocessing_batch_size") or TOGETHER), TOGETHER)
    basic |= {"preprocessing_batch_size": size}
    if basic.get("streaming"):
        basic["async_preprocess"] = False
        basic.pop("async_preprocess_buffer_size", None)
    return {**dataset_param, "basic_parameters": basic}
