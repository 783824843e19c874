"""`thalweg run`: run the pipelines of a file, with settings that win over its own.

Decides what is shown when all is done. Running is the business of `thalweg.run`.
"""

import logging
from typing import Any

import click

from thalweg.cli.output import json_option, own_prints_aside, print_json, say
from thalweg.run.show import counted


@click.command()
@click.argument("target")
@click.option("--workers", type=int, help="Ranks at once, whatever the file says.")
@click.option("--adopt", is_flag=True, default=None, help="Begin anew where the logging directory holds another run.")
@click.option("--rerun", is_flag=True, help="Run all ranks again, also complete ones.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
@json_option
def command(target: str, workers: int | None, adopt: bool | None, rerun: bool, quiet: bool, as_json: bool) -> None:  # noqa: PLR0917
    """Run the pipeline in TARGET: FILE.py, or FILE.py:executor.

    A file is run as a script; executors that it defines and does not run are run after it. Run the same command
    again after a failure: only what is missing runs.
    """
    from thalweg.run.script import launching, run_target  # noqa: PLC0415  (heavy libraries load when used)

    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    with (
        launching(quiet=quiet or as_json, workers=workers, adopt=adopt, skip_completed=False if rerun else None),
        own_prints_aside(as_json),
    ):
        try:
            done = run_target(target)
        except KeyboardInterrupt as stop:
            say(str(stop) or "interrupted")
            raise click.exceptions.Exit(130) from None
    if as_json:
        found: list[dict[str, Any]] = [
            {"logging_dir": str(e.home), "tasks": e.tasks, "stats": s.to_dict()} for e, s in done
        ]
        print_json({"runs": found})
        return
    for executor, stats in done:
        say(f"{stats.ranks} of {counted(executor.tasks, 'rank')} complete, {executor.home}")
        click.echo(str(stats))
