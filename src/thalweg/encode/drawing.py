"""A conversation is written by its template once, with what is trained known by its characters.

Decides how messages are handed to the template, what happens where it refuses them, and which turns are trained.
Knows no token.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from thalweg.core.errors import ConfigError, nearest
from thalweg.encode.answers import find
from thalweg.encode.conversation import Conversation, Message
from thalweg.encode.errors import EncodeError
from thalweg.encode.guard import Guard, moved, whole
from thalweg.encode.qwen import chatml_template
from thalweg.encode.template import Template, TemplateRefusal, unmark
from thalweg.encode.tokens import Vocabulary
from thalweg.encode.toolcalls import as_text, check_format
from thalweg.encode.turns import Turns

TRAIN_ON = ("assistant", "last", "all")
_TOOLS = {
    "reason": "tools not in the template",
    "fix": 'use a template with tools (chat_template=...), or tool_format="qwen" to write them as text',
}


@dataclass(slots=True)
class Drawn:
    """One conversation as the template wrote it.

    Args:
        text: the rendering.
        spans: half-open character spans in the loss.
        weights: of each span.
        pieces: set where the text of a user holds a special token: (text, id) of special tokens, (text, None) of text.
        media: (kind, reference) in the order of the text.
        measured: measure of each medium, where it was needed for the text.
    """

    text: str
    spans: list[tuple[int, int]]
    weights: list[float]
    pieces: list[tuple[str, int | None]] | None = None
    media: list[tuple[str, Any]] = field(default_factory=list[tuple[str, Any]])
    measured: list[Any] | None = None


class Drawer:
    """Writes conversations with one template.

    Args:
        tokenizer: its special tokens are what text must not become, and variables of the template.
        train_on: "assistant", "last" or "all".
        enable_thinking: None leaves thoughts, True asks for them, False takes them out.
        chat_template: jinja text, path of a file, or None for the tokenizer's own.
        variables: what the template may read further.
        tool_format: None leaves tools to the template; "qwen" writes them as text.
        split_special_tokens: keep what looks like a special token in a message as text.

    Raises:
        ConfigError: no template, or one that cannot write user and assistant turns; an unknown word.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        train_on: str,
        enable_thinking: bool | None,
        chat_template: str | None,
        variables: Mapping[str, Any] | None,
        split_special_tokens: bool,
        tool_format: str | None = None,
    ) -> None:
        check_format(tool_format)
        self.tool_format = tool_format
        if train_on not in TRAIN_ON:
            raise ConfigError(f"unknown train_on {train_on!r}", where="train_on=", fix=nearest(train_on, TRAIN_ON))
        self.train_on, self.enable_thinking, self.keeps_text = train_on, enable_thinking, split_special_tokens
        named: dict[str, Any] = {"bos_token": "", "eos_token": "", "pad_token": ""}
        named |= {k: v for k, v in getattr(tokenizer, "special_tokens_map", {}).items() if isinstance(v, str)}
        if enable_thinking is not None:
            named["enable_thinking"] = enable_thinking
        self.template = Template(template_source(tokenizer, chat_template), {**named, **(variables or {})})
        self.guard = Guard(Vocabulary.of(tokenizer).special)
        self.turns = Turns.learn(self.template, self.guard.pattern)
        self.takes_plain = not self.turns.parts and enable_thinking is not False  # roles and texts go as they are

    def draw(self, conversation: Conversation) -> Drawn:
        """Render a conversation and find what is trained in it.

        Raises:
            EncodeError: the template refuses it, loses part of it, or does not show whose words are whose.
        """
        if self.tool_format is not None:
            conversation = as_text(conversation)
        messages, tools = conversation.messages, conversation.tools
        media: list[tuple[str, Any]] = []
        value: Any
        if self.takes_plain and not tools and all(m.is_plain for m in messages):
            written = [{"role": m.role, "content": m.content} for m in messages]
            value = "\n".join([str(m.content) for m in messages])
        else:
            messages = [self._without_thought(m) for m in messages]
            written = [self._written(m) for m in messages]
            if tools and not self.turns.calls.listed:
                raise EncodeError("the chat template writes no tools", **_TOOLS)
            media = [(p["type"], p.get(p["type"])) for m in messages for p in m.media()]
            if media:
                written = [_without_references(m) for m in written]
            value = [written, tools or []]
        dangerous = self.keeps_text and self.guard.is_dangerous(value)
        if dangerous:
            written, tools = self.guard.cut(written), self.guard.cut(tools)
        marked, written = self._render(written, tools)
        text, spans = unmark(marked)
        if not self.template.marked:
            spans = find(self.template, self.turns, self.guard.pattern, messages=written, tools=tools, rendered=text)
        spans, weights = self._chosen(text, spans, messages)
        if not dangerous:
            return Drawn(text, spans, weights, None, media)
        return Drawn(whole(text), moved(text, spans), weights, self.guard.pieces(text), media)

    def _written(self, message: Message) -> dict[str, Any]:
        """Write a message in the form that the template takes."""
        written = message.for_template(parts=self.turns.parts)
        if not message.tool_calls:
            return written
        calls = self.turns.calls
        if not calls.written:
            raise EncodeError("the chat template writes no tool calls", **_TOOLS)
        if not message.text():
            written["content"] = calls.content
            if calls.content == "absent":
                del written["content"]
        if calls.as_text:
            written["tool_calls"] = [_as_text(call) for call in message.tool_calls]
        return written

    def _render(self, written: list[dict[str, Any]], tools: Any) -> tuple[str, list[dict[str, Any]]]:
        """Render; where the template refuses the order of roles, once more with neighbours of one role joined."""
        try:
            return self.template.render(written, tools), written
        except TemplateRefusal as error:
            joined = _joined(written)
            if len(joined) < len(written):
                try:
                    return self.template.render(joined, tools), joined
                except TemplateRefusal:
                    pass
            raise EncodeError(f"the chat template refuses it: {error}", reason="refused by the template") from None

    def _without_thought(self, message: Message) -> Message:
        if self.enable_thinking is not False or message.role != "assistant":
            return message
        content = message.content
        if isinstance(content, str) and "</think>" in content:
            content = content.rpartition("</think>")[2].lstrip("\n")
        return Message(message.role, content, None, message.tool_calls, message.weight, message.more)

    def _chosen(
        self, text: str, spans: list[tuple[int, int]], messages: list[Message]
    ) -> tuple[list[tuple[int, int]], list[float]]:
        """Keep the spans that are trained, with their weights."""
        if self.train_on == "all":
            return [(0, len(text))], [1.0]
        if self.template.marked and self.enable_thinking is False and self.turns.thought:
            n = len(self.turns.thought)
            spans = [(a + n, b) if text.startswith(self.turns.thought, a) else (a, b) for a, b in spans]
        if any(m.weight and m.role != "assistant" for m in messages):
            raise EncodeError(
                "a turn that is not the assistant's has a weight, and only answers are trained",
                reason="weight of a question",
                fix='train_on="all" trains everything, weights aside',
            )
        weights = [1.0 if m.weight is None else m.weight for m in messages if m.role == "assistant"]
        if len(spans) != len(weights):
            if self.train_on == "last" or any(w != 1 for w in weights):
                raise EncodeError(
                    f"{len(weights)} answers and {len(spans)} trained blocks: none can be left out",
                    reason="trained blocks are not turns",
                )
            weights = [1.0] * len(spans)
        if self.train_on == "last":
            spans, weights = spans[-1:], weights[-1:]
        return [s for s, w in zip(spans, weights, strict=True) if w > 0], [w for w in weights if w > 0]


