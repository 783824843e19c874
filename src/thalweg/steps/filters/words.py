"""What a word, a line, a paragraph and a sentence are for the quality rules.

Decides the default: runs of letters, digits and marks, inner apostrophes and hyphens included, and every other
visible character by itself. A rule takes another splitter where its language needs one. Knows no rule.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_WORD = re.compile(r"\w+(?:[.,]\d+)*(?:['’]\w+)*|[-=*#~.]{2,}|[^\w\s]", re.UNICODE)  # noqa: RUF001
_SENTENCE_END = re.compile(r"[.!?…。！？]+[\"'”’)\]]*\s+")  # noqa: RUF001  (marks of other scripts are meant)
_SYMBOLS = frozenset("$+<=>^`|~")


def words_of(text: str) -> list[str]:
    """Split a text into words; punctuation marks are words of their own."""
    return _WORD.findall(text)


def sentences_of(text: str) -> list[str]:
    """Split a text where a terminal mark is followed by white space."""
    parts = [part.strip() for part in _SENTENCE_END.sub(lambda m: m[0].rstrip() + "\0", text).split("\0")]
    return [part for part in parts if part]


@lru_cache(maxsize=1 << 16)
def is_punctuation(word: str) -> bool:
    """Say whether a word has no character besides punctuation, ASCII symbols and control marks."""
    return all(c in _SYMBOLS or unicodedata.category(c)[0] in "PZC" for c in word)


@lru_cache(maxsize=1 << 16)
def has_letter(word: str) -> bool:
    """Say whether a word has a letter."""
    return any(map(str.isalpha, word))


def splitter(words: Callable[[str], Sequence[str]] | None) -> Callable[[str], Sequence[str]]:
    """Give the user's splitter, or the default."""
    return words_of if words is None else words
