"""Where the assistant's words are in a rendering: character spans, one for each assistant message.

Decides it in this order. A template with `{% generation %}` says so itself. Else the header that opens an assistant
turn and the token that ends it are learned once from a short conversation; where the header holds a special token,
which no text of a user can forge, all its places are the turns. Else the renderings of the growing conversation must
continue one another. Else words are wrapped in marks and the marked rendering must be the plain one. Else the
template is refused. Knows no tokens: borders are characters.
"""

import re
from dataclasses import dataclass
from typing import Any, TypeAlias

from thalweg.core.errors import ConfigError
from thalweg.encode.errors import EncodeError
from thalweg.encode.template import CLOSE, OPEN, Template, TemplateRefusal, unmark

Span: TypeAlias = tuple[int, int]
Message: TypeAlias = dict[str, Any]
_WORDS = ("Kestrel", "Marigold", "Obsidian", "Thimble")  # words no template has a use for


@dataclass(frozen=True, slots=True)
class Turns:
    """What was learned of a template.

    Args:
        header: text that opens an assistant turn, "" where it holds no special token.
        end: special token that ends an assistant turn, "" where there is none.
        border: special token that opens the turn after it, where there is no end token.
        thought: an empty thought that `enable_thinking=False` puts into the prompt, "" where there is none.
        parts: True where the template wants content as typed parts, even for text alone.
    """

    header: str
    end: str
    border: str
    thought: str
    parts: bool

    @classmethod
    def learn(cls, template: Template, special: re.Pattern[str]) -> "Turns":
        """Ask a template how it writes a conversation of four short turns.

        Raises:
            ConfigError: it cannot write user and assistant turns at all, or loses their words.
        """
        parts, text = _first_that_shows(template)
        messages = _probe(parts=parts)
        at = [text.index(word) for word in _WORDS]
        between = [text[at[i] + len(_WORDS[i]) : at[i + 1]] for i in (0, 2)]
        after = [text[at[1] + len(_WORDS[1]) : at[2]], text[at[3] + len(_WORDS[3]) :]]
        prompt = _prompt(template, messages[:1])
        header = _header(prompt, between, special)
        ends = [m.group() if (m := special.search(a)) else "" for a in after]
        quiet = _prompt(template, messages[:1], enable_thinking=False)
        thought = (
            quiet[len(header) :] if header and quiet.startswith(header) and "think" in quiet[len(header) :] else ""
        )
        same = ends[0] == ends[1]
        return cls(header, ends[1] if same else "", "" if same else ends[0], thought, parts)


def _probe(*, parts: bool) -> list[Message]:
    roles = ("user", "assistant", "user", "assistant")
    return [
        {"role": role, "content": [{"type": "text", "text": word}] if parts else word}
        for role, word in zip(roles, _WORDS, strict=True)
    ]


def _first_that_shows(template: Template) -> tuple[bool, str]:
    said = "it does not write what the turns say"
    for parts in (False, True):
        try:
            text, _ = unmark(template.render(_probe(parts=parts)))
        except TemplateRefusal as error:
            said = str(error)
            continue
        at = [text.find(word) for word in _WORDS]
        if -1 not in at and at == sorted(at) and "'type'" not in text:
            return parts, text
    raise ConfigError(
        f"the chat template cannot write a user and an assistant turn: {said}",
        where="chat template",
        fix="check that it is the template of a chat model",
    )


def _prompt(template: Template, messages: list[Message], **more: Any) -> str:
    """Give what the template adds to ask for an answer; "" where it adds nothing."""
    try:
        short, _ = unmark(template.render(messages, **more))
        long, _ = unmark(template.render(messages, prompt=True, **more))
    except TemplateRefusal:
        return ""
    return long[len(short) :] if long.startswith(short) else ""


