"""The demo's feed: two record sets mixed, shuffled, packed and batched, as a user would write it."""

from pathlib import Path
from typing import Any

import thalweg as tw

PAD = 151_643  # <|endoftext|>: what Qwen's tokenizer pads with


def make_feed(pages: str | Path, chat: str | Path, capacity: int) -> Any:
    """Mix plain text and chat by tokens, and fill rows of `capacity` tokens: one row a rank and micro-batch."""
    sources = {"pages": tw.from_records(pages), "chat": tw.from_records(chat)}
    mixed = tw.mix(sources, weights={"pages": 0.7, "chat": 0.3}, by="tokens")
    return mixed.shuffle().pack(capacity, overlong="split").batch(1)
