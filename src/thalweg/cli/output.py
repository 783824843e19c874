"""What every command prints alike: one JSON document with `--json`, one block for an error.

Decides the two forms. A command that takes `--json` writes exactly one JSON document to stdout, also when it fails
({"error": {...}}, exit status 1); progress and remarks go to stderr. Knows no command.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

import click

from thalweg.core.errors import ConfigError, ThalwegError
from thalweg.run.show import counted as counted  # noqa: PLC0414  (the commands take it from here)
from thalweg.work.late import told_where_slow

words_argument = click.argument("words", nargs=-1, metavar="[NAME.STAGE.SETTING=VALUE]...")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document to stdout instead of text.")


def can_be_written(ctx: click.Context, option: click.Parameter, value: Any) -> Any:
    """Refuse a file that cannot be written, before the work whose result it is to hold: the callback of an option.

    Raises:
        ConfigError: its folder does not exist, or nobody may write there.
    """
    del ctx
    if value is None:
        return None
    path, where = Path(value), f"--{option.name} {value}"
    if not path.parent.is_dir():
        raise ConfigError(f"there is no folder {path.parent}", where=where, fix=f"make it: mkdir -p {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigError("the file may not be written", where=where, fix="name a file in a folder of your own")
    return value


def file_option(name: str, text: str) -> Callable[[Any], Any]:
    """Declare an option that names a file to write, such as --html: refused at once where that cannot be."""
    kind = click.Path(dir_okay=False, path_type=Path)
    return click.option(name, callback=can_be_written, type=kind, default=None, help=text)


html_option = file_option("--html", "Write one HTML page.")


def check_rank(rank: int, world: int) -> None:
    """Refuse a --rank that --world does not have, in the words of the options.

    Raises:
        ConfigError: it is none of them, or there are none.
    """
    if world < 1:
        raise ConfigError(f"--world {world} is no number of ranks", fix="give 1 or more")
    if not 0 <= rank < world:
        last = f"0 to {world - 1}" if world > 1 else "0 alone, unless --world says more"
        raise ConfigError(f"--rank {rank} is no rank of --world {world}", fix=f"ranks are {last}")


def print_json(data: Any) -> None:
    """Print one JSON document; numpy numbers and arrays, paths and other values become what they look like."""
    click.echo(json.dumps(data, indent=2, ensure_ascii=False, default=_plain))


def with_settings(answer: Any, value: Any) -> Any:
    """Put the resolved whole of the file that made `value` beside an answer: {"settings": ..., "result": ...}.

    An answer about anything else stays as it is.
    """
    settings = getattr(value, "settings", None)
    return answer if settings is None else {"settings": settings, "result": answer}


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)


def error_data(error: Exception) -> dict[str, Any]:
    """Give an error as JSON-like data: {"error": {code, what, where, fix, notes}}; one of a user's code has no code."""
    fields: dict[str, Any] = {"what": f"{type(error).__name__}: {error}"}
    if isinstance(error, ThalwegError):
        fields = {"code": error.code, "what": error.what, "where": error.where, "fix": error.fix}
    fields["notes"] = list(getattr(error, "__notes__", ()))
    return {"error": {name: value for name, value in fields.items() if value}}


def error_text(error: ThalwegError) -> str:
    """Give an error as one block: code and what, then where, notes and what to try, each on its own line."""
    lines = [click.style(f"error {error.code}", fg="red", bold=True) + f"  {error.what}"]
    lines += [f"  where  {error.where}"] if error.where else []
    lines += [f"  note   {note}" for note in getattr(error, "__notes__", ())]
    lines += [click.style("  try    ", fg="green") + error.fix] if error.fix else []
    return "\n".join(lines)


def write_page(path: Path, report: Any) -> None:
    """Write a report as a page, and say so on stderr."""
    path.write_text(report.html(), "utf-8")
    say(f"written: {path}")


def say(text: str) -> None:
    """Write one line of progress to stderr at once."""
    click.echo(text, err=True)


@contextmanager
def long_work(text: str) -> Generator[None]:
    """Say once what a block does where it takes longer than seconds, and let Ctrl-C end the process at once.

    A pass keeps its pieces whole, so the next start goes on from them; a user's function that runs in a thread cannot
    be broken off, and closing would wait for it. Exit status 130, as of any program that Ctrl-C ended.
    """

    def leave(*_: object) -> None:
        os.write(2, b"\ninterrupted; what is kept by now serves the next start\n")
        os._exit(130)

    before = signal.getsignal(signal.SIGINT)
    # A shell lets what it runs in the background ignore Ctrl-C; and only the main thread may change what happens then.
    ours = threading.current_thread() is threading.main_thread() and before not in (None, signal.SIG_IGN)
    if ours:
        signal.signal(signal.SIGINT, leave)
    try:
        with told_where_slow(text):
            yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, before)


@contextmanager
def own_prints_aside(as_json: bool) -> Generator[None]:
    """Send what a user's file prints to stderr while JSON is asked for: stdout holds one document."""
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        yield
