"""What a length limit takes from a conversation.

Decides the rule: the oldest exchange goes whole, system turns and the last exchange stay; then the end of the last
answer is cut, without an invented end token. Knows no tokenizer.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.encode.conversation import Conversation, Message
from thalweg.encode.errors import EncodeError

ALONG_TOKENS = ("mm_token_type_ids", "position_ids")  # columns whose last axis is that of the tokens


@dataclass(slots=True)
class Encoded:
    """One conversation as tokens.

    Args:
        ids: int32 (n,).
        spans: int32 (k, 2), half-open token spans in the loss, k >= 1.
        weights: float32 (k,) weight of each span, None where all are 1.
        more: further columns.
    """

    ids: NDArray[np.int32]
    spans: NDArray[np.int32]
    weights: NDArray[np.float32] | None = None
    more: dict[str, Any] = field(default_factory=dict[str, Any])


def shorter(conversation: Conversation) -> Conversation | None:
    """Take the oldest exchange out; None where system turns and one exchange are all there is."""
    head, exchanges = _exchanges(conversation.messages)
    if len(exchanges) < 2:
        return None
    return Conversation(head + [m for e in exchanges[1:] for m in e], conversation.tools)


def _exchanges(messages: list[Message]) -> tuple[list[Message], list[list[Message]]]:
    """Split into leading system messages and exchanges, each from a user's turn to before the next."""
    start = next((i for i, m in enumerate(messages) if m.role not in {"system", "developer"}), len(messages))
    exchanges: list[list[Message]] = []
    for i, message in enumerate(messages[start:]):
        opens = message.role == "user" and (i == 0 or messages[start + i - 1].role != "user")
        if opens or not exchanges:
            exchanges.append([])
        exchanges[-1].append(message)
    return messages[:start], exchanges


def cut_answer(encoded: Encoded, limit: int) -> Encoded:
    """Keep the first `limit` tokens.

    Raises:
        EncodeError: nothing trained is among them, or a medium lies across the limit or behind it.
    """
    keep = encoded.spans[:, 0] < limit
    if not keep.any():
        raise EncodeError(
            f"{len(encoded.ids)} tokens, and the first {limit} hold nothing to train", reason="no trained token"
        )
    kinds = encoded.more.get("mm_token_type_ids")
    if kinds is not None and kinds[limit:].any():
        raise EncodeError(f"a medium lies over the limit of {limit} tokens", reason="medium over the limit")
    spans = np.minimum(encoded.spans[keep], limit).astype(np.int32)
    weights = None if encoded.weights is None else encoded.weights[keep]
    more = {k: v[..., :limit] if k in ALONG_TOKENS else v for k, v in encoded.more.items()}
    return Encoded(encoded.ids[:limit], spans, weights, more)


def paired(chosen: Encoded, rejected: Encoded) -> Encoded:
    """Make one sample of both answers of a pair."""
    more: dict[str, Any] = {"rejected_input_ids": rejected.ids, "rejected_loss_spans": rejected.spans}
    if rejected.weights is not None:
        more["rejected_loss_weights"] = rejected.weights
    more |= {f"rejected_{k}": v for k, v in rejected.more.items()}
    return Encoded(chosen.ids, chosen.spans, chosen.weights, {**chosen.more, **more})
