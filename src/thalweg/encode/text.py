"""Plain text becomes tokens: every token in the loss, one beginning and one end, nothing from the text itself special.

Decides what stands before and after a text. Knows no conversation.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.core.errors import ConfigError, nearest
from thalweg.core.sample import IGNORE_INDEX, Ragged, Sample
from thalweg.encode.backend import Backend, Flat, automatic, choose
from thalweg.encode.ends import dress
from thalweg.encode.errors import EncodeError, record_id
from thalweg.encode.tokens import Vocabulary, real, shared_tokenizer, tokenizer_digest


class TextEncoder:
    """Encode documents for pretraining. Picklable; call it with a sample or with columns of samples.

    Args:
        tokenizer_or_path: a tokenizer of transformers, its directory, or its hub name.
        text: column that holds the text.
        add_bos: "auto" puts before the text what the tokenizer itself puts there (often nothing); True makes sure of
            one beginning-of-text token; False puts nothing. Never two.
        add_eos: put one end-of-text token after the text, unless it was cut.
        max_length: tokens at most, ends included; longer texts are cut at the end and lose their end token.
        split_special_tokens: True (default): what looks like a special token in a text stays text.
        backend: "auto" (the fastest that proves equal on the first texts), or one by name: "tokenizers", "fastokens",
            "tiktoken", "python".

    Raises:
        ConfigError: the tokenizer has no token that is asked for.
    """

    whole_sample = True  # the result is the whole sample: other columns do not stay beside it

    def __init__(
        self,
        tokenizer_or_path: Any,
        text: str = "text",
        add_bos: str | bool = "auto",
        add_eos: bool = True,
        max_length: int | None = None,
        *,
        split_special_tokens: bool = True,
        backend: str = "auto",
    ) -> None:
        self._arguments = {k: v for k, v in locals().items() if k not in {"self", "__class__"}}
        self.text, self.max_length, self.split_special_tokens = text, max_length, split_special_tokens
        self.words = shared_tokenizer(tokenizer_or_path)
        self.vocabulary = Vocabulary.of(self.words)
        self.before, self.after = self._ends(add_bos, add_eos)
        self._backend: Backend = automatic(self.words) if backend == "auto" else choose(self.words, backend, ())
        if max_length is not None and max_length <= len(self.before):
            raise ConfigError(f"max_length={max_length} leaves no room for text", fix="give a larger one, or None")

    def _ends(self, add_bos: str | bool, add_eos: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
        v = self.vocabulary
        if add_bos not in ("auto", True, False):
            raise ConfigError(f"add_bos={add_bos!r} is not known", fix=nearest(str(add_bos), ("auto", "True", "False")))
        before = v.prefix if add_bos else ()
        if add_bos is True and not before:
            if v.bos_id is None:
                raise ConfigError(
                    "add_bos=True, and the tokenizer has no beginning-of-text token", fix='add_bos="auto"'
                )
            before = (v.bos_id,)
        after = v.suffix if add_eos else ()
        if add_eos and not after:
            if v.eos_id is None:
                raise ConfigError(
                    "the tokenizer has no end-of-text token",
                    where="add_eos=True",
                    fix="add_eos=False, or set eos_token",
                )
            after = (v.eos_id,)
        return before, after

    def __getstate__(self) -> dict[str, Any]:
        """Travel as the arguments: each process loads its tokenizer and proves its engine."""
        return self._arguments

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Build it again."""
        self.__init__(**state)  # type: ignore[misc]

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of transformers itself; `words` is the same where ids are enough, and loads in no time."""
        return real(self.words)

    def for_worker(self) -> "TextEncoder":
        """Give the same to every thread: its engines are configured once, and a copy of a vocabulary takes a second."""
        return self

    @property
    def digest(self) -> str:
        """Name all that decides the ids: settings and tokenizer."""
        settings = {k: v for k, v in self._arguments.items() if k not in {"tokenizer_or_path", "backend"}}
        return f"{tokenizer_digest(self.words)}:{settings!r}"

    @property
    def fingerprint(self) -> str:
        """Identity of the function in a feed: what decides the ids, and nothing that use changes."""
        return self.digest

    def encode_batch(self, texts: Sequence[str]) -> Ragged:
        """Encode texts, ends added, cut to `max_length`.

        Returns:
            int32 ids, one row a text. An empty text gives a row of its ends alone.

        Raises:
            EncodeError: a text that is not valid Unicode (a lone surrogate).
        """
        try:
            flat = self._backend.encode(texts, special=not self.split_special_tokens)
        except (UnicodeEncodeError, TypeError) as error:
            _refuse_surrogates(texts, error)
            raise
        if not self.split_special_tokens and self.before:
            flat = _without_first(flat, self.before)
        return dress(flat, self.before, self.after, self.max_length)

    def __call__(self, sample: Mapping[str, Any]) -> Sample | None:
        """Encode one sample, or columns of samples where the text column is a list.

        Returns:
            `input_ids` int32 (n,) and `labels` int64 (n,) unshifted; `id` where there was one. Of columns: lists. None
            where there is no text: a map counts it as dropped, as the step does; columns leave it out.
        """
        if self.text not in sample:
            raise EncodeError(
                f"no column {self.text!r}",
                reason="no text column",
                where=record_id(sample),
                fix=nearest(self.text, sample),
            )
        value = sample[self.text]
        if isinstance(value, str):
            if not value:
                return None
            ids = self.encode_batch([value])[0]
            return {"input_ids": ids, "labels": self.labels(ids), **({"id": sample["id"]} if "id" in sample else {})}
        if not isinstance(value, (list, tuple)) or not all(isinstance(t, str) for t in value):
            raise EncodeError(
                f"column {self.text!r} holds {type(value).__name__}, not text",
                reason="not text",
                where=record_id(sample),
            )
        rows = list(self.encode_batch([text for text in value if text]))
        columns: Sample = {"input_ids": rows, "labels": [self.labels(r) for r in rows]}
        if "id" in sample:
            columns["id"] = [name for name, text in zip(sample["id"], value, strict=True) if text]
        return columns

    def labels(self, ids: NDArray[np.int32]) -> NDArray[np.int64]:
        """Label every token but those before the text. int64 (n,), unshifted."""
        labels = ids.astype(np.int64)
        labels[: len(self.before)] = IGNORE_INDEX
        return labels

    def spans(self, length: int) -> NDArray[np.int32]:
        """Give the loss spans of a row of `length` tokens, int32 (1, 2) or (0, 2)."""
        start = len(self.before)
        return np.array([[start, length]] if length > start else [], np.int32).reshape(-1, 2)


def _refuse_surrogates(texts: Sequence[str], error: Exception) -> None:
    for i, text in enumerate(texts):
        try:
            text.encode()
        except UnicodeEncodeError as bad:
            raise EncodeError(
                f"text {i} of {len(texts)} holds a lone surrogate at character {bad.start}",
                reason="not valid Unicode",
                fix="repair it where it is read: text.encode('utf-16', 'surrogatepass').decode('utf-16', 'replace')",
            ) from error


def _without_first(flat: Flat, before: tuple[int, ...]) -> Flat:
    """Drop a beginning token that a text already begins with, so that there are never two."""
    ids, offsets = flat
    starts = offsets[:-1][np.diff(offsets) > 0]
    doubled = starts[ids[starts] == before[-1]]
    if not len(doubled):
        return flat
    lengths = np.diff(offsets)
    lengths[np.searchsorted(offsets[:-1], doubled, side="right") - 1] -= 1
    return np.delete(ids, doubled), np.concatenate([[0], np.cumsum(lengths)])
