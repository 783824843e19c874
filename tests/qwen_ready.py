"""Qwen's tokenizer, loaded where this is imported: by the process that forks ready runs, once for all of them."""

from thalweg.encode.tokens import load_tokenizer, qwen_tokenizer

TOKENIZER = load_tokenizer(qwen_tokenizer())
