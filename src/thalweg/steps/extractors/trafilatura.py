"""The main text of HTML pages, by the trafilatura library, in processes that a bad page cannot take with it.

Decides what becomes of a page that takes too long, kills its process or has no text: dropped under a reason. The pages
stay in order. Knows nothing of archives.
"""

from __future__ import annotations

from abc import abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from thalweg.core.errors import ConfigError
from thalweg.steps.step import PipelineStep
from thalweg.work.ordered import OrderedMap
from thalweg.work.remote import RemoteCalls

if TYPE_CHECKING:
    from collections.abc import Iterator

    from thalweg.core.document import Document
    from thalweg.steps.step import Documents


class BaseExtractor(PipelineStep):
    """Replaces the text of each document by what `extract` makes of it.

    Args:
        timeout: seconds a page may take; then it is dropped as "timeout" and its process killed.
        workers: processes; 0 calls in this process, where nothing can be timed out.

    A subclass defines `extract(text)`. A page for which it raises is dropped as "clean_error", one without text as
    "no_text", one whose process dies as "broken_process".
    """

    type = "extractor"

    def __init__(self, timeout: float = 1, *, workers: int = 1) -> None:
        super().__init__()
        if timeout <= 0 or workers < 0:
            raise ConfigError(f"timeout={timeout} and workers={workers} do not work", fix="give a time above 0")
        self.timeout, self.workers = timeout, workers

    @abstractmethod
    def extract(self, text: str) -> str | None:
        """Give the text of a page."""

    def run(self, data: Documents, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        """Yield the documents that have a text, in order."""
        del rank, world_size
        for document, text, error in self._extracted(iter(data or ())):
            if error is not None:
                self.drop(_reason(error))
            elif not text:
                self.drop("no_text")
            else:
                document.text = text
                yield document

    def _extracted(self, data: Iterator[Document]) -> Iterator[tuple[Document, str | None, BaseException | None]]:
        if not self.workers:
            for document in data:
                try:
                    yield document, self.extract(document.text), None
                except Exception as error:  # noqa: BLE001  (any error of a page is that page's own)
                    yield document, None, error
            return
        call = _Call(type(self), self.__dict__ | {"stats": None})
        pages = OrderedMap(
            data,
            call,
            workers=self.workers,
            ahead=8 * self.workers,
            name=self.name,
            stop_on_error=False,
            timeout=self.timeout,
            make_runner=RemoteCalls(call, _words, stop_on_error=False, arena_bytes=1 << 20, name=self.name),
        )
        try:
            for turn in pages.turns():
                yield turn.item, turn.outputs[0] if turn.outputs else None, turn.error
        finally:
            pages.close()


class _Call:
    """What travels to the processes: the extractor's settings and no counts. It gets ready where it arrives."""

    def __init__(self, kind: type[BaseExtractor], state: dict[str, Any]) -> None:
        self.kind, self.state = kind, state
        self.step: BaseExtractor = object.__new__(kind)
        vars(self.step).update(state)

    def __reduce__(self) -> tuple[Any, ...]:
        return _ready, (self.kind, self.state)

    def __call__(self, document: Document) -> list[str | None]:
        return [self.step.extract(document.text)]


def _ready(kind: type[BaseExtractor], state: dict[str, Any]) -> _Call:
    """Make the call in its process and try it on nothing, so that no page's time pays for the imports."""
    call = _Call(kind, state)
    with suppress(Exception):
        call.step.extract("")
    return call


def _words(document: Document) -> str:
    return f"document {document.id!r}"


def _reason(error: BaseException) -> str:
    if "took longer than timeout" in str(error):
        return "timeout"
    return "broken_process" if type(error).__name__ == "WorkerError" else "clean_error"


class Trafilatura(BaseExtractor):
    """Takes the main text of HTML pages with `trafilatura.extract`.

    Args:
        favour_precision: less text, but the right one.
        include_images: refused; pictures have no place in plain text.
        timeout, workers: see `BaseExtractor`.
        deduplicate: leave out segments that came before in the same process.
        **kwargs: for `trafilatura.extract`.
    """

    name = "Trafilatura"
    _requires_dependencies: ClassVar[list[str | tuple[str, str]]] = ["trafilatura"]

    def __init__(
        self,
        favour_precision: bool = True,
        include_images: bool = False,
        timeout: float = 1,
        deduplicate: bool = True,
        *,
        workers: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(timeout, workers=workers)
        if include_images:
            raise ConfigError("include_images=True is not possible", fix="leave it out")
        self.favour_precision, self.deduplicate, self.kwargs = favour_precision, deduplicate, kwargs

    def extract(self, text: str) -> str | None:
        """Give the main text of a page, None where there is none."""
        from trafilatura import extract  # noqa: PLC0415  (half a second, and only in the process that works)

        found: str | None = extract(
            text,
            favor_precision=self.favour_precision,
            include_comments=False,
            deduplicate=self.deduplicate,
            **self.kwargs,
        )
        return found