def _header(prompt: str, between: list[str], special: re.Pattern[str]) -> str:
    for size in range(len(prompt), 0, -1):
        if all(prompt[:size] in b for b in between):
            return prompt[:size] if special.search(prompt[:size]) else ""
    if prompt:
        return ""
    common = between[0]
    while common and not between[1].endswith(common):
        common = common[1:]
    places = [m.start() for m in special.finditer(common)]
    return common[places[-1] :].rstrip(" ") if places else ""


def find(
    template: Template, turns: Turns, messages: list[Message], tools: Any, rendered: str, **more: Any
) -> list[Span]:
    """Find the span of each assistant message, from after its header to after its end token.

    Args:
        template: the template that wrote it.
        turns: what `Turns.learn` learned of it.
        messages: the conversation in the template's form.
        tools: as given to the template.
        rendered: the rendering, unmarked.
        more: variables given to the template.

    Returns:
        Half-open character spans, one for each assistant message, in order.

    Raises:
        EncodeError: the template does not let the assistant's words be told from the rest.
    """
    wanted = sum(m["role"] == "assistant" for m in messages)
    spans = _by_header(turns, rendered) if turns.header else []
    if len(spans) != wanted:
        spans = _by_growth(template, turns, messages, tools, rendered, **more)
    if len(spans) != wanted:
        spans = _by_marks(template, turns, messages, tools, rendered, **more)
    if len(spans) != wanted:
        raise EncodeError(
            "the chat template does not show which words are the assistant's in this conversation",
            reason="assistant turns not found",
            fix="use a template with {% generation %} marks (chat_template=...)",
        )
    return spans


def _by_header(turns: Turns, text: str) -> list[Span]:
    spans: list[Span] = []
    at = text.find(turns.header)
    while at >= 0:
        start = at + len(turns.header)
        stop = text.find(turns.end or turns.border, start) if turns.end or turns.border else -1
        stop = len(text) if stop < 0 else stop + len(turns.end)
        spans.append((start, stop))
        at = text.find(turns.header, start)
    return spans


def _by_growth(
    template: Template, turns: Turns, messages: list[Message], tools: Any, rendered: str, **more: Any
) -> list[Span]:
    """Render the conversation up to each assistant turn; each rendering must be a beginning of the next."""
    spans: list[Span] = []
    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        try:
            asked, _ = unmark(template.render(messages[:i], tools, prompt=True, **more)) if i else ("", [])
            bare, _ = unmark(template.render(messages[:i], tools, **more)) if i else ("", [])
            told, _ = unmark(template.render(messages[: i + 1], tools, **more))
        except TemplateRefusal:
            return []
        if not rendered.startswith(bare) or not rendered.startswith(told) or not told.startswith(bare):
            return []
        start = _common(asked, told)
        stop = told.rfind(turns.end, start) + len(turns.end) if turns.end and turns.end in told[start:] else len(told)
        if start < len(bare) or told[stop:].strip():
            return []
        spans.append((start, stop))
    return spans


def _common(a: str, b: str) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _by_marks(
    template: Template, turns: Turns, messages: list[Message], tools: Any, rendered: str, **more: Any
) -> list[Span]:
    """Wrap the words of each assistant turn in marks; without the marks the rendering must be the plain one."""
    wrapped: list[Message] = []
    for message in messages:
        content = message.get("content")
        if message["role"] == "assistant":
            core = content.strip() if isinstance(content, str) else ""
            if not core or message.get("tool_calls"):
                return []
            message = {**message, "content": str(content).replace(core, f"{OPEN}{core}{CLOSE}", 1)}  # noqa: PLW2901
        wrapped.append(message)
    try:
        plain, spans = unmark(template.render(wrapped, tools, **more))
    except TemplateRefusal:
        return []
    if plain != rendered or len(spans) != sum(m["role"] == "assistant" for m in messages):
        return []
    out: list[Span] = []
    for start, stop in spans:
        bare = rendered[stop:].lstrip(" ")
        closed = len(rendered) - len(bare) + len(turns.end)
        out.append((start, closed if turns.end and bare.startswith(turns.end) else stop))
    return out
