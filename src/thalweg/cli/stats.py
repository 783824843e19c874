"""`thalweg stats`: what each step took, made, gave and dropped, over all complete ranks; and whether it adds up.

Decides the exit status. Merging is a fold over the ranks' files and may be done at any time.
"""

from typing import TYPE_CHECKING

import click

from thalweg.cli.output import json_option, print_json
from thalweg.core.errors import InputError
from thalweg.run.show import counted

if TYPE_CHECKING:
    from thalweg.core.stats import PipelineStats


@click.command()
@click.argument("logging_dirs", nargs=-1, required=True, metavar="LOGGING_DIR...")
@json_option
def command(logging_dirs: tuple[str, ...], as_json: bool) -> None:
    """Merge and show the statistics of the runs in LOGGING_DIR...; a directory with runs below it stands for all.

    Exit status 1 when books do not balance.
    """
    from thalweg.run.executor import merge_stats  # noqa: PLC0415
    from thalweg.run.logging_dir import logging_dir_at  # noqa: PLC0415
    from thalweg.run.watch import runs_below  # noqa: PLC0415

    found: dict[str, PipelineStats] = {}
    for path in [run for given in logging_dirs for run in runs_below(given) or [given]]:
        home = logging_dir_at(path)
        if home.newest() is None and not home.marked():
            raise InputError("there are no statistics here", where=path, fix="give the logging_dir of an executor")
        found[path] = merge_stats(home)
    if as_json:
        print_json({name: stats.to_dict() for name, stats in found.items()})
    else:
        for name, stats in found.items():
            click.echo(f"{name}: {counted(stats.ranks, 'rank')}")
            click.echo(str(stats))
    if any(stats.unbalanced for stats in found.values()):
        raise click.exceptions.Exit(1)
