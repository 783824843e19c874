"""Rows without text: what is said of them.

Decides what the error names and advises, by the columns that a row has. Which of them go on is said by later steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from thalweg.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

_CHAT = ("messages", "conversations", "conversation", "dialogue", "prompt", "instruction", "chosen")
_SHOWN = 8  # columns named in a message


def no_text(text_key: str, columns: Mapping[str, Any], *, adapted: bool) -> InputError:
    """Say that a row has no text.

    Args:
        text_key: the column in which it was looked for.
        columns: what else the row has.
        adapted: an adapter of the user's made the row's text.
    """
    names = [str(name) for name in columns]
    shown = ", ".join(map(repr, names[:_SHOWN])) + (", ..." if len(names) > _SHOWN else "") if names else "nothing"
    what = "the adapter gives no text" if adapted else f"column {text_key!r} is missing or empty"
    fix = "let the adapter give 'text'" if adapted else "name the column of the text with text_key="
    if any(name in columns for name in _CHAT):
        fix += "; conversations need no text where EncodeChat(tokenizer) comes later in the pipeline of an executor"
        fix += " (with columns= where they have names of their own)"
    return InputError(f"{what}; beside it the row has {shown}", fix=fix)
