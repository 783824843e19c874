"""What checks know of a tokenizer, whichever it is.

Decides where it is found: what was given, the encoder of a feed's map, the folder that records name, else the ids
that records remember.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from thalweg.check.dialogue import END_MARKS
from thalweg.check.evidence import Words
from thalweg.check.tokens import show_ids


def tokenizer_of(given: Any, lineage: Mapping[str, Any], feed: Any = None) -> Any:
    """Find a tokenizer: what was given, the encoder of a feed's map, the folder that records name; else None."""
    found = given if given is not None else of_stages(feed)
    if found is None:
        named = lineage.get("tokenizer_path")
        found = named if isinstance(named, str) and Path(named).is_dir() else None
    if found is None:
        return None
    from thalweg.encode.tokens import shared_tokenizer, tokenizer_digest  # noqa: PLC0415 (transformers may load here)

    tokenizer = shared_tokenizer(found)
    if given is None and found is lineage.get("tokenizer_path"):
        known = lineage.get("tokenizer")  # another tokenizer may lie there by now
        return tokenizer if known in {None, tokenizer_digest(tokenizer)} else None
    return tokenizer


def of_stages(feed: Any) -> Any:
    """Give the tokenizer of the last encoder in a feed, None without one."""
    encoder = encoder_of(feed)
    return None if encoder is None else getattr(encoder, "words", None) or encoder.tokenizer


def encoder_of(feed: Any) -> Any:
    """Give the last function of a feed that has a tokenizer, None without one."""
    for stage in reversed(getattr(feed, "stages", ())):
        fn = getattr(stage, "fn", None)
        if hasattr(fn, "words") or hasattr(fn, "tokenizer"):
            return fn
        for _, part in getattr(stage, "feeds", ()):
            found = encoder_of(part)
            if found is not None:
                return found
    return None


def words_of(tokenizer: Any, lineage: Mapping[str, Any]) -> Words | None:
    """Give the facts of a tokenizer, or what records remember of theirs."""
    if tokenizer is not None:
        return _asked(tokenizer)
    size = lineage.get("vocab_size")
    if not isinstance(size, int):
        return None
    eos, pad = lineage.get("eos_id"), lineage.get("pad_id")
    ends = frozenset(i for i in (eos,) if isinstance(i, int))
    return Words(size, lineage.get("bos_id"), eos, pad, ends, show_ids, lambda _: [], reads=False)


def _asked(tokenizer: Any) -> Words:
    """Ask a tokenizer; one that is no tokenizer of transformers may lack some answers."""
    special: dict[str, int] = {}
    for i, token in dict(getattr(tokenizer, "added_tokens_decoder", {})).items():
        special[str(token)] = int(i)
    size = max([_length(tokenizer), *(i + 1 for i in special.values())])
    bos, eos, pad = (getattr(tokenizer, f"{name}_token_id", None) for name in ("bos", "eos", "pad"))
    ends = {i for text, i in special.items() if text in END_MARKS}
    ends |= {eos} if isinstance(eos, int) else set()

    def encode(text: str) -> list[int]:
        try:
            return list(tokenizer.encode(text, add_special_tokens=False))
        except TypeError:
            return list(tokenizer.encode(text))

    return Words(size, bos, eos, pad, frozenset(ends), tokenizer.decode, encode)


def _length(tokenizer: Any) -> int:
    return len(tokenizer) if hasattr(tokenizer, "__len__") else 1 << 31
