"""How the records of the field write conversations, and how each becomes the one internal form.

Decides which layout a record has (messages, ShareGPT, Alpaca, prompt and response, preference pair), which names
columns and roles may have, and what happens to odd shapes. Each rule is in docs/encode.md. Knows no template.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from thalweg.core.errors import ConfigError, nearest
from thalweg.encode.conversation import Conversation, Message
from thalweg.encode.errors import EncodeError
from thalweg.encode.messages import MEDIA, TAGS, Tags, place_media, read_messages

# our name of a column -> names it is found under, best first
COLUMNS: dict[str, tuple[str, ...]] = {
    "messages": ("messages", "conversations", "conversation", "dialogue", "dialog"),
    "instruction": ("instruction",),
    "input": ("input",),
    "output": ("output",),
    "prompt": ("prompt", "question", "query"),
    "response": ("response", "completion", "answer"),
    "chosen": ("chosen",),
    "rejected": ("rejected",),
    "history": ("history",),
    "system": ("system", "system_prompt"),
    "tools": ("tools", "functions"),
    "images": ("images", "image"),
    "videos": ("videos", "video"),
    "audios": ("audios", "audio"),
}
_KINDS = (
    ("pair", ("chosen", "rejected")),
    ("messages", ("messages",)),
    ("alpaca", ("instruction", "output")),
    ("prompt", ("prompt", "response")),
)


@dataclass(frozen=True, slots=True)
class Layout:
    """A recognised layout.

    Args:
        kind: "messages", "alpaca", "prompt" or "pair".
        columns: our name of each column -> its name in the records.
        tags: names of keys and roles within messages.
    """

    kind: str
    columns: dict[str, str] = field(default_factory=dict[str, str])
    tags: Tags = TAGS

    def __str__(self) -> str:
        """Say it in one line."""
        return f"{self.kind}: " + ", ".join(f"{ours} = {theirs!r}" for ours, theirs in self.columns.items())

    def get(self, record: Mapping[str, Any], name: str) -> Any:
        """Give the value of one of our columns, None where it is absent or null."""
        return record.get(self.columns[name]) if name in self.columns else None


def are_columns(record: Mapping[str, Any], role: Iterable[str]) -> bool:
    """Tell columns of records from one record: lists of one length above 0, none of which holds a message."""
    if not record or not all(isinstance(v, list) for v in record.values()):
        return False
    firsts = [v[0] if v else None for v in record.values()]
    messages = any(isinstance(first, Mapping) and any(key in first for key in role) for first in firsts)
    return len({len(v) for v in record.values()} | {0}) == 2 and not messages


def recognise(record: Mapping[str, Any], columns: Mapping[str, str | None] | None = None) -> Layout:
    """Find the layout of a record by its columns.

    Args:
        record: one record.
        columns: our names -> theirs for some or all columns (None: that column is not used), and names of message
            keys and roles (`role_tag`, `content_tag`, `user_tag`, `assistant_tag`, ...). What is not named is found.

    Raises:
        ConfigError: an unknown name in `columns`, or one that the record does not have.
        EncodeError: no known layout.
    """
    given = dict(columns or {})
    tags = Tags.of({k: given.pop(k) for k in list(given) if k.endswith("_tag")})
    for ours, theirs in given.items():
        if ours not in COLUMNS:
            raise ConfigError(
                f"unknown column {ours!r}", where="columns=", fix=nearest(ours, [*COLUMNS, *TAGS.names()])
            )
        if theirs is not None and theirs not in record and ours in {"messages", "instruction", "prompt", "chosen"}:
            raise ConfigError(
                f"no column {theirs!r} in the records", where=f"columns={{{ours!r}: ...}}", fix=nearest(theirs, record)
            )
    found = {ours: theirs for ours, theirs in given.items() if theirs is not None}
    for ours, names in COLUMNS.items():
        name = next((n for n in names if record.get(n) is not None), None)
        if ours not in given and name is not None and name not in found.values():
            found[ours] = name
    for kind, needed in _KINDS:
        if all(n in found for n in needed) and not (kind == "prompt" and "instruction" in found):
            return Layout(kind, found, tags)
    raise EncodeError(
        f"no known layout has the columns {sorted(map(str, record))}",
        reason="unknown layout",
        fix='say it: columns={"messages": "my_column"}, or "instruction" and "output", or "prompt" and "response"',
    )


def read(record: Mapping[str, Any], layout: Layout) -> Conversation:
    """Read a record.

    Raises:
        EncodeError: a shape that no rule accepts.
    """
    if layout.kind == "messages" and len(layout.columns) == 1:  # turns and nothing beside them
        return Conversation(*_placed(read_messages(layout.get(record, "messages"), layout.tags), {}))
    media = {k: _media(layout.get(record, column)) for k, column in MEDIA.items() if column in layout.columns}
    rejected: list[Message] | None = None
    if layout.kind == "messages":
        messages = read_messages(layout.get(record, "messages"), layout.tags)
    elif layout.kind == "alpaca":
        messages = _alpaca(record, layout)
    elif layout.kind == "prompt":
        messages = _side(layout.get(record, "prompt"), "user", layout) + _side(
            layout.get(record, "response"), "assistant", layout
        )
    else:
        messages, rejected = _pair(record, layout)
    system = layout.get(record, "system")
    if system and not (messages and messages[0].role == "system"):
        head = Message("system", _text(system, "system"))
        messages = [head, *messages]
        rejected = [head, *rejected] if rejected is not None else None
    messages, tools, in_text = _placed(messages, media, layout.get(record, "tools"))
    if rejected is not None:
        rejected = _placed(rejected, media)[0]
    return Conversation(messages, tools, in_text, rejected)


def _placed(
    messages: list[Message], media: Mapping[str, list[Any]], tools: Any = None
) -> tuple[list[Message], list[Any] | None, dict[str, list[Any]]]:
    """Put media in their places, and read tools."""
    if not messages:
        raise EncodeError("the conversation has no messages", reason="no messages")
    messages, in_text = place_media(messages, {kind: list(refs) for kind, refs in media.items() if refs})
    return messages, None if tools is None else read_tools(tools), in_text


def read_tools(value: Any) -> list[Any] | None:
    """Read tools: a list of schemas, or JSON of one; a bare function is wrapped as {"type": "function"}."""
    value = parsed(value)
    if value in (None, "", [], {}):
        return None
    items = value if isinstance(value, list) else [value]
    tools: list[Any] = []
    for item in items:
        tool: Any = parsed(item)
        if not isinstance(tool, dict):
            raise EncodeError(f"a tool is a JSON object, not {type(tool).__name__}", reason="unreadable tools")
        tools.append(tool if "function" in tool else {"type": "function", "function": tool})
    return tools


def parsed(value: Any) -> Any:
    """Read a string that holds a JSON list or object; give anything else as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _media(value: Any) -> list[Any]:
    if value is None or (isinstance(value, (str, list)) and not value):
        return []
    many = isinstance(value, (list, tuple)) or str(getattr(value, "dtype", "")) == "object"  # an array of references
    return list(cast("Iterable[Any]", value)) if many else [value]


