"""Inside a torch DataLoader worker: which part is this worker's, and how a source is kept from dividing itself too.

Decides that items are dealt to workers one by one, so that with a batch size of 1 the order is that of no worker at
all. Knows no dataset of ours.
"""

from collections.abc import Iterator
from threading import Lock
from typing import Any

from torch.utils.data import get_worker_info
from torch.utils.data._utils import worker as torch_worker

_hiding = Lock()


def division() -> tuple[int, int]:
    """Give (this worker, number of workers); (0, 1) outside a DataLoader worker."""
    info = get_worker_info()
    return (0, 1) if info is None else (int(info.id), int(info.num_workers))


class Hidden:
    """Hides the DataLoader worker from a source that would divide its files by it, inside a `with`.

    `datasets.IterableDataset` gives each worker some of its files and the others none, so the order would change
    with the number of workers; here items are dealt instead.
    """

    def __enter__(self) -> None:
        """Hide it."""
        _hiding.acquire()
        self._kept = torch_worker._worker_info  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        torch_worker._worker_info = None  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]

    def __exit__(self, *error: object) -> None:
        """Show it again."""
        torch_worker._worker_info = self._kept  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        _hiding.release()


class Undivided:
    """A source that gives all its items in any worker; its state and epoch are its own.

    Args:
        source: an iterable of samples.
    """

    def __init__(self, source: Any) -> None:
        self._source = source
        if hasattr(source, "state_dict") and hasattr(source, "load_state_dict"):
            self.state_dict, self.load_state_dict = source.state_dict, source.load_state_dict
        if hasattr(source, "set_epoch"):
            self.set_epoch = source.set_epoch

    def __iter__(self) -> Iterator[Any]:
        """Give all items."""
        with Hidden():
            items = iter(self._source)
            first = list(_some(items, 1))
        yield from first
        yield from items


def _some(items: Iterator[Any], n: int) -> Iterator[Any]:
    for _ in range(n):
        try:
            yield next(items)
        except StopIteration:
            return
