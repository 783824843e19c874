"""A chat template, compiled once: messages in, one string out, with the places of `{% generation %}` blocks.

Decides how a template runs (sandboxed, as transformers runs it) and how its marks are found in what it writes:
as characters that no valid text holds. Knows no tokenizer.
"""

import json
import re
from datetime import UTC, datetime
from functools import cache
from typing import Any

from thalweg.core.errors import ConfigError
from thalweg.core.extras import need

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
            jinja2 = need("jinja2", why="a chat template")
            environment = _environment_class()(
                trim_blocks=True, lstrip_blocks=True, extensions=[_generation_class(), "jinja2.ext.loopcontrols"]
            )
            environment.filters["tojson"] = _tojson
            environment.globals["raise_exception"] = _raise
            environment.globals["strftime_now"] = self.today.strftime
            try:
                self._compiled = environment.from_string(self.source)
            except jinja2.TemplateSyntaxError as error:
                raise ConfigError(
                    f"the chat template does not compile: {error.message}", where=f"chat template, line {error.lineno}"
                ) from error
            self._says = jinja2.TemplateError
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


def _tojson(
    x: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> None:
    raise need("jinja2", why="a chat template").exceptions.TemplateError(message)


@cache
def _environment_class() -> Any:
    """Templates come from strangers: no attribute that is not data, nothing changed in place.

    Messages are plain dicts and loops are jinja's own, so their entries are given without the sandbox's search
    (a third of the time of a rendering); what it would find is the same.
    """
    sandbox = need("jinja2.sandbox", why="a chat template").ImmutableSandboxedEnvironment
    loop = need("jinja2.runtime", why="a chat template").LoopContext
    methods = frozenset(dir(dict))

    class Environment(sandbox):  # type: ignore[misc, valid-type]
        """The sandbox, with a short way to entries of dicts."""

        def getattr(self, obj: Any, attribute: str) -> Any:
            kind = type(obj)
            if kind is dict and attribute not in methods:
                if attribute in obj:
                    return obj[attribute]
                return self.undefined(obj=obj, name=attribute)
            if kind is loop and not attribute.startswith("_"):
                return getattr(obj, attribute)
            return super().getattr(obj, attribute)

    return Environment


@cache
def _generation_class() -> Any:
    jinja2 = need("jinja2", why="a chat template")
    extension = need("jinja2.ext", why="a chat template").Extension

    class Generation(extension):  # type: ignore[misc, valid-type]
        """Writes one character before and one after the block; names set inside stay inside."""

        tags = frozenset({"generation"})

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            write = jinja2.nodes.Output
            data = jinja2.nodes.TemplateData
            return [
                write([data(OPEN)], lineno=line),
                jinja2.nodes.Scope(body, lineno=line),
                write([data(CLOSE)], lineno=line),
            ]

    return Generation
