"""One message of a record becomes one message of ours: roles by any name, typed parts, tool calls, media places.

Decides which roles and parts are known, and that a media placeholder counts only in turns that may carry media.
Knows no column names outside a message.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from thalweg.core.errors import ConfigError, nearest
from thalweg.encode.conversation import Message, Part
from thalweg.encode.errors import EncodeError

MEDIA = {"image": "images", "video": "videos", "audio": "audios"}
_PLACE = re.compile("<(image|video|audio)>")
_CALL = "function_call"  # an assistant turn whose content is the call
_ROLES = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "tool": "tool",
    "observation": "tool",
    "function": "tool",
    "ipython": "tool",
    "tool_response": "tool",
    "function_call": _CALL,
    "tool_call": _CALL,
}
_TAG_ROLES = {
    "user_tag": "user",
    "assistant_tag": "assistant",
    "observation_tag": "tool",
    "function_tag": _CALL,
    "system_tag": "system",
}


@dataclass(frozen=True, slots=True)
class Tags:
    """Names within a message.

    Args:
        role: keys that may hold the role.
        content: keys that may hold the content.
        roles: name of a role in the records -> ours.
    """

    role: tuple[str, ...] = ("role", "from")
    content: tuple[str, ...] = ("content", "value")
    roles: Mapping[str, str] = field(default_factory=_ROLES.copy)

    @classmethod
    def of(cls, given: Mapping[str, str | None]) -> "Tags":
        """Take names from settings; a tag that is None is a role that is not accepted.

        Raises:
            ConfigError: an unknown tag.
        """
        for name in given:
            if name not in cls.names():
                raise ConfigError(f"unknown tag {name!r}", where="columns=", fix=nearest(name, cls.names()))
        role, content = given.get("role_tag"), given.get("content_tag")
        roles = dict(_ROLES)
        for tag, ours in _TAG_ROLES.items():
            if tag in given:
                roles = {theirs: r for theirs, r in roles.items() if r != ours}
                if (theirs := given[tag]) is not None:
                    roles[theirs] = ours
        return cls((role,) if role else cls().role, (content,) if content else cls().content, roles)

    @staticmethod
    def names() -> tuple[str, ...]:
        """List the tags that settings may name."""
        return ("role_tag", "content_tag", *_TAG_ROLES)


TAGS = Tags()


def read_messages(value: Any, tags: Tags = TAGS) -> list[Message]:
    """Read a list of messages, or JSON of one.

    Raises:
        EncodeError: not a list of objects, no role or an unknown one, content that is no text.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise EncodeError("messages hold a string that is no JSON list", reason="messages are no list") from None
    if isinstance(value, Mapping):
        value = _rows(cast("Mapping[str, Any]", value), tags)
    if value is None:
        return []
    if not isinstance(value, (list, tuple)) and not hasattr(value, "__iter__"):
        raise EncodeError(f"messages are a list, not {type(value).__name__}", reason="messages are no list")
    return [_message(item, i, tags) for i, item in enumerate(value)]


def _rows(value: Mapping[str, Any], tags: Tags) -> list[Any]:
    """Turn columns of messages ({"role": [...], "content": [...]}) into messages; one message into a list of it."""
    key = next((k for k in tags.role if isinstance(value.get(k), list)), None)
    if key is None:
        return [dict(value)]
    return [{k: v[i] for k, v in value.items() if isinstance(v, list) and i < len(v)} for i in range(len(value[key]))]


