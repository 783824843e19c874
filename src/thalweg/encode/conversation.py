"""A conversation in the one form that all encoders work on, whatever layout it came in.

Decides what a message may hold: role, content (text or typed parts), thought, tool calls, weight. Values are those
that chat templates read. Knows no template and no column names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Part: TypeAlias = dict[str, Any]  # {"type": "text", "text": ...} or {"type": "image" | "video" | "audio", ...}
ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(slots=True)
class Message:
    """One turn.

    Args:
        role: one of `ROLES`.
        content: text, or typed parts where there is media or the record had them.
        thought: reasoning before the answer, None where there is none.
        tool_calls: [{"type": "function", "function": {"name": ..., "arguments": {...} or text}}].
        weight: weight of its tokens in the loss; None: 1 for an assistant, 0 for others.
        more: further keys that a template may read, such as `name` and `tool_call_id`.
    """

    role: str
    content: str | list[Part] = ""
    thought: str | None = None
    tool_calls: Sequence[dict[str, Any]] = ()
    weight: float | None = None
    more: Mapping[str, Any] | None = None

    @property
    def is_plain(self) -> bool:
        """Say whether it is nothing but a role, a text and a weight."""
        return type(self.content) is str and self.thought is None and not self.tool_calls and not self.more

    def text(self) -> str:
        """Give its text, media left out."""
        if isinstance(self.content, str):
            return self.content
        return "".join(p["text"] for p in self.content if p["type"] == "text")

    def media(self) -> list[Part]:
        """Give its media parts in order."""
        return [] if isinstance(self.content, str) else [p for p in self.content if p["type"] != "text"]

    def for_template(self, *, parts: bool) -> dict[str, Any]:
        """Write it as templates read it: text as a string, or as typed parts where there is media or `parts`."""
        content: str | list[Part] = self.content
        if not parts and self.is_plain:
            return {"role": self.role, "content": content}
        if not isinstance(content, str) and not parts and all(p["type"] == "text" for p in content):
            content = self.text()
        elif isinstance(content, str) and parts:
            content = [{"type": "text", "text": content}]
        written: dict[str, Any] = {"role": self.role, "content": content, **(self.more or {})}
        if self.thought is not None:
            written["reasoning_content"] = written["thinking"] = self.thought
        if self.tool_calls:
            written["tool_calls"] = list(self.tool_calls)
        return written


@dataclass(slots=True)
class Conversation:
    """Messages in order, the tools that may be called, and media in the order of the text.

    Args:
        messages: at least one.
        tools: JSON schemas of functions, None where there are none.
        media: kind ("image", "video", "audio") -> references in the order of their places in the text.
        rejected: for preference pairs, the messages of the answer not preferred, prompt included.
    """

    messages: list[Message]
    tools: list[Any] | None = None
    media: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    rejected: list[Message] | None = None
