"""A record as LLaMA-Factory and MindSpeed-MM align it: prompt turns, response turns, system, tools and media.

Decides which conversations are in order (a user and an assistant by turns, the assistant last) and where media are
looked for. Knows no template and no tokens.
"""

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias, cast

from thalweg.bind.llamafactory.attributes import Attributes
from thalweg.core.state import digest
from thalweg.encode.errors import EncodeError, record_id

Aligned: TypeAlias = dict[str, Any]
Turn: TypeAlias = dict[str, str]
MEDIA = ("images", "videos", "audios")
ALIGNED = ("_prompt", "_response", "_system", "_tools", "_images", "_videos", "_audios")
_ASKS, _ANSWERS = {"user", "observation"}, {"assistant", "function"}


class Align:
    """Aligns records. Picklable.

    Args:
        attributes: where the records keep what.
        media_dir: folder where relative paths of media start; a file that is not there keeps its path, and that is
            said once.
    """

    def __init__(self, attributes: Attributes, media_dir: str | None = None) -> None:
        self.attributes, self.media_dir = attributes, media_dir
        tags = attributes.tags
        ours = {"user_tag": "user", "assistant_tag": "assistant", "observation_tag": "observation"}
        ours |= {"function_tag": "function", "system_tag": "system"}
        self._roles = {theirs: role for tag, role in ours.items() if (theirs := tags[tag]) is not None}
        self._warned = False

    @property
    def fingerprint(self) -> str:
        """Name all that decides what it gives; whether it has warned does not."""
        return digest([str(self.attributes), self.media_dir])

    def __call__(self, record: Mapping[str, Any]) -> Aligned:
        """Align one record.

        Returns:
            `_prompt` (turns up to the last question) and `_response` (one turn, of a preference pair two), each a list
            of {"role", "content"} with the roles user, assistant, observation and function; `_system` and `_tools`
            text; `_images`, `_videos`, `_audios` lists of references or None.

        Raises:
            EncodeError: turns out of order, an unknown role, an odd number of turns.
        """
        try:
            if self.attributes.formatting == "alpaca":
                prompt, response, system = self._alpaca(record)
            else:
                prompt, response, system = self._messages(record)
        except EncodeError as error:
            raise error.named(record_id(record)) from None
        tools = self._column(record, "tools")
        return {
            "_prompt": prompt,
            "_response": response,
            "_system": system,
            "_tools": tools if isinstance(tools, str) or not tools else json.dumps(tools, ensure_ascii=False),
            **{f"_{kind}": self._media(record, kind) for kind in MEDIA},
        }

    def _column(self, record: Mapping[str, Any], name: str) -> Any:
        theirs = self.attributes.columns[name]
        return None if theirs is None else record.get(theirs)

    def _alpaca(self, record: Mapping[str, Any]) -> tuple[list[Turn], list[Turn], str]:
        prompt: list[Turn] = []
        for asked, answered in self._column(record, "history") or []:
            prompt += [_turn("user", asked), _turn("assistant", answered)]
        said = [str(v) for n in ("prompt", "query") if (v := self._column(record, n))]
        prompt.append(_turn("user", "\n".join(said)))
        if self.attributes.ranking:
            answers = [_turn("assistant", self._column(record, n)) for n in ("chosen", "rejected")]
        else:
            answer = self._column(record, "response")
            answers = [] if answer is None else [_turn("assistant", answer)]
        return prompt, answers, str(self._column(record, "system") or "")

    def _messages(self, record: Mapping[str, Any]) -> tuple[list[Turn], list[Turn], str]:
        messages = self._column(record, "messages")
        if isinstance(messages, str):
            messages = json.loads(messages)
        turns = [self._one(m, i) for i, m in enumerate(messages or [])]
        system = str(self._column(record, "system") or "")
        if turns and turns[0]["role"] == "system":
            system, turns = turns[0]["content"], turns[1:]
        for i, turn in enumerate(turns):
            if turn["role"] not in (_ANSWERS if i % 2 else _ASKS):
                raise EncodeError(
                    f"turn {i} is of {turn['role']!r}, out of order", reason="turns out of order",
                    fix="a user and an assistant by turns, the user first",
                )  # fmt: skip
        if self.attributes.ranking:
            answers = [self._one(self._column(record, n), len(turns)) for n in ("chosen", "rejected")]
            if len(turns) % 2 == 0 or any(a["role"] not in _ANSWERS for a in answers):
                raise EncodeError("a pair needs a question last and two answers", reason="turns out of order")
            return turns, answers, system
        if len(turns) < 2 or len(turns) % 2:
            raise EncodeError(f"{len(turns)} turns end without an answer", reason="odd number of turns")
        return turns[:-1], turns[-1:], system

    def _one(self, message: Any, i: int) -> Turn:
        if not isinstance(message, Mapping):
            raise EncodeError(f"message {i} is {type(message).__name__}, not an object", reason="message is no object")
        item = cast("Mapping[str, Any]", message)
        tags = self.attributes.tags
        said = item.get(str(tags["role_tag"]))
        roles = self._roles
        if self.attributes.formatting == "openai":
            roles = {**roles, "user": "user", "assistant": "assistant", "system": "system", "tool": "observation"}
        role = roles.get(str(said))
        if role is None:
            raise EncodeError(f"message {i} has the role {said!r}, which no tag names", reason="unknown role")
        content = item.get(str(tags["content_tag"]))
        if self.attributes.formatting == "openai" and item.get("tool_calls"):
            calls = [c.get("function", c) for c in item["tool_calls"]]
            return _turn("function", json.dumps([_call(c) for c in calls], ensure_ascii=False))
        if self.attributes.formatting == "openai" and item.get("reasoning_content"):
            content = f"<think>\n{item['reasoning_content']}\n</think>\n\n{content or ''}"
        return _turn(role, content)

    def _media(self, record: Mapping[str, Any], kind: str) -> list[Any] | None:
        value = self._column(record, kind)
        if value is None or (isinstance(value, list | str) and not value):
            return None
        return [self._place(v) for v in (value if isinstance(value, list) else [value])]

    def _place(self, reference: Any) -> Any:
        """Find a path under the media folder, else leave it as it is and say so once."""
        if not isinstance(reference, str) or self.media_dir is None or "://" in reference:
            return reference
        joined = Path(self.media_dir) / reference
        if joined.is_file():
            return str(joined)
        if not Path(reference).is_file() and not self._warned:
            self._warned = True
            warnings.warn(
                f"no medium at {joined}; its path stays as it is, and so will those of others that are missing",
                UserWarning,
                stacklevel=2,
            )
        return reference


