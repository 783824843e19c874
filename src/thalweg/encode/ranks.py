"""Ranks as `tiktoken` reads them: a byte-level vocabulary whose merges follow the order of its ids.

Decides whether a fast tokenizer is such a vocabulary, and how its pattern, ranks and added tokens are handed over.
That the ids are equal is proven where it is chosen (`backend.choose`). Knows no sample.
"""

import json
import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.core.errors import ConfigError
from thalweg.core.extras import need
from thalweg.core.sample import offsets_of
from thalweg.encode.qwen import byte_alphabet

# how a ByteLevel step cuts text by itself, as GPT-2 published it
_GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"


class Ranks:
    """`tiktoken`: exact where the ranks fit, several times faster than `tokenizers` on one core. See `Backend`."""

    name = "tiktoken"

    def __init__(self, tokenizer: Any) -> None:
        steps: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())
        pattern, self._composes = _pattern(steps), (steps.get("normalizer") or {}).get("type") == "NFC"
        letters = {letter: bytes([byte]) for byte, letter in enumerate(byte_alphabet())}
        added: list[dict[str, Any]] = steps.get("added_tokens") or []
        if any(t["lstrip"] or t["rstrip"] or t["single_word"] for t in added):
            raise _unfit("an added token takes the spaces beside it")
        names = {t["content"] for t in added}
        ranks: dict[bytes, int] = {}
        for word, rank in steps["model"]["vocab"].items():
            if word not in names:
                if not all(letter in letters for letter in word):
                    raise _unfit(f"the word {word!r} is not of bytes")
                ranks[b"".join(letters[letter] for letter in word)] = rank
        if not all(bytes([b]) in ranks for b in range(256)):
            raise _unfit("not every byte has a rank")
        self._plain = {t["content"] for t in added if not t["special"]}  # words that are read in any text
        tiktoken = need("tiktoken", why='backend="tiktoken"')
        self._encoding: Any = tiktoken.Encoding(
            "thalweg", pat_str=pattern, mergeable_ranks=ranks, special_tokens={t["content"]: t["id"] for t in added}
        )

    def encode(self, texts: Sequence[str], *, special: bool) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Encode texts; see `Backend`."""
        allowed: Any = "all" if special else self._plain
        read = self._encoding.encode_to_numpy
        rows = [read(self._ready(t), allowed_special=allowed, disallowed_special=()) for t in texts]
        offsets = offsets_of([len(r) for r in rows])
        flat = np.concatenate(rows).astype(np.int32) if rows else np.empty(0, np.int32)
        return flat, offsets

    def _ready(self, text: str) -> str:
        text.encode()  # a lone surrogate is refused, as elsewhere, not replaced
        return unicodedata.normalize("NFC", text) if self._composes and not text.isascii() else text


def _pattern(steps: dict[str, Any]) -> str:
    """Give the pattern by which texts are cut; one pattern, then bytes."""
    model: dict[str, Any] = steps["model"]
    if model.get("type") != "BPE" or model.get("byte_fallback"):
        raise _unfit(f"its model is {model.get('type')}")
    if (steps.get("normalizer") or {"type": "NFC"})["type"] != "NFC":
        raise _unfit("it changes texts before it cuts them")
    cutter: dict[str, Any] = steps.get("pre_tokenizer") or {"type": ""}
    parts: list[dict[str, Any]] = cutter.get("pretokenizers", [cutter])
    kinds = [p["type"] for p in parts]
    if kinds == ["ByteLevel"] and not parts[0]["add_prefix_space"] and parts[0].get("use_regex", True):
        return _GPT2
    whole = kinds == ["Split", "ByteLevel"] and not parts[1]["add_prefix_space"] and not parts[1].get("use_regex", True)
    if whole and parts[0]["behavior"] == "Isolated" and "Regex" in parts[0]["pattern"]:
        return str(parts[0]["pattern"]["Regex"])
    raise _unfit(f"it cuts texts by {kinds or 'nothing'}")


def _unfit(why: str) -> ConfigError:
    return ConfigError(
        f"ranks do not fit this tokenizer: {why}", where='backend="tiktoken"',
        fix='backend="auto" takes the fastest that gives equal ids',
    )  # fmt: skip
