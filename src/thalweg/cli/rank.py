"""`thalweg rank`: the node's side of a job array; written into job scripts by the Slurm executor.

Decides nothing: see `thalweg.run.element`.
"""

import json
import logging
import os

import click

from thalweg.cli.output import json_option, print_json, say
from thalweg.run.show import counted


@click.command()
@click.argument("executor", metavar="EXECUTOR")
@click.option("--finish", "ending", is_flag=True, help="Merge statistics and outputs; fails when ranks are missing.")
@click.option("--options", default="{}", metavar="JSON", help="Options of the file system of a URL.")
@json_option
def command(executor: str, ending: bool, options: str, as_json: bool) -> None:
    """Run the ranks of this array element of the launch in EXECUTOR (executor.pik)."""
    from thalweg.run.element import finish, run_element  # noqa: PLC0415

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    if ending:
        stats = finish(executor, json.loads(options))
        if as_json:
            print_json(stats.to_dict())
        else:
            say(f"{counted(stats.ranks, 'rank')} merged")
        return
    done = run_element(executor, os.environ, json.loads(options))
    if as_json:
        print_json({"ranks": done})
    else:
        say(f"complete: {', '.join(map(str, done)) or 'nothing was left to do'}")
