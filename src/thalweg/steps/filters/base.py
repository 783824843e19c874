"""What all filters share: a verdict for each document, counted reasons, an exclusion writer, an error policy.

Decides what a verdict may be. Knows no rule.
"""

from __future__ import annotations

from abc import abstractmethod
from contextlib import nullcontext
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

from thalweg.core.errors import ConfigError, ThalwegError
from thalweg.steps.policy import ErrorPolicy, OnError
from thalweg.steps.step import PipelineStep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from thalweg.core.document import Document
    from thalweg.steps.folder import FolderLike
    from thalweg.steps.step import Documents

Verdict: TypeAlias = "bool | tuple[bool, str]"


class BaseFilter(PipelineStep):
    """Lets documents pass or drops them with a reason.

    Args:
        exclusion_writer: a writer that gets the dropped documents, the reason in `metadata["filter_reason"]`.
        batch_size: documents a call of `filter_batch`; 1 calls `filter`.
        on_error, max_bad, quarantine: what to do with a document for which the filter raises; see `ErrorPolicy`.

    A subclass defines `filter(doc)`, which returns True to keep, False to drop, or (False, "reason").
    """

    type = "filter"

    def __init__(
        self,
        exclusion_writer: Any = None,
        batch_size: int = 1,
        *,
        on_error: OnError = "fail",
        max_bad: float = 0.01,
        quarantine: FolderLike | None = None,
    ) -> None:
        super().__init__()
        if batch_size < 1:
            raise ConfigError(f"batch_size={batch_size} is no size", fix="give 1 or more")
        self.exclusion_writer = exclusion_writer
        self.batch_size = batch_size
        self.policy = ErrorPolicy(on_error, max_bad, quarantine)

    @abstractmethod
    def filter(self, doc: Document) -> Verdict:
        """Say whether one document is kept."""

    def rule(self) -> Callable[[Document], Verdict]:
        """Give the function that decides; a filter that only wraps one gives it directly."""
        return self.filter

    def filter_batch(self, batch: list[Document]) -> list[Verdict]:
        """Say for each document of a batch whether it is kept."""
        return list(map(self.filter, batch))

    def run(self, data: Documents, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        """Yield the documents that are kept."""
        del world_size
        self._seen = 0
        with self.exclusion_writer or nullcontext():
            walk = self._one_by_one if self.batch_size == 1 else self._in_batches
            yield from walk(iter(data or ()), rank)
        self.policy.settle(self._seen)

    def _one_by_one(self, data: Iterator[Document], rank: int) -> Iterator[Document]:
        decide, seen = self.rule(), 0
        for doc in data:
            seen += 1
            try:
                verdict = decide(doc)
            except Exception as error:  # noqa: BLE001  (any error of a rule follows the policy)
                self._fail(error, doc, rank, seen)
                continue
            if verdict is True or self._passes(verdict, doc, rank):
                yield doc
        self._seen = seen

    def _in_batches(self, data: Iterator[Document], rank: int) -> Iterator[Document]:
        while batch := list(islice(data, self.batch_size)):
            self._seen += len(batch)
            try:
                verdicts = self.filter_batch(batch)
            except Exception as error:  # noqa: BLE001  (any error of a rule follows the policy)
                for doc in batch:
                    self._fail(error, doc, rank, self._seen)
                continue
            for doc, verdict in zip(batch, verdicts, strict=True):
                if self._passes(verdict, doc, rank):
                    yield doc

    def _passes(self, verdict: Any, doc: Document, rank: int) -> bool:
        keep, reason = verdict if isinstance(verdict, tuple) else (verdict, None)
        if keep:
            return True
        self.stats.tally.dropped[reason or self.default_reason] += 1
        if self.exclusion_writer is not None:
            if reason:
                doc.metadata["filter_reason"] = reason
            self.exclusion_writer.write(doc, rank)
        return False

    @property
    def default_reason(self) -> str:
        """The reason under which documents are dropped when the filter gives none."""
        return "filtered"

    def _fail(self, error: Exception, doc: Document, rank: int, seen: int) -> None:
        if self.policy.on_error == "fail":
            error.add_note(f"while {type(self).__name__} looked at document {doc.id!r}")
            raise error
        if isinstance(error, ThalwegError) and error.code == "TW410":
            raise error
        self.policy.take(
            self.stats, rank, reason="filter_error", where=doc.id, seen=seen, error=error, item=doc.text
        )  # fmt: skip
