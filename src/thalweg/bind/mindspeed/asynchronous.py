"""`AsyncPreprocessIterableDataset`: one reader, many workers, one order, over an unchanged batched function.

Decides the rules of the reference document for buffer and workers, how one sample becomes a batch of one and back,
and what a state is. The map itself is the one of every stream (`feed.amap`).
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn, TypeAlias

from torch.utils.data import IterableDataset

from thalweg.bind.mindspeed.distributed import DistributedIterableDataset, raise_no_length
from thalweg.bind.torch.worker import Undivided, division
from thalweg.core.errors import SampleError, StateError
from thalweg.feed import stages as st
from thalweg.feed.amap import AMapNode
from thalweg.feed.call import EventCall
from thalweg.feed.engine import Engine
from thalweg.feed.events import END, FAIL, ITEM, KIND, TOKEN, VALUE, Event, EventNode
from thalweg.feed.origin import IterableOrigin
from thalweg.feed.substreams import SubStreams
from thalweg.feed.window import WindowNode
from thalweg.work.budget import ByteBudget
from thalweg.work.cpus import usable_cpus
from thalweg.work.percopy import for_worker
from thalweg.work.port import DONE, RESULT, Message

STATE_KIND, VERSION = "async_preprocess", 1
DEFAULT_BUFFER = 8

Hook: TypeAlias = Callable[[str, Any, Any], None]


def normalised(buffer_size: int | None, num_workers: int | None, cpus: int) -> tuple[int, int]:
    """Settle (buffer size, workers) by the document's rules.

    Neither given: 8 and at most as many workers as CPUs. Only the buffer: as many workers as it has places, at most
    as many as CPUs. Only workers: as many places as workers. Both: as given. Nothing is below 1.
    """
    if buffer_size is None and num_workers is None:
        return DEFAULT_BUFFER, max(1, min(DEFAULT_BUFFER, cpus))
    if num_workers is None:
        buffer = max(1, int(buffer_size or 0))
        return buffer, max(1, min(buffer, cpus))
    workers = max(1, int(num_workers))
    if buffer_size is None:
        return workers, workers
    return max(1, int(buffer_size)), workers


class BatchOfOne:
    """Calls a batched function with one sample: {column: [value]} in, {column: [values]} out, unwrapped again."""

    def __init__(self, fn: Callable[[dict[str, list[Any]]], Any]) -> None:
        self.fn = fn

    def __call__(self, event: Event) -> list[dict[str, Any]]:
        """Give the samples that the function makes of one; none where it gives nothing.

        Raises:
            SampleError: columns of different lengths, or something that is not a dict of lists.
        """
        return unwrapped(self.fn({name: [value] for name, value in event[VALUE].items()}))

    def for_worker(self) -> "BatchOfOne":
        """Give a call for one worker thread: tokenizers are its own."""
        fn = for_worker(self.fn)
        return self if fn is self.fn else BatchOfOne(fn)


def unwrapped(given: Any) -> list[dict[str, Any]]:
    """Give a dict of lists as a list of dicts; nothing (an empty dict, None, empty lists) as no sample.

    Raises:
        SampleError: columns of different lengths, or something that is not a dict of lists.
    """
    if not given:
        return []
    if not isinstance(given, Mapping):
        raise SampleError(
            f"preprocess_fn gave {type(given).__name__}", fix="return a dict of lists, one entry for each sample"
        )
    sizes = {name: len(values) for name, values in given.items()}
    if len(set(sizes.values())) > 1:
        raise SampleError(f"preprocess_fn gave columns of different lengths: {sizes}")
    return [{k: v[i] for k, v in given.items()} for i in range(next(iter(sizes.values())))]


class AsyncPreprocessIterableDataset(IterableDataset[dict[str, Any]]):  # type: ignore[misc]
    """Preprocess the samples of a stream in background workers, in the order of the stream.

    Works in a torch DataLoader and in torchdata's StatefulDataLoader, with or without their workers. `state_dict` is
    the place after the last sample handed over, also between two samples that came from one.

    Args:
        dataset: iterable of dict samples, sharded for this rank before it comes here.
        preprocess_fn: batched: dict of lists -> dict of lists; called with one sample at a time. Nothing (an empty
            dict, None, empty lists) drops the sample.
        buffer_size: samples between reading and hand-over; a bound, also while the first of them is slow.
        num_workers: workers. Without it, or without the buffer, see `normalised`.
        mode: "threads" | "processes" | "auto" | "inline".
        max_bytes: bytes between reading and hand-over.
        timeout: seconds a call may take.
        stall_after: seconds without any progress before an error that names who waits.
        on_message: sees ("result", index, samples), ("error", text, exception) and one ("done", None, None) for each
            worker, in the consumer's thread.
        shuffle_buffer: shuffle in seeded windows of so many samples before preprocessing, anew in each epoch; None
            keeps the order of the stream.
        seed: of the windows.

    An error of `dataset` or `preprocess_fn` is raised at its place, after all earlier samples, as itself, and
    nothing more is read. However iteration ends, no thread or process stays behind.
    """

    def __init__(
        self,
        dataset: Any,
        preprocess_fn: Callable[[dict[str, list[Any]]], Any],
        buffer_size: int | None = None,
        num_workers: int | None = None,
        *,
        mode: str = "threads",
        max_bytes: int | None = None,
        timeout: float | None = None,
        stall_after: float | None = 300.0,
        on_message: Hook | None = None,
        shuffle_buffer: int | None = None,
        seed: int = 0,
    ) -> None:
        self.dataset, self.preprocess_fn, self.mode = dataset, preprocess_fn, mode
        self.buffer_size, self.num_workers = normalised(buffer_size, num_workers, usable_cpus())
        if self.buffer_size < self.num_workers:
            warnings.warn(
                f"buffer_size={self.buffer_size} is below num_workers={self.num_workers}: some workers will have "
                "nothing to do; give num_workers to 2 * num_workers",
                UserWarning,
                stacklevel=2,
            )
        self._max_bytes, self._timeout, self._stall_after = max_bytes, timeout, stall_after
        self._on_message = on_message
        self._window, self._seed = shuffle_buffer, seed
        self._epoch = 0
        self._token: Any = None  # place after the last sample handed over; None: the beginning
        self._given: list[tuple[int, int, Any]] = []
        self._source: SubStreams | None = None
        self._node: AMapNode | None = None
        self._resumed = False
        self._division = (0, 1)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Give one pass: from the place of a loaded state right after `load_state_dict`, else from the beginning."""
        self._division = worker, workers = division()
        dataset = self.dataset
        upstream = dataset.whole() if isinstance(dataset, DistributedIterableDataset) else Undivided(dataset)
        resumed, self._resumed = self._resumed, False
        if not resumed:
            self._token, self._given = None, []
        epoch = self._epoch
        source = self._source = SubStreams(IterableOrigin(upstream), workers, epoch + 1)
        engine = Engine(
            self.mode, self.num_workers, self.buffer_size, self._stall_after, _hooked(self._on_message), chunk=1
        )
        stage = st.Map(self.preprocess_fn, mode=self.mode, timeout=self._timeout)
        budget = None if self._max_bytes is None else ByteBudget(self._max_bytes)
        taken: EventNode = source
        if self._window is not None:
            taken = WindowNode(source, self._window, (self._seed, "mindspeed"))
        node = self._node = AMapNode(self._grouped(taken), stage, self._call(), engine, budget)
        if self._token is None:
            self._token = node.first(worker, epoch)
        source.take_snapshots(self._given)
        return self._samples(node, worker)

    def _grouped(self, samples: EventNode) -> EventNode:
        """Say how many samples a call is given: one."""
        return samples

    def _call(self) -> EventCall:
        return BatchOfOne(self.preprocess_fn)

    def _samples(self, node: AMapNode, worker: int) -> Iterator[dict[str, Any]]:
        node.restore({worker: self._token})
        try:
            for event in node:
                kind = event[KIND]
                if kind == FAIL:
                    raise event[VALUE]
                if kind != END:
                    self._token = event[TOKEN]
                    if self._source is not None:
                        self._source.forget_before({worker: node.origin_of(event[TOKEN])})
                if kind == ITEM:
                    yield event[VALUE]
            self._token = None
        finally:
            node.close()

    def state_dict(self) -> dict[str, Any]:
        """Give the place after the last sample handed over, as plain data."""
        snapshot = None
        if self._token is not None and self._source is not None and self._node is not None:
            snapshot = self._source.snapshot_for(self._division[0], self._node.origin_of(self._token))
        if snapshot is None and self._token is not None and self._given:
            snapshot = self._given[-1]
        return {
            "kind": STATE_KIND,
            "version": VERSION,
            "epoch": self._epoch,
            "place": self._token,
            "source": None if snapshot is None else list(snapshot),
            "workers": self._division[1],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state at the next `iter`.

        Raises:
            StateError: a state of something else, or of another number of DataLoader workers.
        """
        if state.get("kind") != STATE_KIND or state.get("version", 0) > VERSION:
            raise StateError(f"a state of kind {state.get('kind')!r} was given to {STATE_KIND!r}")
        if "batch_size" in state and not hasattr(self, "batch_size"):
            raise StateError(f"the state is of groups of {state['batch_size']}", fix="keep async_preprocess")
        if state["workers"] != division()[1]:
            raise StateError(
                f"the state was saved with {state['workers']} DataLoader workers and this is one of {division()[1]}",
                fix="keep num_workers of the DataLoader; num_workers of this dataset may change",
            )
        self._epoch, self._token = int(state["epoch"]), state["place"]
        self._given = [] if state["source"] is None else [tuple(state["source"])]
        self._source, self._resumed = None, True

    def set_epoch(self, epoch: int) -> None:
        """Use another order from the next `iter` on, where the source has one; of the running epoch: nothing."""
        if epoch != self._epoch:
            self._epoch, self._resumed = epoch, False

    def __len__(self) -> NoReturn:  # noqa: PLE0303
        """Refuse: a stream has no length."""
        raise_no_length(type(self).__name__)

    def __getitem__(self, index: Any) -> NoReturn:
        """Refuse: a stream has no random access."""
        raise_no_length(type(self).__name__)


def _hooked(hook: Hook | None) -> Callable[[Message], None] | None:
    """Show a hook the messages in the document's words."""
    if hook is None:
        return None

    def show(message: Message) -> None:
        if message.kind == DONE:
            hook("done", None, None)
        elif message.kind == RESULT:
            for k, (item, outcome) in enumerate(zip(message.items or (), message.outcomes or (), strict=True)):
                if not isinstance(outcome, list):
                    hook("error", str(outcome.error), outcome.error)
                elif item[KIND] == ITEM:
                    hook("result", message.number + k, outcome)

    return show
