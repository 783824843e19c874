"""How the jinja text of a chat template runs: in jinja's sandbox, as transformers runs it, with short ways inside.

Decides which steps of a template go round the sandbox's search: entries of plain dicts, methods of plain texts, jinja's
own loops, namespaces and macros, for which it would find the same. Rendering is most of the time of encoding a
conversation, and that search is most of rendering. Knows no message.
"""

import json
from functools import cache
from typing import Any

from thalweg.core.errors import ConfigError
from thalweg.core.extras import need

_DICT = frozenset(dir(dict))
_TEXT = frozenset(n for n in dir(str) if not n.startswith("_")) - {"format", "format_map"}  # these two reach attributes


def compiled(source: str, globals_: dict[str, Any], opening: str, closing: str) -> Any:
    """Compile a template.

    Args:
        source: its jinja text.
        globals_: names that it can use in any place.
        opening, closing: what is written where a `{% generation %}` block begins and ends.

    Raises:
        ConfigError: the text does not compile.
    """
    environment = _environment_class()(
        trim_blocks=True, lstrip_blocks=True, extensions=[_generation_class(), "jinja2.ext.loopcontrols"]
    )
    environment.generation_marks = (opening, closing)
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals.update(globals_)
    try:
        return environment.from_string(source)
    except need("jinja2", why="a chat template").TemplateSyntaxError as error:
        raise ConfigError(
            f"the chat template does not compile: {error.message}", where=f"chat template, line {error.lineno}"
        ) from error


def _tojson(
    x: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> None:
    raise need("jinja2", why="a chat template").exceptions.TemplateError(message)


@cache
def _environment_class() -> Any:
    """Templates come from strangers: no attribute that is not data, nothing changed in place."""
    sandbox = need("jinja2.sandbox", why="a chat template").ImmutableSandboxedEnvironment
    runtime = need("jinja2.runtime", why="a chat template")
    own = {runtime.LoopContext, need("jinja2.utils", why="a chat template").Namespace}

    class Environment(sandbox):  # type: ignore[misc, valid-type]
        """The sandbox, with short ways to what is asked for most."""

        code_generator_class = _generator_class()

        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self._absent: dict[str, Any] = {}

        def getattr(self, obj: Any, attribute: str) -> Any:
            kind = type(obj)
            if kind is dict and attribute not in _DICT:
                if attribute in obj:
                    return obj[attribute]
                if attribute not in self._absent:  # what is absent from one dict is absent from all: its words are
                    self._absent[attribute] = self.undefined(obj={}, name=attribute)
                return self._absent[attribute]
            if (kind in own and not attribute.startswith("_")) or (kind is str and attribute in _TEXT):
                try:
                    return getattr(obj, attribute)
                except AttributeError:
                    pass
            return super().getattr(obj, attribute)

        def call(*args: Any, **kwargs: Any) -> Any:  # by place alone: a template may name its arguments as it likes
            self, context, called, *rest = args
            if type(called) is runtime.Macro:
                kwargs.pop("_loop_vars", None)
                kwargs.pop("_block_vars", None)
                return called(context.eval_ctx, *rest, **kwargs)
            return sandbox.call(self, context, called, *rest, **kwargs)

    return Environment


@cache
def _generator_class() -> Any:
    """Write entries of dicts and calls of text methods in place where that is what they are, found when it runs."""
    nodes = need("jinja2.nodes", why="a chat template")
    base = need("jinja2.compiler", why="a chat template").CodeGenerator

    class Generator(base):  # type: ignore[misc, valid-type]
        """Code of a template, with `d.x` and `d["x"]` looked up in place where d is a plain dict."""

        def visit_Getattr(self, node: Any, frame: Any) -> None:  # noqa: N802
            if node.attr in _DICT:
                super().visit_Getattr(node, frame)
            else:
                self._entry(node.node, node.attr, "getattr", frame)

        def visit_Getitem(self, node: Any, frame: Any) -> None:  # noqa: N802
            if isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, str):
                self._entry(node.node, node.arg.value, "getitem", frame)
            else:
                super().visit_Getitem(node, frame)

        def visit_Call(self, node: Any, frame: Any, **more: Any) -> None:  # noqa: N802
            called = node.node
            plain = isinstance(called, nodes.Getattr) and called.attr in _TEXT
            plain = plain and all(isinstance(a, nodes.Const) for a in node.args)
            if not plain or node.kwargs or node.dyn_args or node.dyn_kwargs or more:
                super().visit_Call(node, frame, **more)
                return
            x, given = self.temporary_identifier(), ", ".join(repr(a.value) for a in node.args)
            searched = f"environment.call(context, environment.getattr({x}, {called.attr!r}), {given})"
            self._short(x, called.node, frame, kind="str", short=f"{x}.{called.attr}({given})", searched=searched)

        def _entry(self, owner: Any, key: str, search: str, frame: Any) -> None:
            x = self.temporary_identifier()
            searched = f"environment.{search}({x}, {key!r})"
            self._short(x, owner, frame, kind=f"dict and {key!r} in {x}", short=f"{x}[{key!r}]", searched=searched)

        def _short(self, x: str, owner: Any, frame: Any, *, kind: str, short: str, searched: str) -> None:
            """Write `short` for an owner, named x, of this kind, and `searched` for any other."""
            self.write(f"({short} if type({x} := ")
            self.visit(owner, frame)
            self.write(f") is {kind} else {searched})")

    return Generator


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
            opening, closing = (jinja2.nodes.TemplateData(mark) for mark in self.environment.generation_marks)
            return [
                write([opening], lineno=line),
                jinja2.nodes.Scope(body, lineno=line),
                write([closing], lineno=line),
            ]

    return Generation
