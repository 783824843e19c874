"""Text of a user that looks like a special token stays text.

Decides which strings are dangerous and how they are kept apart: a noncharacter is put inside them before the template
runs, the rendering is cut at the special tokens that are left, which are the template's own, and the pieces are
encoded with special tokens unread. Knows no roles.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable
from typing import Any

from thalweg.encode.errors import EncodeError
from thalweg.encode.template import CUT, RESERVED


class Guard:
    """The special tokens of one tokenizer, as a search.

    Args:
        special: text -> id.
    """

    def __init__(self, special: dict[str, int]) -> None:
        self.ids = special
        longest = sorted((t for t in special if t), key=len, reverse=True)
        self.pattern = re.compile("|".join(map(re.escape, longest)) or "(?!)")
        self.hints = tuple({t[:2] for t in longest})  # a text without any of these holds no special token

    def is_dangerous(self, value: Any) -> bool:
        """Say whether any string in a value holds a special token or one of our own noncharacters."""
        for text in (value,) if isinstance(value, str) else _strings(value):
            for hint in self.hints:
                if hint in text:
                    if self.pattern.search(text):
                        return True
                    break
            if not text.isascii() and RESERVED.search(text):
                raise EncodeError(
                    "the text holds U+FDD0, U+FDD1 or U+FDD2, which are no characters",
                    reason="noncharacter in the text",
                )
        return False

    def cut(self, value: Any) -> Any:
        """Copy a value with every special token in it broken in two."""
        if isinstance(value, str):
            return self.pattern.sub(_broken, value)
        if isinstance(value, dict):
            return {k: self.cut(v) for k, v in value.items()}
        if isinstance(value, list):
            return [self.cut(v) for v in value]
        return value

    def pieces(self, rendered: str) -> list[tuple[str, int | None]]:
        """Split a rendering of cut values: (text, id) for special tokens, (text, None) for text, no empty text."""
        out: list[tuple[str, int | None]] = []
        at = 0
        for match in self.pattern.finditer(rendered):
            if match.start() > at:
                out.append((whole(rendered[at : match.start()]), None))
            out.append((match.group(), self.ids[match.group()]))
            at = match.end()
        if at < len(rendered):
            out.append((whole(rendered[at:]), None))
        return out


def whole(text: str) -> str:
    """Take the breaks out again."""
    return text.replace(CUT, "")


def moved(rendered: str, spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Move character spans of a rendering with breaks to where they are without."""
    cuts = [m.start() for m in re.finditer(CUT, rendered)]
    return [(a - bisect_left(cuts, a), b - bisect_left(cuts, b)) for a, b in spans]


def _broken(match: re.Match[str]) -> str:
    token = match.group()
    if len(token) < 2:
        raise EncodeError(
            f"the text holds the special token {token!r}, which cannot be kept apart",
            reason="special token in the text",
        )
    return token[0] + CUT + token[1:]


def _strings(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for k, v in value.items():
            if isinstance(v, str):
                if k not in ("role", "type"):
                    yield v
            else:
                yield from _strings(v)
    elif isinstance(value, list):
        for v in value:
            yield from _strings(v)
