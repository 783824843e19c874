"""`thalweg convert SOURCE TARGET`: between record sets and other formats.

Decides what is shown. What is done is in `store.formats.convert`.
"""

import dataclasses
import sys

import click

from thalweg.cli.output import json_option, print_json, say

_NAMES = "records, jsonl, parquet, datasets, webdataset, megatron, mds, mindrecord"


@click.command()
@click.argument("source")
@click.argument("target")
@click.option("--from", "source_format", help=f"Format of SOURCE where its name does not say it: {_NAMES}.")
@click.option("--to", "target_format", help="Format of TARGET; default: by its name, else records.")
@click.option("--workers", default=0, show_default="usable CPUs", help="Processes.")
@click.option(
    "--on-error",
    default="raise",
    show_default=True,
    type=click.Choice(["raise", "quarantine"]),
    help="A row that TARGET cannot hold; a line that cannot be read always ends it.",
)
@json_option
def command(  # noqa: PLR0917
    source: str,
    target: str,
    source_format: str | None,
    target_format: str | None,
    workers: int,
    on_error: str,
    as_json: bool,
) -> None:
    """Convert SOURCE to TARGET: in parallel, in order, and from where it stopped when it is run again.

    TARGET is whole or not there: a part that is being written has another name, and a file that exists is never
    overwritten. Rows and tokens of both sides are equal, or it fails.
    """
    from thalweg.store.formats.convert import convert  # noqa: PLC0415
    from thalweg.work.cpus import usable_cpus  # noqa: PLC0415

    shown = sys.stderr.isatty() and not as_json

    def progress(done: int, of: int, rows: int, tokens: int) -> None:
        if shown or done == of or done % 50 == 0:
            say(f"{done} of {of} pieces, {rows:,} rows, {tokens:,} tokens")

    found = convert(source, target, source_format, target_format, workers or usable_cpus(), on_error, progress)
    if as_json:
        print_json({"source": source, "target": target, **dataclasses.asdict(found)})
        return
    click.echo(f"{found.rows:,} rows, {found.tokens:,} tokens in {target}")
    if found.skipped:
        click.echo(f"{found.skipped} of {found.pieces} pieces were there already")
    if found.quarantined:
        click.echo(f"{found.quarantined:,} rows in {target}.quarantine/, each with its reason")
    if found.left_out:
        click.echo(f"columns without a place in that format: {', '.join(found.left_out)}")