def template_source(tokenizer: Any, given: str | None) -> str:
    """Find the template's text: given as text, as a path or as the name of a family, else the tokenizer's own.

    Raises:
        ConfigError: there is none.
    """
    if given is not None and "{" not in given and "." not in given and "/" not in given:
        return chatml_template(given)
    if given is not None and "{" not in given:
        try:
            with open(given, encoding="utf-8") as file:  # noqa: PTH123 - a path or text, as the user typed it
                return file.read()
        except OSError as error:
            raise ConfigError(f"no chat template at {given!r}", where="chat_template=", fix=str(error)) from error
    source = given or getattr(tokenizer, "chat_template", None)
    if isinstance(source, dict):
        source = source.get("default")
    if not source:
        raise ConfigError(
            "the tokenizer has no chat template", where="ChatEncoder", fix="chat_template= the model's .jinja file"
        )
    return str(source)


def _as_text(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = function["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": text}}


def _without_references(message: dict[str, Any]) -> dict[str, Any]:
    """Leave a template only the kind of each medium: it must not read paths, bytes or arrays."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return {
        **message,
        "content": [p if p["type"] == "text" else {"type": p["type"], p["type"]: p["type"]} for p in content],
    }


def _joined(written: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join neighbours of one role where their contents are text."""
    out: list[dict[str, Any]] = []
    for message in written:
        text = message.get("content")
        before = out[-1] if out else None
        same = before is not None and message["role"] == before["role"] in {"user", "assistant", "system"}
        calls = before is not None and (message.get("tool_calls") or before.get("tool_calls"))
        if same and not calls and before is not None and isinstance(text, str) and isinstance(before["content"], str):
            out[-1] = {**before, "content": f"{before['content']}\n\n{text}"}
        else:
            out.append(message)
    return out
