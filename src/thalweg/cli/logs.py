"""`thalweg logs`: the logs of a run's ranks, above all of those that failed.

Decides which are shown and how much. Each attempt's lines stay in the file; the last attempt is shown.
"""

import click

from thalweg.cli.output import json_option, print_json
from thalweg.core.errors import InputError
from thalweg.run.show import counted


@click.command()
@click.argument("logging_dir", metavar="LOGGING_DIR")
@click.option("--failed", is_flag=True, help="Only ranks that failed and are not complete.")
@click.option("--rank", "ranks", type=int, multiple=True, help="Only this rank; may be given again.")
@click.option("--lines", default=40, show_default=True, help="Last lines of each; 0 for all.")
@json_option
def command(logging_dir: str, failed: bool, ranks: tuple[int, ...], lines: int, as_json: bool) -> None:
    """Show the logs of the run in LOGGING_DIR."""
    from thalweg.run.logging_dir import logging_dir_at  # noqa: PLC0415
    from thalweg.run.watch import look, runs_below  # noqa: PLC0415

    if below := runs_below(logging_dir):
        fix = f"ask for one: thalweg logs {below[0]}"
        raise InputError(f"{counted(len(below), 'run')} below here", where=logging_dir, fix=fix)
    home = logging_dir_at(logging_dir)
    state = look(home)
    chosen = list(ranks) or (state.failed if failed else list(range(state.tasks)))
    shown: dict[int, str] = {}
    for rank in chosen:
        text = home.log_text(rank)
        if text is not None:
            written = text.splitlines()
            shown[rank] = "\n".join(written[-lines:] if lines else written)
    if ranks and not shown:
        raise InputError(f"rank {ranks[0]} has no log", where=logging_dir, fix="see the ranks: thalweg status")
    if as_json:
        print_json({str(rank): text for rank, text in shown.items()})
        return
    if failed and not shown:
        click.echo("no rank has failed")
    for rank, text in shown.items():
        click.echo(click.style(f"== rank {rank} ({home.log_place(rank)})", bold=True))
        click.echo(text)
