"""A feed as a torch `IterableDataset`, for DataLoader and torchdata's StatefulDataLoader.

Decides how sub-streams are dealt to DataLoader workers; batches, order and state are those of the feed's loader.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NoReturn

import cloudpickle
from torch.utils.data import IterableDataset as TorchIterable

from thalweg.bind.torch.worker import Undivided, division
from thalweg.core.errors import ConfigError, StateError
from thalweg.core.topology import Topology
from thalweg.feed import stages as st
from thalweg.feed.feed import Feed
from thalweg.feed.loader import FeedLoader


class IterableDataset(TorchIterable[Any]):  # type: ignore[misc]
    """Gives a feed's batches inside a torch loader; say `batch_size=None` there, for the feed makes batches.

    With `num_workers=W` each worker is a rank of its own: worker w of rank r takes what rank r * W + w of D * W would
    take, so every row comes once. A stream then needs `from_stream(shards=)` divisible by D * W. Fewer copies of the
    work, and one order for any W, has `tw.Loader`, whose workers are inside.

    Args:
        feed: planned or stream.
        topology: the place of this process; None is a job of one.
        options: keywords of `tw.Loader`: seed, epochs, tail, workers, ...

    Raises:
        ConfigError: `options` name something that a torch loader decides.
    """

    def __init__(self, feed: Feed, topology: Topology | None = None, **options: Any) -> None:
        for name in ("device", "return_tensors", "ledger"):
            if name in options:
                raise ConfigError(f"{name}= is the business of the torch loader here", where="IterableDataset")
        self.feed, self.topology, self.options = feed, topology or Topology(), options
        self._loader: FeedLoader | None = None
        self._given: Mapping[str, Any] | None = None
        self._epoch = 0

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel to DataLoader workers however they start: lambdas, closures and functions of a notebook too.

        Raises:
            ConfigError: the feed holds something that cannot be sent (an open file, a generator).
        """
        place = None if self._given is None else dict(self._given)
        try:
            sent = cloudpickle.dumps((self.feed, self.topology, self.options, place, self._epoch))
        except Exception as error:  # user objects may raise anything
            raise ConfigError(
                f"the feed can't be sent to a worker process: {error}", where="IterableDataset",
                fix="give a function that opens what can't travel, say num_workers=0, or use tw.Loader",
            ) from error  # fmt: skip
        return self._arrived, (sent,)

    @classmethod
    def _arrived(cls, sent: bytes) -> "IterableDataset":
        """Make the dataset again in a worker."""
        feed, topology, options, place, epoch = cloudpickle.loads(sent)
        made = cls(feed, topology, **options)
        made._given, made._epoch = place, epoch
        return made

    def _made(self) -> FeedLoader:
        worker, workers = division()
        place = self.topology
        here = Topology(dp_rank=place.dp_rank * workers + worker, dp_size=place.dp_size * workers)
        return FeedLoader(_undivided(self.feed), topology=here, **self.options)

    def __iter__(self) -> Iterator[Any]:
        """Give one `for` of the feed: after `load_state_dict` from its place."""
        if self._loader is None:
            self._loader = self._made()
            if self._given is None and self._epoch:
                self._loader.set_epoch(self._epoch)
        if self._given is not None:
            self._loader.load_state_dict(dict(self._given["loader"]))
            self._given = None
        for batch in self._loader:
            yield dict(batch)

    def state_dict(self) -> dict[str, Any]:
        """Give the place after the last batch handed over."""
        if self._given is not None:
            return dict(self._given)
        made = self._made() if self._loader is None else self._loader
        state = {"kind": "torch_iterable", "workers": division()[1], "loader": made.state_dict()}
        if made is not self._loader:
            made.close()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state at the next `iter`.

        Raises:
            StateError: a state of something else, or of another number of DataLoader workers.
        """
        if state.get("kind") != "torch_iterable":
            raise StateError(f"a state of kind {state.get('kind')!r} was given to 'torch_iterable'")
        if state["workers"] != division()[1]:
            raise StateError(
                f"the state was saved with {state['workers']} DataLoader workers and this is one of {division()[1]}",
                fix="keep num_workers; tw.Loader has no such limit",
            )
        self._given = state

    def set_epoch(self, epoch: int) -> None:
        """Go to an epoch at the next `iter`; of the running one: nothing."""
        self._epoch = epoch
        if self._loader is not None:
            self._loader.set_epoch(epoch)

    def close(self) -> None:
        """End threads and processes. Twice is fine."""
        made, self._loader = self._loader, None
        if made is not None:
            made.close()

    def __len__(self) -> NoReturn:
        """Refuse: a DataLoader would take the number of batches for that of samples."""
        raise TypeError("this dataset gives batches and has no len: ask len(tw.Loader(feed)), and drop the sampler")


def _undivided(feed: Feed) -> Feed:
    """Keep a stream's sources from dividing themselves by DataLoader worker too."""
    head = feed.stages[0]
    if division()[1] == 1:
        return feed
    if isinstance(head, st.Concat | st.Mix):
        return Feed((replace(head, feeds=tuple((n, _undivided(f)) for n, f in head.feeds)), *feed.stages[1:]))
    if not isinstance(head, st.FromStream) or not hasattr(head.make, "__iter__"):
        return feed
    return Feed((replace(head, make=Undivided(head.make)), *feed.stages[1:]))