def _text(value: Any, column: str) -> str:
    if isinstance(value, str):
        return value
    raise EncodeError(f"column {column!r} holds {type(value).__name__}, not text", reason="not text")


def _side(value: Any, role: str, layout: Layout) -> list[Message]:
    """Read one side of an exchange: a text, one message, or a list of messages."""
    value = parsed(value) if not isinstance(value, str) else value
    if value is None:
        return []
    if isinstance(value, str):
        return [Message(role, value)]
    if isinstance(value, dict):
        return read_messages([value], layout.tags)
    return read_messages(value, layout.tags)


def _alpaca(record: Mapping[str, Any], layout: Layout) -> list[Message]:
    messages: list[Message] = []
    history = parsed(layout.get(record, "history")) or []
    if not isinstance(history, (list, tuple)):
        raise EncodeError("history is a list of [question, answer]", reason="unreadable history")
    for turn in list(history):
        if not isinstance(turn, (list, tuple)) or len(turn) != 2:
            raise EncodeError("history is a list of [question, answer]", reason="unreadable history")
        messages += [Message("user", _text(turn[0], "history")), Message("assistant", _text(turn[1], "history"))]
    asked = [_text(v, n) for n in ("instruction", "input") if (v := layout.get(record, n))]
    messages.append(Message("user", "\n".join(asked)))
    messages.append(Message("assistant", _text(layout.get(record, "output") or "", "output")))
    return messages


def _pair(record: Mapping[str, Any], layout: Layout) -> tuple[list[Message], list[Message]]:
    """Give both sides; what they begin with together is their prompt, whose answers are not trained."""
    chosen, rejected = (_side(layout.get(record, n), "assistant", layout) for n in ("chosen", "rejected"))
    if not chosen or not rejected:
        raise EncodeError("a pair needs both answers", reason="half a pair")
    if "messages" in layout.columns:
        prompt = read_messages(layout.get(record, "messages"), layout.tags)
    elif "prompt" in layout.columns:
        prompt = _side(layout.get(record, "prompt"), "user", layout)
    elif "instruction" in layout.columns:
        prompt = _alpaca(record, layout)[:-1]
    else:
        prompt = []
    left, right = prompt + chosen, prompt + rejected
    apart = (i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a is not b and a != b)
    n = next(apart, min(len(left), len(right)))
    asked = [replace(m, weight=0.0) if m.role == "assistant" and m.weight is None else m for m in left[:n]]
    return asked + left[n:], asked + right[n:]
