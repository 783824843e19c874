"""Documents by the address of their page: lists of domains, addresses and words.

Decides what a domain, a subdomain and a word of an address are. Brings no list along: name your own.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar

from thalweg.core.errors import ConfigError, SampleError
from thalweg.steps.filters.base import BaseFilter, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from thalweg.core.document import Document

_NOT_A_WORD = re.compile(r"[^a-zA-Z0-9]+")


class URLFilter(BaseFilter):
    """Drops documents whose `metadata["url"]` is on a list; the reasons are those of the datatrove package.

    Args:
        soft_word_threshold: this many of `soft_banned_words` in an address are too many ("soft_blacklisted").
        extra_domains: registered domains ("domain") or full host names ("subdomain").
        extra_urls: whole addresses ("url").
        banned_words: words of an address, compared as they are written ("hard_blacklisted").
        banned_subwords: parts of an address once all but letters and digits is taken out ("blacklisted_subword").
        soft_banned_words: see above.
        use_integrated_lists: there are none here; True is refused.
        exclusion_writer, **policy: see `BaseFilter`.

    Domains are told by the public suffix list that ships with tldextract; nothing is fetched.

    Raises:
        ConfigError: no list at all.
        SampleError: a document without an address.
    """

    name = "URL filter"
    _requires_dependencies: ClassVar[list[str | tuple[str, str]]] = ["tldextract"]

    def __init__(  # noqa: PLR0917
        self,
        soft_word_threshold: int = 2,
        extra_domains: Iterable[str] | None = None,
        extra_urls: Iterable[str] | None = None,
        banned_words: Iterable[str] | None = None,
        banned_subwords: Iterable[str] | None = None,
        soft_banned_words: Iterable[str] | None = None,
        use_integrated_lists: bool = False,
        exclusion_writer: Any = None,
        **policy: Any,
    ) -> None:
        super().__init__(exclusion_writer, **policy)
        self.soft_word_threshold = soft_word_threshold
        self.domains, self.urls = _lines(extra_domains), _lines(extra_urls)
        self.words, self.soft_words = _normal(banned_words), _normal(soft_banned_words)
        self.subwords = sorted(_normal(banned_subwords) - {""})
        if use_integrated_lists or not any((self.domains, self.urls, self.words, self.soft_words, self.subwords)):
            raise ConfigError(
                "URLFilter has no list of its own",
                where=f"use_integrated_lists={use_integrated_lists}",
                fix="give extra_domains=, extra_urls=, banned_words=, banned_subwords= or soft_banned_words=",
            )
        self._subword = re.compile("|".join(map(re.escape, self.subwords))) if self.subwords else None
        self._split: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """Travel without the table of suffixes: each process loads its own."""
        return self.__dict__ | {"_split": None}

    def filter(self, doc: Document) -> Verdict:
        """Say whether the address is on no list."""
        url = doc.metadata.get("url")
        if not url:
            raise SampleError("the document has no url in its metadata", where=doc.id, fix="read it with its address")
        if self._split is None:
            from tldextract import TLDExtract  # noqa: PLC0415  (only where it is used)

            self._split = TLDExtract(suffix_list_urls=(), cache_dir=None)
        parts = self._split(url)
        words = set(_NOT_A_WORD.split(url))
        flat = _NOT_A_WORD.sub("", url).lower()
        for found, reason in (
            (parts.top_domain_under_public_suffix in self.domains, "domain"),
            (parts.fqdn in self.domains, "subdomain"),
            (url in self.urls, "url"),
            (not words.isdisjoint(self.words), "hard_blacklisted"),
            (len(words & self.soft_words) >= self.soft_word_threshold, "soft_blacklisted"),
            (self._subword is not None and self._subword.search(flat), "blacklisted_subword"),
        ):
            if found:
                return False, reason
        return True


def _lines(given: Iterable[str] | None) -> set[str]:
    return {line.strip() for line in given or () if line.strip() and not line.startswith("#")}


def _normal(given: Iterable[str] | None) -> set[str]:
    return {_NOT_A_WORD.sub("", line).lower() for line in given or () if line.strip() and not line.startswith("#")}