def _turn(role: str, content: Any) -> Turn:
    return {"role": role, "content": content if isinstance(content, str) else "" if content is None else content}


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    arguments = call.get("arguments", {})
    return {"name": call.get("name"), "arguments": json.loads(arguments) if isinstance(arguments, str) else arguments}


def conversation(aligned: Mapping[str, Any], default_system: str | None = None) -> dict[str, Any]:
    """Give an aligned record in the layout that `ChatEncoder` reads (roles as `ROLES` there).

    Args:
        aligned: what `Align` gave.
        default_system: the template's own system turn, where the record has none.
    """
    system = aligned.get("_system") or default_system
    head = [{"role": "system", "content": system}] if system else []
    prompt = head + [_named(t) for t in aligned["_prompt"]]
    answers = [_named(t) for t in aligned["_response"]]
    out: dict[str, Any] = {k: aligned.get(f"_{k}") for k in MEDIA if aligned.get(f"_{k}")}
    if aligned.get("_tools"):
        out["tools"] = aligned["_tools"]
    if len(answers) == 2:
        return {**out, "messages": prompt, "chosen": answers[0], "rejected": answers[1]}
    return {**out, "messages": prompt + answers}


def _named(turn: Mapping[str, Any]) -> dict[str, Any]:
    role = {"observation": "tool", "function": "function_call"}.get(turn["role"], turn["role"])
    return {"role": role, "content": turn["content"]}
