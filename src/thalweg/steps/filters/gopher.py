"""The quality and repetition rules of Gopher.

Decides with counts of words, lines and n-grams, in the order in which the reasons are given. Source: Rae et al. 2021,
"Scaling Language Models", appendix A.1 and table A1 (arXiv 2112.11446).
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from thalweg.steps.filters.base import BaseFilter, Verdict
from thalweg.steps.filters.words import has_letter, is_punctuation, splitter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from thalweg.core.document import Document

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
TOP = ((2, 0.2), (3, 0.18), (4, 0.16))
DUPLICATE = ((5, 0.15), (6, 0.14), (7, 0.13), (8, 0.12), (9, 0.11), (10, 0.10))
_PARAGRAPHS, _LINES = re.compile(r"\n{2,}"), re.compile(r"\n+")


class GopherQualityFilter(BaseFilter):
    """Keeps documents that look like prose: enough words of usual length, few symbols, few lists, some stop words.

    Args:
        min_doc_words, max_doc_words: words that are not punctuation.
        min_avg_word_length, max_avg_word_length: their mean length in characters.
        max_symbol_word_ratio: "#" or ellipses for each word.
        max_bullet_lines_ratio, max_ellipsis_lines_ratio: share of lines that begin with a bullet, end in an ellipsis.
        max_non_alpha_words_ratio: least share of words with a letter.
        min_stop_words: least number of different stop words.
        stop_words: which; default English.
        exclusion_writer: gets the dropped documents.
        language: for the reader's information; `words` does the splitting.
        words: text -> words; default `words_of`.
        A limit of None or 0 is not applied.
    """

    name = "Gopher quality"

    def __init__(  # noqa: PLR0917
        self,
        min_doc_words: int | None = 50,
        max_doc_words: int | None = 100_000,
        min_avg_word_length: float | None = 3,
        max_avg_word_length: float | None = 10,
        max_symbol_word_ratio: float | None = 0.1,
        max_bullet_lines_ratio: float | None = 0.9,
        max_ellipsis_lines_ratio: float | None = 0.3,
        max_non_alpha_words_ratio: float | None = 0.8,
        min_stop_words: int | None = 2,
        stop_words: Sequence[str] | None = None,
        exclusion_writer: Any = None,
        language: str = "en",
        *,
        words: Callable[[str], Sequence[str]] | None = None,
    ) -> None:
        super().__init__(exclusion_writer)
        self.words, self.language = splitter(words), language
        self.size = (min_doc_words, max_doc_words)
        self.mean = (min_avg_word_length, max_avg_word_length)
        self.symbols, self.bullets, self.ellipses = (
            max_symbol_word_ratio,
            max_bullet_lines_ratio,
            max_ellipsis_lines_ratio,
        )
        self.letters, self.least_stop = max_non_alpha_words_ratio, min_stop_words
        self.stop_words = frozenset(STOP_WORDS if stop_words is None else stop_words)

    def filter(self, doc: Document) -> Verdict:
        """Apply the rules in order."""
        words = self.words(doc.text)
        reason = self._by_size(words) or self._by_symbols(doc.text, len(words)) or self._by_kind(words)
        return (False, reason) if reason else True

    def _by_size(self, words: Sequence[str]) -> str | None:
        lengths = [len(word) for word in words if not is_punctuation(word)]
        low, high = self.size
        if low and len(lengths) < low:
            return "gopher_short_doc"
        if high and len(lengths) > high:
            return "gopher_long_doc"
        mean = sum(lengths) / len(lengths) if lengths else 0.0
        if self.mean[0] and mean < self.mean[0]:
            return "gopher_below_avg_threshold"
        return "gopher_above_avg_threshold" if self.mean[1] and mean > self.mean[1] else None

    def _by_symbols(self, text: str, n: int) -> str | None:
        if self.symbols and n:
            if text.count("#") > self.symbols * n:
                return "gopher_too_many_hashes"
            if text.count("...") + text.count("…") > self.symbols * n:
                return "gopher_too_many_ellipsis"
        lines = text.splitlines()
        if self.bullets and sum(line.lstrip()[:1] in {"•", "-"} for line in lines) > self.bullets * len(lines):
            return "gopher_too_many_bullets"
        ends = sum(line.rstrip().endswith(("...", "…")) for line in lines) if self.ellipses else 0
        return "gopher_too_many_end_ellipsis" if self.ellipses and ends > self.ellipses * len(lines) else None

    def _by_kind(self, words: Sequence[str]) -> str | None:
        if self.letters and sum(map(has_letter, words)) < self.letters * len(words):
            return "gopher_below_alpha_threshold"
        if self.least_stop and len(self.stop_words.intersection(words)) < self.least_stop:
            return "gopher_enough_stop_words"
        return None


class GopherRepetitionFilter(BaseFilter):
    """Drops documents that repeat themselves: paragraphs, lines, frequent n-grams, duplicated n-grams.

    Args:
        dup_line_frac, dup_para_frac: most duplicated lines and paragraphs, as a share of their number.
        dup_line_char_frac, dup_para_char_frac: the same as a share of the characters.
        top_n_grams: (n, most characters in the most frequent n-gram).
        dup_n_grams: (n, most characters in n-grams that came before).
        exclusion_writer: gets the dropped documents.
        language, words: see `GopherQualityFilter`.
    """

    name = "Gopher repetition"

    def __init__(  # noqa: PLR0917
        self,
        dup_line_frac: float | None = 0.3,
        dup_para_frac: float | None = 0.3,
        dup_line_char_frac: float | None = 0.2,
        dup_para_char_frac: float | None = 0.2,
        top_n_grams: Sequence[tuple[int, float]] = TOP,
        dup_n_grams: Sequence[tuple[int, float]] = DUPLICATE,
        exclusion_writer: Any = None,
        language: str = "en",
        *,
        words: Callable[[str], Sequence[str]] | None = None,
    ) -> None:
        super().__init__(exclusion_writer)
        self.words, self.language = splitter(words), language
        self.parts = (
            ("para", _PARAGRAPHS, dup_para_frac, dup_para_char_frac),
            ("line", _LINES, dup_line_frac, dup_line_char_frac),
        )
        self.top_n_grams, self.dup_n_grams = top_n_grams, dup_n_grams

    def filter(self, doc: Document) -> Verdict:
        """Apply the rules in order."""
        text = doc.text
        if not text:
            return False, "empty"
        for name, pattern, most, most_chars in self.parts:
            parts = pattern.split(text.strip() if name == "para" else text)
            count, chars = duplicates(parts)
            if most and count > most * len(parts):
                return False, f"dup_{name}_frac"
            if most_chars and chars > most_chars * len(text):
                return False, f"dup_{name}_char_frac"
        words = self.words(text)
        for n, most in self.top_n_grams:
            if top_characters(words, n) > most * len(text):
                return False, f"top_{n}_gram"
        for n, most in self.dup_n_grams:
            if repeated_characters(words, n) > most * len(text):
                return False, f"duplicated_{n}_n_grams"
        return True


def duplicates(parts: Sequence[str]) -> tuple[int, int]:
    """Count the parts that came before, and their characters."""
    extra = [(part, n - 1) for part, n in Counter(parts).items() if n > 1]
    return sum(n for _, n in extra), sum(len(part) * n for part, n in extra)


def top_characters(words: Sequence[str], n: int) -> int:
    """Count the characters of all places of the most frequent n-gram; of two, the one that came first."""
    if len(words) < n:
        return 0
    grams = Counter(zip(*(words[k:] for k in range(n)), strict=False))
    gram, count = max(grams.items(), key=lambda item: item[1])
    return (sum(map(len, gram)) + n - 1) * count


def repeated_characters(words: Sequence[str], n: int) -> int:
    """Count the characters of n-grams that came before, none of which overlaps another."""
    seen: set[str] = set()
    at = chars = 0
    while at <= len(words) - n:
        gram = "".join(words[at : at + n])
        if gram in seen:
            chars += len(gram)
            at += n
        else:
            seen.add(gram)
            at += 1
    return chars
