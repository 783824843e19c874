"""Who says what in a record: prompts and answers, whatever its layout.

Decides what a check may expect to be in the loss. Knows no token.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from thalweg.core.errors import ThalwegError
from thalweg.encode.errors import EncodeError
from thalweg.encode.layouts import read, recognise

# How a turn of the user begins in the chat formats in use.
USER_MARKS = (
    "<|im_start|>user", "<|start_header_id|>user", "<start_of_turn>user", "<|user|>", "[INST]", "### Instruction",
    "<\uff5cUser\uff5c>", "<|im_user|>", "\nHuman:",
)  # fmt: skip
# Tokens that end a text or an answer.
END_MARKS = (
    "<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|endoftext|>", "<end_of_turn>", "</s>", "<|end|>", "<eos>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>", "<|eom_id|>", "<|return|>", "<|call|>", "<|im_sep|>",
)  # fmt: skip
SHORT = 12  # characters below which a prompt may well stand in an answer by chance


def said(record: Mapping[str, Any]) -> tuple[list[str], list[str]] | None:
    """Give the texts of prompts (system and user) and of answers, in order; None where it is no conversation."""
    try:
        conversation = read(dict(record), recognise(dict(record)))
    except (ThalwegError, KeyError, TypeError, ValueError):
        return None
    prompts = [m.text() for m in conversation.messages if m.role in {"system", "user", "developer"}]
    answers = [m.text() for m in conversation.messages if m.role == "assistant" and (m.weight is None or m.weight)]
    return prompts, answers


def is_talk(record: Mapping[str, Any]) -> bool:
    """Say whether a record has the columns of a conversation, whatever is in them."""
    try:
        recognise(dict(record))
    except ThalwegError:
        return False
    return True


def silent(record: Mapping[str, Any]) -> str:
    """Say what keeps a record with the columns of a conversation from teaching an answer; "" where nothing does."""
    if not is_talk(record):
        return ""
    try:
        messages = read(dict(record), recognise(dict(record))).messages
    except EncodeError as error:
        return "" if error.reason == "media and placeholders differ" else error.what  # that is said elsewhere
    except (KeyError, TypeError, ValueError):
        return "turns that cannot be read"
    answers = [m for m in messages if m.role == "assistant"]
    if not answers:
        return "nobody answers"
    return "" if any(m.text().strip() or m.tool_calls or m.media() for m in answers) else "every answer is empty"


@lru_cache(maxsize=4096)
def plain(text: str) -> str:
    """Give a text without what a template may change: spaces and lines."""
    return "".join(text.split())
