"""A chat template, compiled once: messages in, one string out, with the places of `{% generation %}` blocks.

Decides how a template runs (sandboxed, as transformers runs it) and how its marks are found in what it writes:
as characters that no valid text holds. Knows no tokenizer.
"""

import re
from datetime import UTC, datetime
from typing import Any

from thalweg.core.extras import need
from thalweg.encode.sandbox import compiled

# Noncharacters of Unicode: never assigned, not for interchange. Text that holds one is refused, not rewritten.
OPEN, CLOSE, CUT = "\ufdd0", "\ufdd1", "\ufdd2"
RESERVED = re.compile(f"[{OPEN}-{CUT}]")
_SAYS_GENERATION = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")


class TemplateRefusal(Exception):  # noqa: N818 - what a template says of a conversation, not yet an error of ours
    """A template that raised on a conversation; the text is the template's own."""


class Template:
    """One chat template.

    Args:
        source: its jinja text.
        variables: what it may read beside messages and tools, such as `bos_token`, `enable_thinking`, `date_string`.
        today: the date that `strftime_now` reads; fixed here so that all workers and reruns write the same.

    Raises:
        ConfigError: the text does not compile.
    """

    def __init__(self, source: str, variables: dict[str, Any] | None = None, today: datetime | None = None) -> None:
        self.source, self.variables = source, dict(variables or {})
        self.today = today or datetime.now(UTC)
        self.marked = bool(_SAYS_GENERATION.search(source))
        self._compiled: Any = None
        self._known: dict[str, Any] = {}
        self._says: type[Exception] = Exception
        self.compiled()

    @property
    def reads_today(self) -> bool:
        """Say whether the template reads the date."""
        return "strftime_now" in self.source

    def set_today(self, today: datetime) -> None:
        """Fix the date that the template reads."""
        self.today, self._compiled = today, None

    def __getstate__(self) -> dict[str, Any]:
        """Leave the compiled form behind."""
        return {**self.__dict__, "_compiled": None}

    def compiled(self) -> Any:
        """Give the compiled template."""
        if self._compiled is None:
            given = {"strftime_now": self.today.strftime}
            self._compiled = compiled(self.source, given, OPEN, CLOSE)
            self._says = need("jinja2", why="a chat template").TemplateError
            self._known = {**self._compiled.globals, "documents": None, **self.variables}
        return self._compiled

    def render(
        self, messages: list[dict[str, Any]], tools: list[Any] | None = None, *, prompt: bool = False, **more: Any
    ) -> str:
        """Write a conversation; marks are still in it (`unmark`).

        Raises:
            TemplateRefusal: the template raised.
        """
        template = self.compiled()
        values = {**self._known, "messages": messages, "tools": tools, "add_generation_prompt": prompt, **more}
        environment = template.environment
        context = environment.context_class(environment, values, template.name, template.blocks)
        try:
            return "".join(template.root_render_func(context))
        except (self._says, TypeError, KeyError, AttributeError, ValueError, IndexError) as error:
            raise TemplateRefusal(str(error) or type(error).__name__) from error


def unmark(text: str) -> tuple[str, list[tuple[int, int]]]:
    """Take the marks out of a rendering.

    Returns:
        The text without marks, and the half-open character spans that stood between an opening and a closing one,
        empty spans included.
    """
    head, *marked = text.split(OPEN)
    if not marked:
        return text, []
    out, spans, at = [head], [], len(head)
    for part in marked:
        inside, _, rest = part.partition(CLOSE)
        stop = at + len(inside)
        spans.append((at, stop))
        at = stop + len(rest)
        out += (inside, rest)
    return "".join(out), spans
