"""Tools for templates that write none: calls, results and schemas as text in ordinary turns.

Decides the text of each named notation. Knows no template.
"""

import json
from dataclasses import replace
from typing import Any

from thalweg.core.errors import ConfigError, nearest
from thalweg.encode.conversation import Conversation, Message
from thalweg.encode.errors import EncodeError

FORMATS = ("qwen",)
_HEAD = (
    "# Tools\n\nThese functions can be called. Their signatures are between <tools> and </tools>:\n<tools>\n{tools}\n"
    '</tools>\n\nWrite each call as a JSON object with name and arguments:\n<tool_call>\n{{"name": ..., "arguments": '
    "{{...}}}}\n</tool_call>"
)


def check_format(name: str | None) -> None:
    """Refuse an unknown notation.

    Raises:
        ConfigError: it is not None and not in `FORMATS`.
    """
    if name is not None and name not in FORMATS:
        raise ConfigError(f"unknown tool_format {name!r}", where="tool_format=", fix=nearest(name, FORMATS))


def as_text(conversation: Conversation) -> Conversation:
    """Write tools into the system turn, calls into their answers, results into turns of the user.

    Raises:
        EncodeError: a turn with calls or a system turn whose content has media.
    """
    messages: list[Message] = []
    for message in conversation.messages:
        if message.role == "tool":
            said = f"<tool_response>\n{message.text()}\n</tool_response>"
            if messages and messages[-1].role == "user" and messages[-1].text().endswith("</tool_response>"):
                messages[-1] = replace(messages[-1], content=f"{messages[-1].text()}\n{said}")
            else:
                messages.append(Message("user", said))
        elif message.tool_calls:
            if message.media():
                raise EncodeError("an answer with calls has media", reason="media beside tool calls")
            calls = [f"<tool_call>\n{_call(c)}\n</tool_call>" for c in message.tool_calls]
            content = "\n".join([*([message.text()] if message.text() else []), *calls])
            messages.append(replace(message, content=content, tool_calls=[]))
        else:
            messages.append(message)
    if conversation.tools:
        schemas = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in conversation.tools)
        head = _HEAD.format(tools=schemas)
        if messages and messages[0].role == "system":
            messages[0] = replace(messages[0], content=f"{messages[0].text()}\n\n{head}")
        else:
            messages.insert(0, Message("system", head))
    return replace(conversation, messages=messages, tools=None)


def _call(call: dict[str, Any]) -> str:
    function = call["function"]
    arguments = function["arguments"]
    if isinstance(arguments, str):
        return f'{{"name": {json.dumps(function["name"], ensure_ascii=False)}, "arguments": {arguments}}}'
    return json.dumps({"name": function["name"], "arguments": arguments}, ensure_ascii=False)
