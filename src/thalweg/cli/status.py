"""`thalweg status`: how far runs are, in ranks, documents and bytes, with the time left.

Decides the lines. Looking is the business of `thalweg.run.watch`.
"""

import time
from typing import Any

import click

from thalweg.cli.output import json_option, print_json
from thalweg.run.show import counted, show_bytes, show_seconds


@click.command()
@click.argument("logging_dirs", nargs=-1, required=True, metavar="LOGGING_DIR...")
@click.option("--follow", is_flag=True, help="Show again until all ranks have ended; exit status 1 if some failed.")
@click.option("--every", default=2.0, show_default=True, help="Seconds between looks.")
@json_option
def command(logging_dirs: tuple[str, ...], follow: bool, every: float, as_json: bool) -> None:
    """Show how far the runs in LOGGING_DIR... are; a directory with runs below it stands for all of them."""
    from thalweg.run.watch import look, runs_below  # noqa: PLC0415

    first: dict[str, tuple[float, int]] = {}
    while True:
        states = [look(run) for path in logging_dirs for run in runs_below(path) or [path]]
        now = time.monotonic()
        ended = all(s.complete + len(s.failed) == s.tasks and not s.running for s in states)
        if as_json and (ended or not follow):  # one document, however often it was looked
            print_json([s.to_dict() for s in states])
        elif not as_json:
            for state in states:
                began, size = first.setdefault(state.path, (now, state.bytes))
                click.echo(_line(state, now - began, state.bytes - size))
        if not follow:
            return
        if ended:
            if any(s.failed for s in states):
                raise click.exceptions.Exit(1)
            return
        time.sleep(every)


def _line(state: Any, seconds: float, fresh: int) -> str:
    text = f"{state.path}: {state.complete}/{counted(state.tasks, 'rank')}, {counted(state.documents, 'document')}"
    if state.size:
        text += f", {show_bytes(state.bytes)} of {show_bytes(state.size)} ({min(state.bytes / state.size, 1):.0%})"
    text += f", {len(state.running)} at work" if state.running else ""
    for word, ranks in (("silent", state.silent), ("failed", state.failed)):
        if ranks:
            text += f", {word}: {', '.join(map(str, ranks[:10]))}{', ...' if len(ranks) > 10 else ''}"
    if state.failed:
        text += f" (see thalweg logs {state.path} --failed)"
    if fresh > 0 and seconds > 0 and state.size > state.bytes:
        text += f", {show_seconds((state.size - state.bytes) * seconds / fresh)} left"
    return text
