"""A tokenizer as the rest of the package sees it: loaded, named by a digest, its special tokens in a table.

Decides what counts as a special token, how many bytes each token stands for (byte-level vocabularies), and which
tokens the tokenizer itself puts around a text. Knows no template and no sample.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import msgspec
import numpy as np
from numpy.typing import NDArray

from thalweg.core.errors import ConfigError, InputError
from thalweg.core.extras import need
from thalweg.encode.hub import answers, may_be_name
from thalweg.encode.kept import Kept, kept_or_made, stamps
from thalweg.encode.qwen import byte_alphabet, cache_folder, chatml_template, qwen_tokenizer
from thalweg.work.late import told_where_slow

__all__ = [
    "Vocabulary",
    "cache_folder",
    "chatml_template",
    "load_tokenizer",
    "qwen_tokenizer",
    "tokenizer_digest",
]


def load_tokenizer(path_or_object: Any) -> Any:
    """Load a tokenizer of transformers, or take one that is loaded.

    Args:
        path_or_object: a local directory, a hub name, or an object with `encode` and `convert_tokens_to_ids`
            (a processor gives its tokenizer).

    Raises:
        InputError: nothing loads from there.
        ConfigError: an object that is no tokenizer.
    """
    if isinstance(path_or_object, (str, Path)):
        with told_where_slow(f"loading the tokenizer {str(path_or_object)!r} ..."):
            return _loaded(str(path_or_object))
    inner = getattr(path_or_object, "tokenizer", None)
    candidate = path_or_object if inner is None else inner
    if not (hasattr(candidate, "encode") and hasattr(candidate, "convert_tokens_to_ids")):
        raise ConfigError(
            f"a {type(path_or_object).__name__} is no tokenizer of transformers",
            fix="give a directory, a hub name, or what AutoTokenizer.from_pretrained returns",
        )
    return candidate


def _loaded(name: str) -> Any:
    transformers = need("transformers", why="load_tokenizer")
    reach = _reach(name)
    try:
        return transformers.AutoTokenizer.from_pretrained(name, **reach)
    except (OSError, ValueError) as error:
        alone = sorted(Path(name).glob("*.tiktoken")) if Path(name).is_dir() else []
        raise InputError(
            f"no tokenizer loads from {name!r}: {str(error).splitlines()[0].rstrip('.')}",
            fix=f"{alone[0].name} holds ranks, which do not say how text is cut or which tokens are special: give"
            " the model's tokenizer.json, or convert the ranks once with transformers' TikTokenConverter"
            if alone
            else "give a directory with tokenizer.json, or the hub name while the hub can be reached",
        ) from None  # its first line says it; the chain behind it is pages of two libraries


def _reach(name: str) -> dict[str, bool]:
    """Keep to this machine's files where the name cannot be the hub's, or no hub answers."""
    constants = import_module("huggingface_hub.constants")
    if Path(name).exists() or constants.HF_HUB_OFFLINE:
        return {}
    if not may_be_name(name):
        raise InputError(f"there is no folder {name!r}", fix="give a directory with tokenizer.json, or a hub name")
    return {} if answers(constants.ENDPOINT) else {"local_files_only": True}


def shared_tokenizer(path_or_object: Any) -> Any:
    """Load a tokenizer as `load_tokenizer` does, one object for all encoders of this process that name one path.

    Files that have changed since are another tokenizer.
    """
    if not isinstance(path_or_object, (str, Path)):
        return load_tokenizer(path_or_object)
    path = str(path_or_object)
    key = (path, *stamps(Path(path)))
    tokenizer = _LOADED.get(key)
    if tokenizer is None:
        tokenizer = _LOADED[key] = kept_or_made(path, lambda: load_tokenizer(path), tokenizer_digest)
    return tokenizer


def real(tokenizer: Any) -> Any:
    """Give the tokenizer of transformers itself, where one out of the cache stands for it."""
    return tokenizer.real if isinstance(tokenizer, Kept) else tokenizer


_LOADED: "WeakValueDictionary[tuple[Any, ...], Any]" = WeakValueDictionary()


def ids_of(tokenizer: Any, words: Iterable[str]) -> dict[str, int]:
    """Find which words are tokens, without a copy of the vocabulary. word -> id."""
    unknown = getattr(tokenizer, "unk_token_id", None)
    found = {word: tokenizer.convert_tokens_to_ids(word) for word in words}
    return {word: int(i) for word, i in found.items() if i is not None and i != unknown}


class _Model(msgspec.Struct):
    """The part of a tokenizer that makes ids; its merges, half of the file, are passed over."""

    type: str = ""
    vocab: Any = None
    byte_fallback: bool | None = None


class _Steps(msgspec.Struct):
    """What a fast tokenizer does to a text, in order."""

    model: _Model
    normalizer: dict[str, Any] | None = None
    pre_tokenizer: dict[str, Any] | None = None
    added_tokens: list[dict[str, Any]] = []


def tokenizer_digest(tokenizer: Any) -> str:
    """Hash all that decides which ids a text gets: vocabulary, merges, added tokens, normalising and cutting.

    Truncation, padding and the chat template do not enter.

    Returns:
        32 hex characters.
    """
    if isinstance(tokenizer, Kept) and tokenizer.is_untouched:
        return tokenizer.facts.digest
    ends = [getattr(tokenizer, name, None) for name in ("bos_token_id", "eos_token_id", "pad_token_id")]
    now = repr([len(tokenizer) if hasattr(tokenizer, "__len__") else None, *ends])
    try:
        if (known := _DIGESTS.get(tokenizer, ("", "")))[0] != now:
            known = _DIGESTS[tokenizer] = (now, _digest(tokenizer))
    except TypeError:  # an object that cannot be referred to weakly
        return _digest(tokenizer)
    return known[1]


_DIGESTS: "WeakKeyDictionary[Any, tuple[str, str]]" = WeakKeyDictionary()  # hashing megabytes takes a third of a second


def _digest(tokenizer: Any) -> str:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        steps = {"class": type(tokenizer).__name__, "vocab": tokenizer.get_vocab()}
        text = json.dumps(steps, sort_keys=True, ensure_ascii=False, default=str)
    else:
        text = backend.to_str()
        if backend.truncation is not None or backend.padding is not None:
            plain = type(backend).from_str(text)
            plain.no_truncation()
            plain.no_padding()
            text = plain.to_str()
    text += repr([getattr(tokenizer, name, None) for name in ("bos_token_id", "eos_token_id", "pad_token_id")])
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """What encoders need to know of a tokenizer.

    Args:
        size: number of ids, added tokens included.
        bos_id, eos_id, pad_id: ids, None where the tokenizer has none.
        prefix, suffix: ids that the tokenizer itself puts before and after a text.
        special: text -> id of the special tokens: control marks that text of a user must not become.
        widths: int32 (size,), UTF-8 bytes each token stands for; None where the vocabulary is not byte-level.
        composes: True where the tokenizer composes characters first (NFC).
    """

    size: int
    bos_id: int | None
    eos_id: int | None
    pad_id: int | None
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    special: dict[str, int]
    widths: NDArray[np.int32] | None
    composes: bool

    @classmethod
    def of(cls, tokenizer: Any) -> "Vocabulary":
        """Read the facts from a tokenizer by asking it; once for each tokenizer object and vocabulary size."""
        try:
            known = _KNOWN.get(tokenizer)
        except TypeError:  # an object that cannot be referred to weakly
            return cls._read(tokenizer)
        if known is None or known.size != _size(tokenizer):
            known = _KNOWN[tokenizer] = cls._read(tokenizer)
        return known

    @classmethod
    def _read(cls, tokenizer: Any) -> "Vocabulary":
        plain = list(tokenizer.encode("a", add_special_tokens=False))
        dressed = list(tokenizer.encode("a"))
        at = next((i for i in range(len(dressed) - len(plain) + 1) if dressed[i : i + len(plain)] == plain), 0)
        added = dict(getattr(tokenizer, "added_tokens_decoder", {}))
        special = {str(t): int(i) for i, t in added.items() if getattr(t, "special", True)}
        special.update(
            {str(t): int(tokenizer.convert_tokens_to_ids(t)) for t in getattr(tokenizer, "all_special_tokens", [])}
        )
        size = _size(tokenizer)
        backend = getattr(tokenizer, "backend_tokenizer", None)
        steps = None if backend is None else msgspec.json.decode(backend.to_str(), type=_Steps)
        return cls(
            size=size,
            bos_id=tokenizer.bos_token_id,
            eos_id=tokenizer.eos_token_id,
            pad_id=tokenizer.pad_token_id,
            prefix=tuple(dressed[:at]),
            suffix=tuple(dressed[at + len(plain) :]),
            special=special,
            widths=_byte_widths(steps, size) if steps else None,
            composes=bool(steps and (steps.normalizer or {}).get("type") == "NFC"),
        )


_KNOWN: "WeakKeyDictionary[Any, Vocabulary]" = WeakKeyDictionary()


def _size(tokenizer: Any) -> int:
    return max([len(tokenizer), *(int(i) + 1 for i in getattr(tokenizer, "added_tokens_decoder", {}))])


def _byte_widths(steps: _Steps, size: int) -> NDArray[np.int32] | None:
    if not _is_byte_level(steps):
        return None
    letters = set(byte_alphabet())
    widths = np.zeros(size, np.int32)
    for word, i in steps.model.vocab.items():
        if i < size:
            widths[i] = len(word) if letters.issuperset(word) else len(word.encode())
    for token in steps.added_tokens:
        if token["lstrip"] or token["rstrip"]:
            return None  # such a token swallows the spaces beside it: its width depends on the text
        widths[token["id"]] = len(token["content"].encode())
    return widths


def _is_byte_level(steps: _Steps) -> bool:
    if steps.model.type != "BPE" or steps.model.byte_fallback:
        return False
    if (steps.normalizer or {"type": "NFC"})["type"] != "NFC":
        return False
    cutter: dict[str, Any] = steps.pre_tokenizer or {"type": ""}
    parts: list[dict[str, Any]] = cutter.get("pretokenizers", [cutter])
    levels = [p for p in parts if p["type"] == "ByteLevel"]
    return len(levels) == 1 and not levels[0]["add_prefix_space"] and parts[-1] is levels[0]
