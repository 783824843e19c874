"""A document becomes a sample: tokens, labels and media, exactly as the model's own tokenizer and template say."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["ChatEncoder", "EncodeError", "TextEncoder", "load_tokenizer", "qwen_tokenizer", "tokenizer_digest"]

if TYPE_CHECKING:
    from thalweg.encode.chat import ChatEncoder
    from thalweg.encode.errors import EncodeError
    from thalweg.encode.text import TextEncoder
    from thalweg.encode.tokens import load_tokenizer, qwen_tokenizer, tokenizer_digest

_WHERE = {
    "ChatEncoder": "thalweg.encode.chat",
    "EncodeError": "thalweg.encode.errors",
    "TextEncoder": "thalweg.encode.text",
    "load_tokenizer": "thalweg.encode.tokens",
    "qwen_tokenizer": "thalweg.encode.tokens",
    "tokenizer_digest": "thalweg.encode.tokens",
}


def __getattr__(name: str) -> Any:
    """Load a public name on first use."""
    if name not in _WHERE:
        raise AttributeError(f"module 'thalweg.encode' has no attribute {name!r}")
    value = getattr(import_module(_WHERE[name]), name)
    globals()[name] = value
    return value
