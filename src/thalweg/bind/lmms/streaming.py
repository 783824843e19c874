"""`MultiModalIterableDataset`: the same configuration, packed on the way, with a place that can be saved.

Decides that a row is filled in the order of arrival until the next sample does not fit, that each epoch has an order of
its own, and how ranks and DataLoader workers share it. The walk is that of a feed.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from torch.utils.data import IterableDataset as TorchIterable

from thalweg.bind.lmms.batches import EngineCollator, Processing, collator
from thalweg.bind.lmms.config import DatasetConfig
from thalweg.bind.lmms.formats import fingerprint, open_rows
from thalweg.bind.lmms.processors import encoder_of
from thalweg.bind.torch.iterable import IterableDataset
from thalweg.bind.torch.place import agreement, topology
from thalweg.bind.torch.worker import division
from thalweg.core.errors import ConfigError
from thalweg.core.sample import IGNORE_INDEX
from thalweg.core.topology import Topology
from thalweg.encode.errors import EncodeError
from thalweg.feed.open import from_dataset

if TYPE_CHECKING:
    from thalweg.feed.feed import Feed


class MultiModalIterableDataset(TorchIterable[Any]):  # type: ignore[misc]
    """Samples, or rows of samples, one after another. `build()` before the first use.

    Args:
        config: what is read and how it is packed. `packing_strategy` is not used.
        place: of this rank; None: the process group's, where there is one.
    """

    def __init__(self, config: DatasetConfig, place: Topology | None = None) -> None:
        self.config, self._place = config, place
        self._encoder: Any = None
        self._feed: Feed | None = None
        self._inner: IterableDataset | None = None
        self._given: Mapping[str, Any] | None = None
        self._epoch = 0
        self._rows: Any = None
        self._last: Any = None

    def build(self) -> None:
        """Open the data; nothing is read but their index.

        Raises:
            InputError: nothing is there.
            ConfigError: a type, processor or format that cannot be.
        """
        config = self.config
        self._encoder, rows = encoder_of(config), open_rows(config)
        feed = from_dataset(rows, fingerprint=fingerprint(rows))
        if config.shuffle:
            feed = feed.shuffle(config.data_seed)
        feed = feed.map(
            self._encoder,
            on_error="skip",
            max_bad=config.max_bad,
            mode="threads",
            workers=config.filter_overlong_workers,
        )
        if config.filter_overlong and config.max_length:
            feed = feed.map(partial(_within, config.max_length), mode="inline")
        if config.packing:
            overlong = "drop" if config.filter_overlong else "alone"
            feed = feed.pack(config.packing_length, policy="next_fit", overlong=overlong)
        self._rows = rows
        self._feed = feed.batch(1, collate=_AsTheyAre() if config.packing else "raw")

    def _made(self) -> IterableDataset:
        if self._feed is None:
            raise ConfigError("the dataset is not built", where=type(self).__name__, fix="dataset.build() first")
        if self._inner is None:
            place = self._place if self._place is not None else topology()
            options: dict[str, Any] = {"seed": self.config.data_seed, "epochs": 1, "tail": "drop"}
            if division()[1] == 1 and place.dp_size > 1:
                options["agree"] = agreement()  # ranks end together; workers of a DataLoader cannot ask one another
            self._inner = IterableDataset(self._feed, place, **options)
            if self._epoch:
                self._inner.set_epoch(self._epoch)
        return self._inner

    def __iter__(self) -> Iterator[Any]:
        """Give one epoch: after `load_state_dict` from its place, else from the beginning of the next order."""
        inner = self._made()
        if self._given is not None:
            inner.load_state_dict(self._given)
            self._given = None
        alone = inner.topology.dp_size * division()[1] == 1
        for batch in inner:
            items = batch["items"] if self.config.packing else batch["samples"]
            if items:
                self._last = items[0]
                yield items[0]
            elif not alone:  # a record that cannot be encoded: the other ranks take a step here
                yield self._filler()

    def _filler(self) -> Any:
        """Give a sample that is out of the loss, in the place of one that cannot be encoded."""
        index = 0
        while self._last is None:
            with suppress(EncodeError):
                self._last = self._encoder(self._rows[index])
            index += 1
        labels = np.full(len(self._last["input_ids"]), IGNORE_INDEX, np.int64)
        return {**self._last, "labels": labels}

    def state_dict(self) -> dict[str, Any]:
        """Give the place after the last item handed over, as plain data."""
        return dict(self._given) if self._given is not None else self._made().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state at the next `iter`."""
        self._given = state

    def set_epoch(self, epoch: int) -> None:
        """Go to the order of an epoch at the next `iter`."""
        self._epoch = epoch
        if self._inner is not None:
            self._inner.set_epoch(epoch)

    @property
    def processor(self) -> Processing:
        """What the trainer saves beside a checkpoint."""
        return Processing(self._made_encoder())

    def get_collator(self) -> EngineCollator:
        """Give what makes a batch of items."""
        return collator(self._made_encoder(), packed=self.config.packing)

    def _made_encoder(self) -> Any:
        if self._encoder is None:
            raise ConfigError("the dataset is not built", where=type(self).__name__, fix="dataset.build() first")
        return self._encoder

    def __len__(self) -> NoReturn:
        """Refuse: how many rows there will be is not known."""
        raise TypeError(
            "a streaming dataset has no len: say max_steps in place of num_train_epochs, or use MultiModalDataset"
        )


def _within(most: int, sample: dict[str, Any]) -> dict[str, Any] | None:
    """Leave out a sample of more than `most` tokens."""
    return sample if len(sample["input_ids"]) <= most else None


class _AsTheyAre:
    """Keeps samples, or the list of samples of a row, as they are: the trainer's collator makes the batch."""

    packed = True

    def __call__(self, items: Sequence[Any]) -> dict[str, Any]:
        """Give them."""
        return {"items": list(items)}


def check_steps(max_steps: int | None, num_train_epochs: float = 1) -> None:
    """Say what a streaming run needs: max_steps; epochs above 1 mean nothing.

    Raises:
        ConfigError: max_steps is missing.
    """
    if not max_steps or max_steps < 1:
        raise ConfigError(
            "a stream has no length, so max_steps is needed", where="training arguments", fix="max_steps="
        )
    if num_train_epochs > 1:
        warnings.warn("num_train_epochs means nothing for a stream; max_steps decides", UserWarning, stacklevel=2)
