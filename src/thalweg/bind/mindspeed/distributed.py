"""`DistributedIterableDataset`: the samples of one data-parallel rank, before anything is done with them.

Decides that rank r of D gets items i with i % D == r, in order. What is done with samples afterwards never moves
this border. Knows no preprocessing.
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NoReturn

from torch.utils.data import IterableDataset

from thalweg.bind.mindspeed.place import data_parallel_place
from thalweg.bind.torch.worker import Undivided, division
from thalweg.core.errors import ConfigError, StateError
from thalweg.feed.origin import IterableOrigin
from thalweg.feed.substreams import SubStreams

KIND, VERSION = "distributed", 1


class DistributedIterableDataset(IterableDataset[Any]):  # type: ignore[misc]
    """Items i of a stream with i % num_dp == dp_rank.

    Args:
        dataset: any iterable of samples; with `state_dict` its own place is carried, with `set_epoch` the epoch.
        rank: the global rank, as the FSDP2 path gives it. It is not used: tensor- and context-parallel peers have
            different ones and must read the same samples.
        num_dp: number of data-parallel ranks; None asks the parallel state.
        dp_rank: this one; None asks the parallel state.

    Raises:
        ConfigError: only one of the two numbers, a rank outside its size, or no way to know them.
    """

    def __init__(
        self, dataset: Any, rank: int | None = None, *, num_dp: int | None = None, dp_rank: int | None = None
    ) -> None:
        del rank
        if (num_dp is None) != (dp_rank is None):
            raise ConfigError("give both num_dp and dp_rank, or neither", where="DistributedIterableDataset")
        if num_dp is None or dp_rank is None:
            num_dp, dp_rank = data_parallel_place()
        if not 0 <= dp_rank < num_dp:
            raise ConfigError(f"dp_rank {dp_rank} does not fit num_dp {num_dp}", where="DistributedIterableDataset")
        self.dataset, self.num_dp, self.dp_rank = dataset, num_dp, dp_rank
        self._epoch = 0
        self._place: tuple[int, int] = (0, 0)
        self._given: list[tuple[int, int, Any]] = []
        self._source: SubStreams | None = None
        self._resumed = False

    def whole(self) -> "WholeRank":
        """Give the rank's samples undivided by DataLoader workers, for a wrapper that divides them itself."""
        return WholeRank(self)

    def __iter__(self) -> Iterator[Any]:
        """Give the rank's samples; inside a DataLoader worker that worker's share of them."""
        worker, workers = division()
        return islice(self.items(), worker, None, workers) if workers > 1 else self.items()

    def items(self) -> Iterator[Any]:
        """Give the rank's samples in order, from the place of a loaded state, else from the first."""
        if not self._resumed:
            self._place, self._given = (self._epoch, 0), []
        self._resumed = False
        source = SubStreams(IterableOrigin(Undivided(self.dataset)), self.num_dp, self._place[0] + 1)
        source.take_snapshots(self._given)
        source.restore({self.dp_rank: self._place})
        self._source = source
        for kind, _, value, token, *_ in source:
            if kind == 0:
                self._place = token
                source.forget_before({self.dp_rank: token})
                yield value

    def state_dict(self) -> dict[str, Any]:
        """Give the place after the last sample handed over."""
        source = self._source
        snapshot = None if source is None else source.snapshot_for(self.dp_rank, self._place)
        if snapshot is None:
            fit = [g for g in self._given if g[0] == self._place[0]]
            snapshot = fit[-1] if fit else None
        return {
            "kind": KIND,
            "version": VERSION,
            "num_dp": self.num_dp,
            "dp_rank": self.dp_rank,
            "place": list(self._place),
            "source": None if snapshot is None else list(snapshot),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state at the next `iter`.

        Raises:
            StateError: a state of something else, or of another rank or number of ranks.
        """
        if state.get("kind") != KIND or state.get("version", 0) > VERSION:
            raise StateError(f"a state of kind {state.get('kind')!r} was given to {KIND!r}")
        if (state["num_dp"], state["dp_rank"]) != (self.num_dp, self.dp_rank):
            raise StateError(
                f"the state is of rank {state['dp_rank']} of {state['num_dp']}, not {self.dp_rank} of {self.num_dp}",
                fix="use tw.Loader with from_stream(shards=) to continue on another number of ranks",
            )
        epoch, count = state["place"]
        self._place, self._epoch = (int(epoch), int(count)), int(epoch)
        self._given = [] if state["source"] is None else [tuple(state["source"])]
        self._resumed = True

    def set_epoch(self, epoch: int) -> None:
        """Use another order from the next `iter` on, where the source has one."""
        if epoch != self._epoch:
            self._epoch, self._resumed = epoch, False

    def __len__(self) -> NoReturn:  # noqa: PLE0303
        """Refuse: a stream has no length."""
        raise_no_length(type(self).__name__)

    def __getitem__(self, index: Any) -> NoReturn:
        """Refuse: a stream has no random access."""
        raise_no_length(type(self).__name__)


class WholeRank:
    """The samples of a `DistributedIterableDataset`, the same in every DataLoader worker."""

    def __init__(self, dataset: DistributedIterableDataset) -> None:
        self._dataset = dataset
        self.state_dict, self.load_state_dict = dataset.state_dict, dataset.load_state_dict
        self.set_epoch = dataset.set_epoch

    def __iter__(self) -> Iterator[Any]:
        """Give them."""
        return self._dataset.items()


def raise_no_length(name: str) -> NoReturn:
    """Say what a sampler that asks for a length can do instead."""
    raise TypeError(
        f"{name} is a stream without len() and [i]: samplers and dataloader_mode 'sampler' need both. "
        "Use dataloader_mode 'base' (no sampler, no shuffle), or read with streaming: false"
    )
