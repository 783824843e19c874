"""Other systems' ways to map a stream in the background in order, and the reference document's algorithm."""

import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from harness import Work
from stream_work import CALLS, running, work

# ---- the reference document's algorithm, written for this comparison


def reference(call: str, workers: int, **more: Any) -> Callable[[Path, Mapping[str, Any]], Work]:
    """One producer, a task queue, workers, a result queue, results held by number; waits poll every 0.1 s."""

    def start(_folder: Path, size: Mapping[str, Any]) -> Work:
        fn = CALLS[call]

        def make() -> Iterable[Any]:
            tasks: queue.Queue[Any] = queue.Queue(workers)
            results: queue.Queue[Any] = queue.Queue(64)
            stop = threading.Event()

            def put(where: queue.Queue[Any], value: Any) -> None:
                while not stop.is_set():
                    try:
                        where.put(value, timeout=0.1)
                    except queue.Full:
                        continue
                    return

            def produce() -> None:
                for number, item in enumerate(range(size["items"])):
                    put(tasks, (number, item))
                for _ in range(workers):
                    put(tasks, None)

            def consume() -> None:
                while (task := tasks.get()) is not None:
                    put(results, ("result", task[0], [fn(task[1])]))
                put(results, ("done", None, None))

            threads = [threading.Thread(target=produce), *(threading.Thread(target=consume) for _ in range(workers))]
            for thread in threads:
                thread.start()
            pending: dict[int, list[Any]] = {}
            finished = number = 0
            while finished < workers or pending:
                kind, index, payload = results.get() if finished < workers else ("done", None, None)
                if kind == "done":
                    finished += 1
                else:
                    pending[index] = payload
                while number in pending:
                    yield from pending.pop(number)
                    number += 1
            for thread in threads:
                thread.join()

        return work(make, **more)

    return start


# ---- peers


def nodes(call: str, workers: int, method: str = "thread", **more: Any) -> Callable[[Path, Mapping[str, Any]], Work]:
    def start(_folder: Path, size: Mapping[str, Any]) -> Work:
        import torchdata.nodes as tn

        fn = CALLS[call]

        def make() -> Iterable[Any]:
            node = tn.IterableWrapper(range(size["items"]))
            return tn.Loader(tn.ParallelMapper(node, fn, num_workers=workers, in_order=True, method=method))

        return work(make, **more)

    return start


def spdl(call: str, workers: int, **more: Any) -> Callable[[Path, Mapping[str, Any]], Work]:
    def start(_folder: Path, size: Mapping[str, Any]) -> Work:
        from spdl.pipeline import PipelineBuilder

        fn = CALLS[call]

        def make() -> Iterable[Any]:
            built = (
                PipelineBuilder().add_source(range(size["items"]))
                .pipe(fn, concurrency=workers, output_order="input").add_sink(64).build(num_threads=workers + 1)
            )  # fmt: skip
            with built.auto_stop():
                yield from built.get_iterator(timeout=60)

        return work(make, **more)

    return start


def grain(call: str, workers: int, **more: Any) -> Callable[[Path, Mapping[str, Any]], Work]:
    def start(_folder: Path, size: Mapping[str, Any]) -> Work:
        import grain as g

        fn = CALLS[call]
        options = g.ReadOptions(num_threads=workers, prefetch_buffer_size=64)
        return work(lambda: g.MapDataset.range(size["items"]).map(fn).to_iter_dataset(options), **more)

    return start


def torch_loader(
    call: str, workers: int = 2, batch: int | None = None, of: Callable[[Any], int] = int, *, started: bool = True
) -> Any:
    def start(_folder: Path, size: Mapping[str, Any]) -> Work:
        from torch.utils.data import DataLoader

        n = size["items"]

        def make() -> Iterable[Any]:
            dl = DataLoader(
                Mapped(n, CALLS[call]), batch_size=batch, num_workers=workers, collate_fn=list if batch else keep,
                prefetch_factor=8,
            )  # fmt: skip
            return (x for b in dl for x in b) if batch else dl

        return running(make(), of) if started else work(make, of=of)

    return start


def keep(x: Any) -> Any:
    return x


class Mapped:
    """A map-style dataset."""

    def __init__(self, n: int, fn: Callable[[int], Any]) -> None:
        self.n, self.fn = n, fn

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> Any:
        if i >= self.n:
            raise IndexError(i)
        return self.fn(i)
