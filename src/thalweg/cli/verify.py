"""`thalweg verify PATH`: whether a record set is what was written.

Decides what is shown. What is compared is in `store.records.verify`.
"""

import click

from thalweg.cli.output import json_option, print_json


@click.command()
@click.argument("path")
@click.option("--quick", is_flag=True, help="Names and sizes of all files only.")
@click.option("--generation", type=int, help="An older generation; default: the newest.")
@click.option("--partial", is_flag=True, help="The parts that are there of an unfinished set.")
@json_option
def command(path: str, quick: bool, generation: int | None, partial: bool, as_json: bool) -> None:
    """Check a record set: every byte with its checksum, or names and sizes only.

    The first file that differs is named with its offset, and the exit status is 1.
    """
    from thalweg.store.records.reader import open_records  # noqa: PLC0415

    records = open_records(path, generation=generation, partial=partial)
    records.verify("quick" if quick else "full")
    about = {
        "path": path,
        "level": "quick" if quick else "full",
        "generation": records.generation,
        "rows": len(records),
        "tokens": records.num_tokens,
        "quarantined": records.quarantined,
        "fingerprint": records.fingerprint,
    }
    if as_json:
        print_json({"ok": True, **about})
        return
    checked = "names and sizes are" if quick else "every byte is"
    click.echo(f"{checked} as written: {len(records):,} rows, {records.num_tokens:,} tokens")
    click.echo(f"generation {records.generation}, fingerprint {records.fingerprint}")
