"""`thalweg verify PATH`: whether a record set is what was written; with `--ledger`: whether a run gave each row once.

Decides what is shown. What is compared is in `store.records.verify` and `feed.proof`.
"""

from typing import Any

import click

from thalweg.cli.output import json_option, print_json
from thalweg.core.errors import ConfigError


@click.command()
@click.argument("path", required=False)
@click.option("--quick", is_flag=True, help="Names and sizes of all files only.")
@click.option("--generation", type=int, help="An older generation; default: the newest.")
@click.option("--partial", is_flag=True, help="The parts that are there of an unfinished set.")
@click.option("--ledger", help="Folder of a ledger: prove that each row was delivered once. PATH may name the feed.")
@click.option("--seed", type=int, help="With --ledger and a feed: the loader's seed; default: as the ledger says.")
@json_option
def command(  # noqa: PLR0917
    path: str | None,
    quick: bool,
    generation: int | None,
    partial: bool,
    ledger: str | None,
    seed: int | None,
    as_json: bool,
) -> None:
    """Check a record set: every byte with its checksum, or names and sizes only.

    The first file that differs is named with its offset, and the exit status is 1.

    With --ledger DIR it proves from the ledger of a run that every row counts once, over ranks, restarts and
    topologies, rolled-back steps left out. With PATH as file.py:feed the ids that were delivered are compared with
    the plan too. Each problem is named, and the exit status is 1.
    """
    if ledger is not None:
        if quick or partial or generation is not None:
            raise ConfigError(
                "--quick, --generation and --partial are for record sets", where="thalweg verify --ledger"
            )
        _verify_run(ledger, path, seed, as_json=as_json)
        return
    if path is None:
        raise ConfigError("nothing to verify", where="thalweg verify", fix="a record set's PATH, or --ledger DIR")
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


def _verify_run(folder: str, target: str | None, seed: int | None, *, as_json: bool) -> None:
    from thalweg.feed.ledger import verify_ledger  # noqa: PLC0415

    feed: Any = None
    if target is not None:
        from thalweg.check.target import load_target  # noqa: PLC0415
        from thalweg.cli.simulate import feed_of  # noqa: PLC0415

        feed = feed_of(load_target(target), target)
    verdict = verify_ledger(folder, feed, seed)
    if as_json:
        print_json(verdict.to_dict())
    else:
        click.echo(verdict.text(compared=feed is not None))
    if not verdict.ok:
        raise click.exceptions.Exit(1)
