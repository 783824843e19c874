"""Filters whose rule is one line: a function, a length, a pattern, a seeded sample.

Decides the reasons under which these count. Knows no reader or writer.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from thalweg.core.errors import ConfigError
from thalweg.core.seeds import key64
from thalweg.steps.filters.base import BaseFilter, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from thalweg.core.document import Document


class LambdaFilter(BaseFilter):
    """Keeps the documents for which a function returns true.

    Args:
        filter_function: document -> bool, or (False, "reason").
        exclusion_writer: gets the dropped documents.
        **policy: on_error, max_bad, quarantine; see `ErrorPolicy`.
    """

    name = "Lambda"

    def __init__(
        self, filter_function: Callable[[Document], Verdict], exclusion_writer: Any = None, **policy: Any
    ) -> None:
        super().__init__(exclusion_writer, **policy)
        self.filter_function = filter_function

    def filter(self, doc: Document) -> Verdict:
        """Call the function."""
        return self.filter_function(doc)

    def rule(self) -> Callable[[Document], Verdict]:
        """Give the function itself: one call less for each document."""
        return self.filter_function


class LengthFilter(BaseFilter):
    """Keeps documents of `min_length` to `max_length`, both included; reasons "too_short" and "too_long".

    Args:
        min_length: smallest length.
        max_length: largest length; None for no limit.
        unit: "chars", or "words" (runs without white space).
        exclusion_writer: gets the dropped documents.
    """

    name = "Length"

    def __init__(
        self, min_length: int = 0, max_length: int | None = None, unit: str = "chars", exclusion_writer: Any = None
    ) -> None:
        super().__init__(exclusion_writer)
        if unit not in {"chars", "words"}:
            raise ConfigError(f"unit={unit!r} is unknown", fix="say 'chars' or 'words'")
        if max_length is not None and max_length < min_length:
            raise ConfigError(f"max_length {max_length} is below min_length {min_length}", fix="exchange the two")
        self.min_length, self.max_length, self.unit = min_length, max_length, unit

    def filter(self, doc: Document) -> Verdict:
        """Compare the length with both limits."""
        length = len(doc.text) if self.unit == "chars" else len(doc.text.split())
        if length < self.min_length:
            return False, "too_short"
        if self.max_length is not None and length > self.max_length:
            return False, "too_long"
        return True


class RegexFilter(BaseFilter):
    """Drops documents in which a pattern is found.

    Args:
        regex_exp: pattern, as `re` takes it.
        exclusion_writer: gets the dropped documents.
    """

    name = "Regex"

    def __init__(self, regex_exp: str, exclusion_writer: Any = None) -> None:
        super().__init__(exclusion_writer)
        self.regex = re.compile(regex_exp)

    def filter(self, doc: Document) -> Verdict:
        """Search the text."""
        return not self.regex.search(doc.text)

    @property
    def default_reason(self) -> str:
        """Name the rule."""
        return "regex"


class SamplerFilter(BaseFilter):
    """Keeps a share of the documents, drawn for each by (seed, id): the same on any rank, order or rerun.

    Args:
        rate: share to keep, 0 to 1.
        seed: another seed draws another sample; None is 0.
        exclusion_writer: gets the dropped documents.
    """

    name = "Sampler"

    def __init__(self, rate: float | None = 0.5, seed: int | None = None, exclusion_writer: Any = None) -> None:
        super().__init__(exclusion_writer)
        rate = 0.5 if rate is None else rate
        if not 0 <= rate <= 1:
            raise ConfigError(f"rate={rate} is no share", fix="give 0 to 1")
        self.rate, self.seed = rate, seed or 0
        self._below = round(rate * 2**64)

    def filter(self, doc: Document) -> Verdict:
        """Draw for this document."""
        return key64("sampler", self.seed, doc.id) < self._below

    @property
    def default_reason(self) -> str:
        """Name the rule."""
        return "sampled_out"
