"""Rules for pages of the web: FineWeb's quality rules, C4's line rules and paragraph rule.

Decides by lines. Sources: Penedo et al. 2024, "The FineWeb datasets" (arXiv 2406.17557), section 3.6; Raffel et al.
2020, "Exploring the limits of transfer learning" (JMLR 21/20-074), section 2.2, and its reference code's line rules.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from thalweg.steps.filters.base import BaseFilter, Verdict
from thalweg.steps.filters.gopher import duplicates
from thalweg.steps.filters.words import sentences_of, splitter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from thalweg.core.document import Document

# What ends a sentence in the world's scripts: Unicode's terminal marks, quotation marks left out.
STOP_CHARS = tuple(".!?…。．！？؟۔।॥։።፧‼⁇⁈⁉‽﹒﹖﹗")  # noqa: RUF001  (marks of other scripts are meant)
_CITATION = re.compile(r"\[(?:\d*|edit|citation needed)\]")
_POLICY = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")
_LINE_END = (".", "?", "!", '"', "'")


class FineWebQualityFilter(BaseFilter):
    """Drops pages of short lines, of lines that end nowhere, of repeated lines, and lists.

    Args:
        line_punct_thr: least share of lines that end in a stop character.
        line_punct_exclude_zero: let pages pass in which no line does.
        stop_chars: which; default `STOP_CHARS`.
        short_line_thr: most lines of at most `short_line_length` characters, as a share.
        short_line_length: what a short line is, in characters.
        char_duplicates_ratio: most characters in lines that came before, as a share.
        new_line_ratio: most line breaks for each word.
        exclusion_writer: gets the dropped documents.
        language, words: see `GopherQualityFilter`.
    """

    name = "FineWeb quality"

    def __init__(  # noqa: PLR0917
        self,
        exclusion_writer: Any = None,
        line_punct_thr: float = 0.12,
        line_punct_exclude_zero: bool = False,
        stop_chars: Sequence[str] | None = None,
        short_line_thr: float = 0.67,
        short_line_length: int = 30,
        char_duplicates_ratio: float = 0.01,
        new_line_ratio: float = 0.3,
        language: str = "en",
        *,
        words: Callable[[str], Sequence[str]] | None = None,
    ) -> None:
        super().__init__(exclusion_writer)
        self.words, self.language = splitter(words), language
        self.line_punct_thr, self.line_punct_exclude_zero = line_punct_thr, line_punct_exclude_zero
        self.stop_chars = STOP_CHARS if stop_chars is None else tuple(stop_chars)
        self.short_line_thr, self.short_line_length = short_line_thr, short_line_length
        self.char_duplicates_ratio, self.new_line_ratio = char_duplicates_ratio, new_line_ratio

    def filter(self, doc: Document) -> Verdict:
        """Apply the rules in order."""
        lines = [line for line in doc.text.split("\n") if line.strip()]
        if not lines:
            return False, "empty"
        ended = sum(line.endswith(self.stop_chars) for line in lines)
        if ended / len(lines) < self.line_punct_thr and (ended or not self.line_punct_exclude_zero):
            return False, "line_punct_ratio"
        if sum(len(line) <= self.short_line_length for line in lines) / len(lines) > self.short_line_thr:
            return False, "short_line_ratio"
        breaks = doc.text.count("\n")
        if duplicates(lines)[1] / (len(doc.text) - breaks) > self.char_duplicates_ratio:
            return False, "char_dup_ratio"
        words = len(self.words(doc.text))
        return (False, "list_ratio") if breaks > self.new_line_ratio * words else True


class C4QualityFilter(BaseFilter):
    """Keeps the good lines of a page, and drops pages that have too few of them or a bad sign.

    Changes the text. Lines that go are counted as "line-filter-...", lines that stay as "line-kept".

    Args:
        exclusion_writer: gets the dropped documents.
        split_paragraph: judge lines; False judges sentences.
        remove_citations: take away "[1]", "[edit]", "[citation needed]".
        filter_no_terminal_punct: a line must end in a terminal mark or a quotation mark, and not in "...".
        min_num_sentences: least number of sentences left; -1 for any.
        min_words_per_line: least number of words of a line; -1 for any.
        max_word_length: longest word of a line, in characters; -1 for any.
        filter_lorem_ipsum, filter_curly_bracket: drop pages with these signs.
        filter_javascript, filter_policy: drop lines that speak of them.
        language: for the reader's information; `sentences` does the splitting.
        sentences: text -> sentences; default `sentences_of`.
    """

    name = "C4 quality"

    def __init__(  # noqa: PLR0917
        self,
        exclusion_writer: Any = None,
        split_paragraph: bool = True,
        remove_citations: bool = True,
        filter_no_terminal_punct: bool = True,
        min_num_sentences: int = 5,
        min_words_per_line: int = 3,
        max_word_length: int = 1000,
        filter_lorem_ipsum: bool = True,
        filter_javascript: bool = True,
        filter_curly_bracket: bool = True,
        filter_policy: bool = True,
        language: str = "en",
        *,
        sentences: Callable[[str], Sequence[str]] | None = None,
    ) -> None:
        super().__init__(exclusion_writer)
        self.sentences = sentences_of if sentences is None else sentences
        self.split_paragraph, self.remove_citations, self.language = split_paragraph, remove_citations, language
        self.filter_no_terminal_punct, self.min_num_sentences = filter_no_terminal_punct, min_num_sentences
        self.min_words_per_line, self.max_word_length = min_words_per_line, max_word_length
        self.filter_lorem_ipsum, self.filter_curly_bracket = filter_lorem_ipsum, filter_curly_bracket
        self.filter_javascript, self.filter_policy = filter_javascript, filter_policy

    def filter(self, doc: Document) -> Verdict:
        """Judge each line, then the page."""
        lines = doc.text.splitlines() if self.split_paragraph else self.sentences(doc.text)
        kept: list[str] = []
        count = 0
        for raw in lines:
            line, verdict = self._line(raw.strip())
            if verdict in {"lorem_ipsum", "curly_bracket"}:
                return False, verdict
            self.stat_update("line-total", f"line-filter-{verdict}" if verdict else "line-kept")
            if not verdict:
                kept.append(line)
                count += len(self.sentences(line)) if self.split_paragraph and self.min_num_sentences != -1 else 1
        if count < self.min_num_sentences:
            return False, "too_few_sentences"
        doc.text = ("\n" if self.split_paragraph else " ").join(kept).strip()
        return True

    def _line(self, line: str) -> tuple[str, str | None]:
        words = line.split()
        if self.max_word_length != -1 and any(len(word) > self.max_word_length for word in words):
            return line, "too_long_word"
        line = _CITATION.sub("", line) if self.remove_citations else line
        if self.filter_no_terminal_punct and (not line.endswith(_LINE_END) or line.endswith("...")):
            return line, "no_terminal_punc"
        if len(words) < self.min_words_per_line:
            return line, "too_few_words"
        small = line.lower()
        if self.filter_lorem_ipsum and "lorem ipsum" in small:
            return line, "lorem_ipsum"
        if self.filter_javascript and "javascript" in small:
            return line, "javascript"
        if self.filter_curly_bracket and "{" in line:
            return line, "curly_bracket"
        return line, "policy" if self.filter_policy and any(p in small for p in _POLICY) else None


class C4ParagraphFilter(BaseFilter):
    """Keeps pages with at least three lines of 200 characters or more.

    Args:
        exclusion_writer: gets the dropped documents.
    """

    name = "C4 paragraphs"

    def filter(self, doc: Document) -> Verdict:
        """Count the long lines."""
        long = sum(len(line) >= 200 for line in doc.text.split("\n"))
        return True if long >= 3 else (False, "< 3 paragraphs")
