"""A document becomes a sample: tokens, labels and media, exactly as the model's own tokenizer and template say."""

from typing import TYPE_CHECKING

from thalweg.core.lazy import lazy_names

__all__ = ["ChatEncoder", "EncodeError", "TextEncoder", "load_tokenizer", "qwen_tokenizer", "tokenizer_digest"]

if TYPE_CHECKING:
    from thalweg.encode.chat import ChatEncoder
    from thalweg.encode.errors import EncodeError
    from thalweg.encode.text import TextEncoder
    from thalweg.encode.tokens import load_tokenizer, qwen_tokenizer, tokenizer_digest

_WHERE = {
    "ChatEncoder": "chat",
    "EncodeError": "errors",
    "TextEncoder": "text",
    "load_tokenizer": "tokens",
    "qwen_tokenizer": "tokens",
    "tokenizer_digest": "tokens",
}

__getattr__ = lazy_names(__name__, _WHERE)
