"""`thalweg stats`: what each step took, made, gave and dropped, over all complete ranks; and whether it adds up.

Decides the table. Merging is a fold over the ranks' files and may be done at any time.
"""

from pathlib import Path

import click

from thalweg.cli.output import json_option, print_json
from thalweg.core.errors import InputError
from thalweg.core.stats import PipelineStats, StepStats


@click.command()
@click.argument("logging_dirs", nargs=-1, required=True, type=click.Path(path_type=Path))
@json_option
def command(logging_dirs: tuple[Path, ...], as_json: bool) -> None:
    """Merge and show the statistics of the runs in LOGGING_DIRS; exit status 1 when books do not balance."""
    from thalweg.run.executor import merge_stats  # noqa: PLC0415

    found: dict[str, PipelineStats] = {}
    for path in logging_dirs:
        if not (path / "stats").is_dir():
            raise InputError("there are no statistics here", where=str(path), fix="give the logging_dir of an executor")
        found[str(path)] = merge_stats(path)
    if as_json:
        print_json({name: stats.to_dict() for name, stats in found.items()})
    else:
        for name, stats in found.items():
            click.echo(f"{name}: {stats.ranks} ranks")
            click.echo(table(stats))
    if any(stats.unbalanced for stats in found.values()):
        raise click.exceptions.Exit(1)


def table(stats: PipelineStats) -> str:
    """Write the books of every step, one line each, reasons below."""
    head = ("step", "in", "made", "out", "dropped", "quarantined", "")
    rows = [_row(step) for step in stats]
    widths = [max(len(r[k]) for r in [head, *rows]) for k in range(len(head))]
    lines: list[str] = []
    for step, row in zip([None, *stats], [head, *rows], strict=True):
        cells = [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:-1], widths[1:-1], strict=True)), row[-1]]
        lines.append("  ".join(cells).rstrip())
        if step is not None:
            lines += [f"    {reason}: {n:,}" for reason, n in step.tally.dropped.most_common()]
    return "\n".join(lines)


def _row(step: StepStats) -> tuple[str, ...]:
    t = step.tally
    counts = (t.taken, t.made, t.out, t.dropped.total(), t.quarantined)
    note = f"does not balance: {t.balance:+,}" if t.balance else ""
    return (step.id, *(f"{n:,}" if n else "-" for n in counts), note)
