"""How a chat template writes turns, learned once from short conversations that it is asked to render.

Decides the header that opens an assistant turn, the tokens that end it, what a prompt already holds of the answer,
and in which form the template takes content, tools and tool calls. Knows no tokens and no real conversation.
"""

import json
import re
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, TypeAlias

from thalweg.core.errors import ConfigError
from thalweg.encode.template import Template, TemplateRefusal, unmark

Message: TypeAlias = dict[str, Any]
_WORDS = ("Kestrel", "Marigold", "Obsidian", "Thimble")  # words no template has a use for
_TOOL, _VALUE = "find_heron", "Quagmire"
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": _TOOL,
            "description": "Finds.",
            "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
        },
    }
]


@dataclass(frozen=True, slots=True)
class Calls:
    """How tool calls must be given to a template.

    Args:
        content: what stands as content beside calls alone: "" | None, or "absent" for no key at all.
        as_text: True where the arguments must be JSON text, not an object.
        written: False where the template writes no calls: they would vanish.
        listed: False where the template writes no tools.
        turns: True where header and end tokens hold in a conversation with tool results, too.
    """

    content: str | None = ""
    as_text: bool = False
    written: bool = False
    listed: bool = False
    turns: bool = False


@dataclass(frozen=True, slots=True)
class Turns:
    """What was learned of a template.

    Args:
        header: text that opens an assistant turn, thoughts left out; "" where it holds no special token.
        prompt: what the template adds to ask for an answer; what an answer begins with of it is not trained.
        ends: special tokens that may end an assistant turn; without any, the next special token borders it.
        thought: an empty thought that `enable_thinking=False` puts into the prompt, "" where there is none.
        parts: True where the template wants content as typed parts, even for text alone.
        calls: what it does with tools.
    """

    header: str
    prompt: str
    ends: tuple[str, ...]
    thought: str
    parts: bool
    calls: Calls = Calls()

    @classmethod
    def learn(cls, template: Template, special: re.Pattern[str]) -> "Turns":
        """Ask a template how it writes a conversation of four short turns.

        Args:
            template: the template.
            special: a search for the tokenizer's special tokens.

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
        quiet = _prompt(template, messages[:1], enable_thinking=False)
        added = quiet[len(header) :] if header and quiet.startswith(header) else ""
        learned = cls(header, prompt, _ends(between[0], after, special), added if "think" in added else "", parts)
        return replace(learned, calls=_calls(template, learned, special))

    def after_prompt(self, text: str, at: int) -> int:
        """Step over what the prompt holds beyond the header, such as an opened thought."""
        held = self.prompt[len(self.header) :] if self.prompt.startswith(self.header) else ""
        return at + next((len(h) for h in (held, held.rstrip()) if h and text.startswith(h, at)), 0)


def _content(word: str, *, parts: bool) -> Any:
    return [{"type": "text", "text": word}] if parts else word


def _probe(*, parts: bool) -> list[Message]:
    roles = ("user", "assistant", "user", "assistant")
    return [{"role": r, "content": _content(w, parts=parts)} for r, w in zip(roles, _WORDS, strict=True)]


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
    """Find the longest beginning of the prompt that stands before both answers, up to a thought."""
    if prompt:
        size = next((n for n in range(len(prompt), 0, -1) if all(prompt[:n] in b for b in between)), 0)
        header = re.split(r"<think|<\|think", prompt[:size])[0]
        return header if special.search(header) else ""
    common = between[0]
    while common and not between[1].endswith(common):
        common = common[1:]
    places = [m.start() for m in special.finditer(common)]
    return common[places[-1] :].rstrip(" ") if places else ""


def _ends(between: str, after: list[str], special: re.Pattern[str]) -> tuple[str, ...]:
    """Tell end tokens from the opener of the next turn: an opener stands after a middle answer only."""
    middle, last = [m.group() if (m := special.search(a)) else "" for a in after]
    if middle == last:
        run = _run(after[0][: common_length(*after)], special)
        return (run or last,) if last else ()
    ends = {last} if last else set[str]()
    opener = special.search(between)
    if middle and opener and opener.group() == middle:  # it ends the user's turn as well
        ends.add(middle)
    return tuple(sorted(ends))


def _run(text: str, special: re.Pattern[str]) -> str:
    """Give the special tokens that stand first in a text, one directly after the other."""
    first = special.search(text)
    if first is None:
        return ""
    stop = first.end()
    while (more := special.match(text, stop)) and more.group():
        stop = more.end()
    return text[first.start() : stop]


def common_length(a: str, b: str) -> int:
    """Count the characters that two texts begin with together."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _calls(template: Template, turns: Turns, special: re.Pattern[str]) -> Calls:
    """Find the form in which the template writes a tool call and its result."""
    listed = False
    for as_text, content in product((False, True), ("", None, "absent")):
        messages = _tool_probe(turns, as_text=as_text, content=content)
        try:
            text, _ = unmark(template.render(messages, _TOOLS))
            bare, _ = unmark(template.render(messages))
        except TemplateRefusal:
            continue
        listed = text != bare
        at = [text.find(_WORDS[0]), text.find(_TOOL, text.find(_WORDS[0]))]
        at += [text.find(_VALUE, at[1]), text.find(_WORDS[2]), text.find(_WORDS[3])]
        if -1 in at or at != sorted(at):
            continue
        spans = header_spans(turns, text, special)
        told = (
            len(spans) == 2 and spans[0][0] <= at[1] < at[2] < spans[0][1] <= at[3] < spans[1][0] <= at[4] < spans[1][1]
        )
        return Calls(content, as_text, written=True, listed=listed, turns=told)
    return Calls(listed=listed)


def _tool_probe(turns: Turns, *, as_text: bool, content: str | None) -> list[Message]:
    arguments: Any = {"place": _VALUE}
    call = {"name": _TOOL, "arguments": json.dumps(arguments) if as_text else arguments}
    asks: Message = {
        "role": "assistant",
        "content": content,
        "tool_calls": [{"id": "abcdefgh1", "type": "function", "function": call}],
    }
    if content == "absent":
        del asks["content"]
    said = {i: _content(_WORDS[i], parts=turns.parts) for i in (0, 2, 3)}
    result = {"role": "tool", "name": _TOOL, "tool_call_id": "abcdefgh1", "content": said[2]}
    return [{"role": "user", "content": said[0]}, asks, result, {"role": "assistant", "content": said[3]}]


def header_spans(turns: Turns, text: str, special: re.Pattern[str]) -> list[tuple[int, int]]:
    """Find each assistant turn of a rendering by its header and end token.

    Returns:
        Half-open character spans, from after what the prompt would hold to after the end token; [] without a header.
    """
    if not turns.header:
        return []
    starts = [m.start() for m in re.finditer(re.escape(turns.header), text)]
    spans: list[tuple[int, int]] = []
    for at, limit in zip(starts, [*starts[1:], len(text)], strict=True):
        start = turns.after_prompt(text, at + len(turns.header))
        if turns.ends:
            found = [(p, p + len(end)) for end in turns.ends if (p := text.find(end, start)) >= 0]
            stop = min(found)[1] if found else limit
        else:
            border = special.search(text, start)
            stop = border.start() if border else limit
        spans.append((start, min(stop, limit)))
    return spans
