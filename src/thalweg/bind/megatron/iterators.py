"""Iterators that Megatron's training loop calls `next()` on, out of feeds.

Decides how Megatron's count of consumed samples becomes a place (a row of a planned feed is one of its samples), and
that no key without a value reaches its loop, which moves every key to the device. Knows no model.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from thalweg.bind.loader import Loader
from thalweg.core.batch import Batch
from thalweg.core.errors import ConfigError
from thalweg.core.topology import Topology
from thalweg.feed import stages as st
from thalweg.feed.feed import Feed
from thalweg.feed.planned import PlannedNode

_STATE, _CALCULATOR = "megatron.core.parallel_state", "megatron.core.num_microbatches_calculator"


class RowIterator:
    """Batches without end, for `next()`; passes of a feed follow one another.

    Args:
        loader: endless.
    """

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self._running: Iterator[Batch] | None = None

    def __iter__(self) -> "RowIterator":
        """Give itself."""
        return self

    def __next__(self) -> Batch:
        """Give the next micro-batch of this rank: a dict of tensors, `.info` beside it."""
        if self._running is None:
            self._running = iter(self.loader)
        batch = next(self._running)
        return Batch({k: v for k, v in batch.items() if v is not None}, info=batch.info)

    def save_state(self) -> dict[str, str]:
        """Give the place, as Megatron's `--dataloader-save` asks for it; of a stream each rank has its own."""
        return self.loader.state_dict()

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a place; of a stream: the merged one of all ranks (`tw.merge_states`)."""
        self.loader.load_state_dict(state)
        self._running = None

    def close(self) -> None:
        """End what runs."""
        self.loader.close()


def iterators(
    feed: Feed,
    valid: Feed | None = None,
    test: Feed | None = None,
    consumed_samples: int = 0,
    *,
    state: Mapping[str, Any] | None = None,
    topology: Topology | str = "auto",
    micro_batch_size: int | None = None,
    global_batch_size: int | None = None,
    cp_layout: str | None = None,
    **options: Any,
) -> tuple[RowIterator, RowIterator | None, RowIterator | None]:
    """Give the iterators of training, validation and test, as a Megatron provider returns them.

    Set `provider.is_distributed = True`: each rank reads its own rows, and peers of a data-parallel rank the same.
    With packed rows say `micro_batch_size=1`, as Megatron does for sequences of several documents.

    Args:
        feed: training; in the dialect "megatron" whatever its `.batch` says of others.
        valid: validation; each row once a pass, passes follow one another.
        test: as `valid`.
        consumed_samples: rows of the training feed that the run has read over all ranks
            (`get_args().consumed_train_samples`); the next row is the next. Of a stream: 0, or give `state`.
        state: what `save_state` gave, instead of a count.
        topology: "auto": Megatron's groups where they are made, else as `tw.Loader`.
        micro_batch_size: rows of a micro-batch where the feed does not say; None asks Megatron.
        global_batch_size: rows of a step over all ranks; None asks Megatron.
        cp_layout: None: whole rows for context-parallel ranks, which Megatron's `get_batch` slices itself. Or a layout
            of `tw.Loader`, for loops that take slices.
        options: further words of `tw.Loader`, such as seed and workers.

    Raises:
        ConfigError: no micro-batch is said anywhere, two are, or a stream is to go to a count of samples.
    """
    place = _place(topology)
    words: dict[str, Any] = {"topology": place, "cp_layout": cp_layout, "epochs": None, **options}
    train_feed = _batched(feed, micro_batch_size)
    total = global_batch_size or _asked("get_current_running_global_batch_size")
    train = RowIterator(Loader(train_feed, tail="carry", global_batch_size=total, **words))
    if state is not None:
        train.restore_state(state)
    elif consumed_samples:
        _go_to(train.loader, consumed_samples)
    others = (None if f is None else _validation(f, micro_batch_size, words) for f in (valid, test))
    return (train, *others)  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


def _validation(feed: Feed, micro: int | None, words: dict[str, Any]) -> RowIterator:
    return RowIterator(Loader(_batched(feed, micro), tail="pad", **words))


def _place(topology: Topology | str) -> Topology | str:
    found: Any = sys.modules.get(_STATE)
    if topology == "auto" and found is not None and found.model_parallel_is_initialized():
        return Topology.from_megatron(found)
    return topology


def _asked(name: str) -> int | None:
    """Ask Megatron's calculator of micro-batches, where the job has set it up."""
    calculator: Any = sys.modules.get(_CALCULATOR)
    if calculator is None or getattr(calculator, "_GLOBAL_NUM_MICROBATCHES_CALCULATOR", None) is None:
        return None
    found = getattr(calculator, name)()
    return None if found is None else int(found)


def _batched(feed: Feed, micro: int | None) -> Feed:
    """Give the feed in Megatron's dialect, `micro` rows a micro-batch."""
    last = feed.stages[-1]
    asked = micro or _asked("get_micro_batch_size")
    if not isinstance(last, st.BATCHING):
        if asked is None:
            raise ConfigError(
                "neither the feed nor Megatron says the micro-batch", where="megatron.iterators",
                fix="micro_batch_size=, or .batch(n) in the feed",
            )  # fmt: skip
        return feed.batch(asked, collate="megatron")
    if asked is not None and isinstance(last, st.Batch) and last.size != asked:
        raise ConfigError(
            f"{last} in the feed and micro_batch_size={asked} in Megatron", where="megatron.iterators",
            fix="leave .batch out of the feed",
        )  # fmt: skip
    if last.collate == "hf":
        return Feed((*feed.stages[:-1], replace(last, collate="megatron")))
    return feed


def _go_to(loader: Loader, consumed: int) -> None:
    if not isinstance(loader.node, PlannedNode):
        raise ConfigError(
            f"a stream can't go to {consumed} consumed samples: {loader.feed.why}", where="megatron.iterators",
            fix="state=..., from save_state() of each rank and tw.merge_states",
        )  # fmt: skip
    loader.node.seek(consumed)
