"""The command `thalweg`: which commands there are, and how an error reaches a terminal.

Decides: the name, module and one line of help of each command, and the form of an error. A command's module is
imported when the command is used, so `thalweg --help` imports click alone; a command whose module is not in this
installation is not listed. Knows nothing of what a command does.
"""

from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from typing import IO, Any

import click

from thalweg import __version__
from thalweg.cli.output import error_data, error_text, json_option, print_json
from thalweg.core.errors import ThalwegError


@dataclass(frozen=True, slots=True)
class Entry:
    """One command: where it lives (it defines `command`) and its line in `thalweg --help`."""

    module: str
    help: str


# In the order of a newcomer's day: see it run, prepare data, look at it, ask why, measure.
COMMANDS = {
    "demo": Entry("thalweg.cli.demo", "See the whole road run: a corpus, records, training, a kill and a resume."),
    "run": Entry("thalweg.cli.run", "Run an offline pipeline (a Python file) on local workers."),
    "explain": Entry("thalweg.cli.explain", "Say what a pipeline would do, without doing it."),
    "status": Entry("thalweg.cli.status", "Show how far a run is: ranks, documents, bytes, time left."),
    "stats": Entry("thalweg.cli.stats", "Show a run's counts per step; the books must balance."),
    "rank": Entry("thalweg.cli.rank", "Run the ranks of a job array's element (written into job scripts)."),
    "logs": Entry("thalweg.cli.logs", "Show the logs of a run's ranks."),
    "inspect": Entry("thalweg.cli.inspect", "Show what the model will see, token by token, coloured by label."),
    "doctor": Entry("thalweg.cli.doctor", "Check data for the usual mistakes, with shares and remedies."),
    "why": Entry("thalweg.cli.why", "Answer where a sample came from and which step sees it."),
    "pack": Entry("thalweg.cli.pack", "Compare packing policies on the lengths of a record set."),
    "convert": Entry("thalweg.cli.convert", "Convert between record sets and other formats."),
    "verify": Entry("thalweg.cli.verify", "Check a record set or the ledgers of a training run."),
    "simulate": Entry("thalweg.cli.simulate", "Compute steps, shares and padding of a feed without reading data."),
    "profile": Entry("thalweg.cli.profile", "Measure what a loader waits for."),
    "tune": Entry("thalweg.cli.tune", "Find workers and bytes in flight for a loader."),
    "bench": Entry("thalweg.cli.bench", "Measure thalweg beside its peers on this machine."),
}


JSON_ASKED = "thalweg.json"  # key in click's shared `meta`


class ShownError(click.ClickException):
    """An error of thalweg on its way to the terminal: one block, or one JSON document; exit status 1."""

    exit_code = 1

    def __init__(self, error: ThalwegError, as_json: bool) -> None:
        super().__init__(str(error))
        self.error, self.as_json = error, as_json

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the error: text to stderr, JSON to stdout, where a program that asked for JSON reads it."""
        if self.as_json:
            print_json(error_data(self.error))
        else:
            click.echo(error_text(self.error), file=file, err=file is None)


class UsersError(click.ClickException):
    """An error in a user's own file: its traceback from there on to stderr."""

    exit_code = 1

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error

    def show(self, file: IO[Any] | None = None) -> None:
        """Print it."""
        del file
        from thalweg.cli.failed import print_users_part  # noqa: PLC0415  (only where something failed)

        print_users_part(self.error)


class Commands(click.Group):
    """A click group that imports a command when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the commands that this installation has, in the order of the table."""
        del ctx
        return [name for name, entry in COMMANDS.items() if find_spec(entry.module) is not None]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command; None where there is none of that name."""
        del ctx
        entry = COMMANDS.get(cmd_name)
        if entry is None or find_spec(entry.module) is None:
            return None
        command = import_module(entry.module).command
        if not isinstance(command, click.Command):
            raise TypeError(f"{entry.module}.command is no click.Command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands from the table, without importing any of them."""
        rows = [(name, COMMANDS[name].help) for name in self.list_commands(ctx)]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; an unknown word is answered with the nearest."""
        known = self.list_commands(ctx)
        if args and args[0] not in known and not args[0].startswith("-"):
            close = get_close_matches(args[0], known, n=1)
            hint = f"Did you mean {close[0]!r}?" if close else "Commands: " + ", ".join(known)
            raise click.UsageError(f"No command {args[0]!r}. {hint}", ctx)
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, and remember whether JSON was asked for: an error answers in the same form."""
        ctx.meta[JSON_ASKED] = "--json" in args
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error of thalweg or the system becomes a block with exit status 1, any other a traceback.

        Of an error in a user's file the traceback begins there, and where thalweg refused what the file says, the line
        is named. Where JSON was asked for, stdout holds one document either way.
        """
        as_json = ctx.meta[JSON_ASKED]
        try:
            return super().invoke(ctx)
        except ThalwegError as error:
            from thalweg.cli.failed import line_of  # noqa: PLC0415  (only where something failed)

            if line := line_of(error):
                error.add_note(f"called in {line}")
            raise ShownError(error, as_json) from error
        except (click.ClickException, click.Abort, click.exceptions.Exit, BrokenPipeError) as error:
            if as_json and isinstance(error, click.UsageError):
                print_json({"error": {"what": error.format_message()}})
            raise
        except Exception as error:
            from thalweg.cli.failed import in_words, line_of  # noqa: PLC0415

            line = line_of(error)
            told = in_words(error) if line is None and isinstance(error, OSError) else None
            if told is not None:
                raise ShownError(told, as_json) from error
            if as_json:
                print_json(error_data(error))
            if line is None:
                raise
            raise UsersError(error) from error


@click.group(
    cls=Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="thalweg", message="%(prog)s %(version)s")
@json_option
@click.pass_context
def cli(ctx: click.Context, as_json: bool) -> None:
    """Training data for language and multimodal models: from raw files to the batch on the device, in one order."""
    if ctx.invoked_subcommand is not None:
        if as_json:
            raise click.UsageError("Write --json after the command.", ctx)
        return
    if as_json:
        names = cli.list_commands(ctx)
        print_json({"version": __version__, "commands": {name: COMMANDS[name].help for name in names}})
    else:
        click.echo(ctx.get_help())


def main() -> None:
    """Run the command line of this process; exits with the command's status."""
    cli.main(prog_name="thalweg")