def _message(item: Any, i: int, tags: Tags) -> Message:
    known = tags.roles
    if type(item) is dict and len(item) == 2:  # most messages of the world: a role, a text, nothing else
        for role_key, content_key in zip(tags.role, tags.content, strict=False):
            if (
                content_key in item
                and type(text := item[content_key]) is str
                and type(said := item.get(role_key)) is str
                and (plain := known.get(said))
                and plain != _CALL
            ):
                return Message(plain, text)
    if not isinstance(item, Mapping):
        raise EncodeError(f"message {i} is {type(item).__name__}, not an object", reason="message is no object")
    record = cast("Mapping[str, Any]", item)
    name = next((record[k] for k in tags.role if record.get(k) is not None), None)
    if name is None:
        raise EncodeError(f"message {i} has no role", reason="no role", fix=f"expected under {' or '.join(tags.role)}")
    role = known.get(str(name))
    if role is None:
        raise EncodeError(
            f"message {i} has the unknown role {name!r}", reason="unknown role", fix=nearest(str(name), known)
        )
    value = next((record[k] for k in tags.content if record.get(k) is not None), None)
    message = Message("assistant" if role == _CALL else role)
    if role == _CALL:
        message.tool_calls = _calls(value, i)
    else:
        _fill(message, value, i)
    if calls := record.get("tool_calls"):
        message.tool_calls = [*message.tool_calls, *_calls(calls, i)]
    thought = next((record[k] for k in ("reasoning_content", "thinking", "reasoning") if record.get(k)), None)
    if thought is not None and not isinstance(thought, str):
        raise EncodeError(f"message {i} has {type(thought).__name__} as its thought", reason="content is no text")
    message.thought = message.thought if thought is None else thought
    weight = next((record[k] for k in ("loss_weight", "weight", "train") if record.get(k) is not None), None)
    message.weight = None if weight is None else _weight(weight, i)
    message.more = {k: record[k] for k in ("name", "tool_call_id") if record.get(k) is not None}
    return message


def _weight(value: Any, i: int) -> float:
    try:
        weight = float(value)
    except (TypeError, ValueError):
        weight = -1.0
    if not 0 <= weight < float("inf"):
        raise EncodeError(f"message {i} has the loss weight {value!r}", reason="bad loss weight", fix="a number >= 0")
    return weight


def _fill(message: Message, value: Any, i: int) -> None:
    """Set the content from text, from typed parts, or from nothing."""
    if value is None:
        return
    if isinstance(value, str):
        message.content = value
        return
    if not isinstance(value, (list, tuple)):
        raise EncodeError(f"message {i} has {type(value).__name__} as content, not text", reason="content is no text")
    parts: list[Part] = []
    for item in value:
        part = {"type": "text", "text": item} if isinstance(item, str) else item
        if not isinstance(part, Mapping):
            raise EncodeError(f"message {i} has a part that is {type(part).__name__}", reason="unknown content part")
        _part(message, cast("Mapping[str, Any]", part), parts, i)
    message.content = parts


def _part(message: Message, part: Mapping[str, Any], parts: list[Part], i: int) -> None:
    kind = str(part.get("type", "text"))
    media = kind.removeprefix("input_").removesuffix("_url")
    keys = ("value", kind, "url", "path") if media in MEDIA else ("value", kind, "text")
    value = next((part[k] for k in keys if part.get(k) is not None), None)
    if isinstance(value, Mapping) and "url" in value:
        value = value["url"]
    if kind in {"text", "input_text", "output_text"}:
        if value is not None and not isinstance(value, str):
            raise EncodeError(f"message {i} has a text part that is no text", reason="content is no text")
        parts.append({"type": "text", "text": value or ""})
    elif kind in {"reasoning", "thinking"} and isinstance(said := "" if value is None else value, str):
        message.thought = (message.thought or "") + said
    elif kind in {"tool_call", "tool_calls"}:
        message.tool_calls = [*message.tool_calls, *_calls(value, i)]
    elif media in MEDIA:
        parts.append({"type": media, media: value})
    else:
        known = ("text", "image", "video", "audio", "image_url", "reasoning", "tool_call")
        raise EncodeError(
            f"message {i} has a part of type {kind!r}", reason="unknown content part", fix=nearest(kind, known)
        )


def _calls(value: Any, i: int) -> list[dict[str, Any]]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise EncodeError(f"message {i} has a tool call that is no JSON", reason="unreadable tool call") from None
    return [_call(c, i) for c in (value if isinstance(value, list) else [value])]


def _call(value: Any, i: int) -> dict[str, Any]:
    inner = value.get("function", value) if isinstance(value, Mapping) else None
    if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str):
        raise EncodeError(f"message {i} has a tool call without a name", reason="unreadable tool call")
    arguments = inner.get("arguments", inner.get("parameters", {}))
    if isinstance(arguments, str):  # the wire form; templates want the object where it is one
        try:
            loaded = json.loads(arguments)
        except ValueError:
            loaded = arguments
        arguments = loaded if isinstance(loaded, dict) else arguments
    call: dict[str, Any] = {"type": "function", "function": {"name": inner["name"], "arguments": arguments}}
    if isinstance(value, Mapping) and value.get("id") is not None:
        call["id"] = value["id"]
    return call


