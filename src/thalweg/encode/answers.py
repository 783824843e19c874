"""Where the assistant's words are in a rendering: character spans, one for each assistant message.

Decides it in this order. Where the header of an assistant turn holds a special token, which no text of a user can
forge, all its places are the turns. Else the renderings of the growing conversation must continue one another. Else
words are wrapped in marks and the marked rendering must be the plain one. Else the conversation is refused. (A
template with `{% generation %}` says it itself: `template.unmark`.) Knows no tokens: borders are characters.
"""

import re
from typing import Any, TypeAlias

from thalweg.encode.errors import EncodeError
from thalweg.encode.template import CLOSE, OPEN, Template, TemplateRefusal, unmark
from thalweg.encode.turns import Message, Turns, common_length, header_spans

Span: TypeAlias = tuple[int, int]


def find(
    template: Template, turns: Turns, special: re.Pattern[str], *, messages: list[Message], tools: Any, rendered: str
) -> list[Span]:
    """Find the span of each assistant message, from after its header to after its end token.

    Args:
        template: the template that wrote it.
        turns: what was learned of it.
        special: a search for special tokens.
        messages: the conversation in the template's form.
        tools: as given to the template.
        rendered: the rendering, unmarked.

    Returns:
        Half-open character spans, one for each assistant message, in order.

    Raises:
        EncodeError: the template does not let the assistant's words be told from the rest.
    """
    wanted = sum(m["role"] == "assistant" for m in messages)
    if not wanted:
        return []
    plain = turns.calls.turns or not any(m["role"] == "tool" for m in messages)
    spans = header_spans(turns, rendered, special) if plain else []
    if len(spans) != wanted:
        spans = _by_growth(template, turns, special, messages=messages, tools=tools, rendered=rendered)
    if len(spans) != wanted:
        spans = _by_marks(template, turns, messages, tools, rendered)
    if len(spans) != wanted:
        raise EncodeError(
            "the chat template does not show which words are the assistant's in this conversation",
            reason="assistant turns not found",
            fix="use a template with {% generation %} marks (chat_template=...)",
        )
    return spans


def _by_growth(
    template: Template, turns: Turns, special: re.Pattern[str], *, messages: list[Message], tools: Any, rendered: str
) -> list[Span]:
    """Render the conversation up to each assistant turn: but for its end, it must be how the whole begins."""
    spans: list[Span] = []
    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        try:
            asked = unmark(template.render(messages[:i], tools, prompt=True))[0] if i else ""
            told = unmark(template.render(messages[: i + 1], tools))[0]
        except TemplateRefusal:
            return []
        if i:
            start = common_length(asked, told)
            if turns.header and told.startswith(turns.header, start):
                start = turns.after_prompt(told, start + len(turns.header))
        else:
            place = told.find(turns.prompt) if turns.prompt else -1
            if place < 0:
                return []
            start = place + len(turns.prompt)
        stop = max(start, len(_without_tail(told, special)))
        if not rendered.startswith(told[:stop]) or (i and start < len(asked) - len(turns.prompt)):
            return []
        end = next((e for e in turns.ends if rendered.startswith(e, stop)), "")
        other = special.match(rendered, stop)
        spans.append(
            (start, stop + (len(end) if end else other.end() - stop if other and other.end() <= len(told) else 0))
        )
    return spans


def _without_tail(text: str, special: re.Pattern[str]) -> str:
    """Take special tokens and white space from the end of a text."""
    stop = len(text)
    for match in [*special.finditer(text)][::-1]:
        if text[match.end() : stop].strip():
            break
        stop = match.start()
    return text[:stop].rstrip() if stop == len(text) else text[:stop]


def _by_marks(template: Template, turns: Turns, messages: list[Message], tools: Any, rendered: str) -> list[Span]:
    """Wrap the words of each assistant turn in marks; without the marks the rendering must be the plain one."""
    wrapped: list[Message] = []
    for message in messages:
        if message["role"] == "assistant":
            if message.get("tool_calls") or (content := _wrapped(message.get("content"))) is None:
                return []
            message = {**message, "content": content}  # noqa: PLW2901
        wrapped.append(message)
    try:
        plain, spans = unmark(template.render(wrapped, tools))
    except TemplateRefusal:
        return []
    if plain != rendered or len(spans) != sum(m["role"] == "assistant" for m in messages):
        return []
    out: list[Span] = []
    for start, stop in spans:
        spaces = len(rendered[stop:]) - len(rendered[stop:].lstrip(" "))
        end = next((e for e in turns.ends if rendered.startswith(e, stop + spaces)), "")
        out.append((start, stop + spaces + len(end) if end else stop))
    return out


def _wrapped(content: Any) -> Any:
    if isinstance(content, str) and (core := content.strip()):
        return content.replace(core, f"{OPEN}{core}{CLOSE}", 1)
    if isinstance(content, list) and len(content) == 1 and content[0].get("type") == "text":
        text = _wrapped(content[0]["text"])
        return None if text is None else [{**content[0], "text": text}]
    return None
