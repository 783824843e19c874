"""The protocol of an offline step, and a base class that adds counts, times and a check of dependencies.

A step is any callable `(data, rank, world_size) -> iterator`; an iterable of documents is legal as the first one.
Decides what a step may say about itself. Knows no executor: who counts what goes in and out is not the step.
"""

from abc import ABC
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from importlib.util import find_spec
from inspect import signature
from time import perf_counter
from types import TracebackType
from typing import Any, ClassVar, Self, TypeAlias

from thalweg.core.document import Document, Media
from thalweg.core.errors import MissingExtraError
from thalweg.core.stats import Metric, StepStats

Documents: TypeAlias = Iterable[Any] | None
Step: TypeAlias = Callable[[Any, int, int], Any]


class Timer(AbstractContextManager["Timer"]):
    """Adds the seconds of each `with` block to a metric."""

    def __init__(self, metric: Metric) -> None:
        self.metric, self.began = metric, 0.0

    def __enter__(self) -> Self:
        """Begin."""
        self.began = perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """End, also on an error."""
        self.metric.update(perf_counter() - self.began)


class PipelineStep(ABC):
    """Base class of the steps that come with thalweg; any callable of the same shape works as well.

    Class attributes:
        name: what the step is called in tables.
        type: "reader", "filter", "writer", ...
        _requires_dependencies: modules, or (module, pip package) pairs, checked along the class hierarchy when an
            object is built.
        progress: (documents, bytes) read so far, replaced as a whole so that another thread may look.
    """

    name: str = ""
    type: str = "step"
    _requires_dependencies: ClassVar[list[str | tuple[str, str]]] = []
    takes_batches: bool = False

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Check dependencies and remember the arguments, from which a run's manifest is made."""
        check_dependencies(cls)
        step = super().__new__(cls)
        step.arguments = _bind(cls, args, kwargs)
        return step

    def __init__(self) -> None:
        super().__init__()
        self.stats = StepStats(self.name or type(self).__name__)
        self.progress = (0, 0)

    arguments: dict[str, Any]

    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, Any]]:
        """Pickle without the constructor's arguments: the state holds all."""
        return (), {}

    def stat_update(self, *labels: str, value: float = 1, unit: str | None = None) -> None:
        """Add `value` to the metric of each label."""
        for label in labels:
            self.stats[label].update(value, unit)

    def update_doc_stats(self, document: Document) -> None:
        """Count a document's length in characters, and in tokens where its metadata say so."""
        self.stat_update("doc_len", value=len(document.text), unit="doc")
        if tokens := document.metadata.get("token_count"):
            self.stat_update("doc_len_tokens", value=tokens, unit="doc")

    def update_media_stats(self, media: Media) -> None:
        """Count the bytes of one picture or clip."""
        self.stat_update("media_size", value=len(media.media_bytes or b""), unit="bytes")

    def track_time(self, unit: str | None = None) -> Timer:
        """Give a context manager that adds the seconds of its block to `time_stats`."""
        if unit:
            self.stats.time_stats.unit = unit
        return Timer(self.stats.time_stats)

    def drop(self, reason: str, n: int = 1) -> None:
        """Count documents that do not go on, under a reason."""
        self.stats.tally.drop(reason, n)

    def run(self, data: Documents, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        """Yield what goes on; the default lets everything pass."""
        del rank, world_size
        if data:
            yield from data

    def __call__(self, data: Documents = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        """Call `run`; nothing is read before the result is walked."""
        return self.run(data, rank, world_size)

    def __repr__(self) -> str:
        """Show the class and the arguments it was built with."""
        shown = ", ".join(f"{k}={v!r}" for k, v in self.arguments.items())
        return f"{type(self).__name__}({shown})"


def _bind(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    try:
        return dict(signature(cls).bind(*args, **kwargs).arguments)
    except (TypeError, ValueError):  # wrong arguments: the constructor's own error is the better one
        return {}


def check_dependencies(cls: type) -> None:
    """Look for the modules that a step class and its bases name.

    Raises:
        MissingExtraError: one is missing; the message has the pip command.
    """
    missing: dict[str, str] = {}
    for base in cls.mro():
        for entry in vars(base).get("_requires_dependencies", ()):
            module, package = (entry, entry) if isinstance(entry, str) else entry
            if find_spec(module.partition(".")[0]) is None:
                missing[module] = package
    if missing:
        names = ", ".join(sorted(missing))
        command = "pip install " + " ".join(sorted(set(missing.values())))
        raise MissingExtraError(f"{cls.__name__} needs {names}, which is not installed", fix=command)
