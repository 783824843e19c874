"""`thalweg inspect TARGET`: what the model will see, token by token.

Decides the command's options. What is shown is the business of `check.inspect`.
"""

from collections import Counter
from pathlib import Path

import click

from thalweg.cli.output import (
    check_rank,
    counted,
    html_option,
    json_option,
    print_json,
    say,
    with_settings,
    words_argument,
    write_page,
)


@click.command()
@click.argument("target")
@words_argument
@click.option("-n", "count", type=int, default=3, show_default=True, help="Samples or rows to show.")
@click.option("--row", type=int, default=None, help="Row of a record set to begin with, from 0.")
@click.option("--step", type=int, default=None, help="Optimiser step of a feed to show, from 0.")
@click.option("--rank", type=int, default=0, show_default=True, help="Data-parallel rank whose rows are shown.")
@click.option("--world", type=int, default=1, show_default=True, help="Data-parallel ranks that steps count for.")
@click.option("--tokenizer", default=None, help="Folder or name of the tokenizer, where the data does not name it.")
@html_option
@json_option
def command(
    target: str,
    words: tuple[str, ...],
    *,
    count: int,
    row: int | None,
    step: int | None,
    rank: int,
    world: int,
    tokenizer: str | None,
    html: Path | None,
    as_json: bool,
) -> None:
    """Show what the model will see, token by token, coloured by label.

    TARGET is the folder of a record set, file.py:name for a feed or loader in a Python file (imported, never run as
    a script), or a file of settings (data.yaml, data.yaml:val) with words such as train.batch.size=2 behind it.
    Without a terminal, trained tokens stand in brackets. Of a file or folder of documents (JSONL, Parquet, CSV,
    Arrow, WARC, packed or not) the documents are shown.
    """
    from thalweg.check.inspect import inspect  # noqa: PLC0415 (numpy is needed for the look, not for --help)
    from thalweg.check.target import load_target, split_settings  # noqa: PLC0415
    from thalweg.check.terminal import show  # noqa: PLC0415

    check_rank(rank, world)
    if not words and _documents(target, row or 0, count, html, as_json=as_json):
        return
    settings = split_settings(target) is not None
    thing = load_target(target, words) if settings or words else target
    report = inspect(thing, step, rank, count, world=world, row=row, tokenizer=tokenizer)
    if html is not None:
        write_page(html, report)
    if as_json:
        print_json(with_settings(report.to_dict(), thing))
    elif html is None:
        show(report)


def _documents(target: str, row: int, count: int, html: Path | None, *, as_json: bool) -> bool:
    """Show the documents of a target that holds some and is no record set; say whether it does."""
    from thalweg.check.documents import TEXTLESS, documents, files_with_documents, report_of, text_of  # noqa: PLC0415
    from thalweg.store.records import place  # noqa: PLC0415

    path = Path(target)
    if not path.exists() or (path.is_dir() and (place.generations(path) or place.declarations(path))):
        return False
    files = files_with_documents(target)
    if not files:
        return False
    passed: Counter[str] = Counter()
    found = documents(files, row, count, passed)
    if html is not None:
        write_page(html, report_of(target, found))
    if as_json:
        print_json(found)
    elif html is None:
        click.echo(text_of(found))
    if passed[TEXTLESS]:
        rows = counted(passed[TEXTLESS], "row")
        say(f"passed over: {rows} with neither a text nor a conversation; inspect file.py:feed shows them as they are")
    return True