def place_media(messages: list[Message], columns: dict[str, list[Any]]) -> tuple[list[Message], dict[str, list[Any]]]:
    """Put the media of the record's columns where the text says `<image>`, `<video>` or `<audio>`.

    A placeholder counts in turns of users, tools and system only, and only where the record has media of its kind:
    elsewhere it is text. Typed parts that name no medium take the record's, in order. Media without any placeholder go
    before the first user turn, in order.

    Returns:
        The messages with typed parts, and all media in the order of the text.

    Raises:
        EncodeError: other numbers of placeholders and media.
    """
    if not columns and all(type(m.content) is str for m in messages):
        return messages, {}
    messages, columns = _filled(messages, columns)
    waiting = {kind: list(refs) for kind, refs in columns.items()}
    said = dict.fromkeys(waiting, 0)
    for message in messages:
        if message.role != "assistant" and waiting:
            for kind in _PLACE.findall(message.text()):
                if kind in said:
                    said[kind] += 1
    for kind, n in said.items():
        if n and n != len(columns[kind]):
            raise EncodeError(
                f"{n} placeholders <{kind}> and {len(columns[kind])} {MEDIA[kind]}",
                reason="media and placeholders differ",
            )
    unsaid = [{"type": k, k: ref} for k, refs in waiting.items() if not said[k] for ref in refs]
    out: list[Message] = []
    for message in messages:
        placed = message
        if message.role != "assistant" and any(said.values()):
            placed = replace(message, content=_split(message, waiting, said))
        if unsaid and message.role == "user":
            body = placed.content
            rest: list[Part] = [{"type": "text", "text": body}] if isinstance(body, str) else body
            placed, unsaid = replace(placed, content=[*unsaid, *rest]), []
        out.append(placed)
    found: dict[str, list[Any]] = {}
    for message in out:
        for part in message.content if not isinstance(message.content, str) else ():
            if part["type"] in MEDIA:
                found.setdefault(part["type"], []).append(part.get(part["type"]))
    return out, found


def _filled(messages: list[Message], columns: dict[str, list[Any]]) -> tuple[list[Message], dict[str, list[Any]]]:
    """Give typed parts without a medium those of the record's columns, and the columns that are left."""
    empty: dict[str, int] = {}
    for message in messages:
        for part in message.media():
            if part.get(part["type"]) is None:
                empty[part["type"]] = empty.get(part["type"], 0) + 1
    if not empty:
        return messages, columns
    for kind, n in empty.items():
        if n != len(columns.get(kind, ())):
            raise EncodeError(
                f"{n} parts of type {kind!r} name none, and {len(columns.get(kind, ()))} {MEDIA[kind]}",
                reason="media and placeholders differ",
            )
    waiting = {kind: iter(columns[kind]) for kind in empty}
    out: list[Message] = []
    for message in messages:
        if isinstance(message.content, str):
            out.append(message)
            continue
        parts: list[Part] = []
        for part in message.content:
            kind = part["type"]
            named = kind not in waiting or part.get(kind) is not None
            parts.append(part if named else {"type": kind, kind: next(waiting[kind])})
        out.append(replace(message, content=parts))
    return out, {kind: refs for kind, refs in columns.items() if kind not in empty}


def _split(message: Message, waiting: dict[str, list[Any]], said: Mapping[str, int]) -> str | list[Part]:
    source: list[Part] = (
        [{"type": "text", "text": message.content}] if isinstance(message.content, str) else message.content
    )
    parts: list[Part] = []
    for part in source:
        if part["type"] != "text":
            parts.append(part)
            continue
        words = ""
        for i, piece in enumerate(_PLACE.split(part["text"])):
            if not i % 2 or not said.get(piece):
                words += f"<{piece}>" if i % 2 else piece
                continue
            if words:
                parts.append({"type": "text", "text": words})
            parts.append({"type": piece, piece: waiting[piece].pop(0)})
            words = ""
        if words:
            parts.append({"type": "text", "text": words})
    return parts if any(p["type"] != "text" for p in parts) else message.content
