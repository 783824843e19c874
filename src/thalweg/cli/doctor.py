"""`thalweg doctor TARGET`: is this data right? A verdict a line, and a status that a job can stop on.

Decides the command's options and its exit status: 1 where a finding is an error. What is checked is `check.doctor`.
"""

from pathlib import Path
from typing import Any

import click

from thalweg.cli.output import html_option, json_option, own_prints_aside, print_json, words_argument, write_page


@click.command(name="doctor", help="Check TARGET for what spoils training; see docs/doctor.md.")
@click.argument("target")
@words_argument
@click.option("-n", "--samples", type=int, default=1000, show_default=True, help="Samples to look at, at most.")
@click.option("--tokenizer", default=None, help="Folder or name of the tokenizer; encodes a raw file.")
@click.option("--vocab-size", type=int, default=None, help="Rows of the model's embedding table.")
@click.option("--model-kind", type=click.Choice(["decoder", "encoder-decoder"]), default=None)
@click.option("--generating", is_flag=True, help="Batches are prompts to be continued.")
@click.option("--max-length", type=int, default=None, help="Tokens at which samples were cut.")
@html_option
@click.option(
    "--profile", type=click.Path(dir_okay=False, path_type=Path), default=None, help="Show a saved profile in it too."
)
@json_option
def command(
    target: str,
    words: tuple[str, ...],
    *,
    samples: int,
    tokenizer: str | None,
    vocab_size: int | None,
    model_kind: str | None,
    generating: bool,
    max_length: int | None,
    html: Path | None,
    profile: Path | None,
    as_json: bool,
) -> None:
    """Look, judge, print; exit with 1 where something is wrong."""
    from thalweg.check.doctor import doctor  # noqa: PLC0415 (numpy is needed for the look, not for --help)
    from thalweg.check.terminal import show  # noqa: PLC0415

    told: dict[str, Any] = {
        "vocab_size": vocab_size,
        "model_kind": model_kind,
        "generating": generating,
        "max_length": max_length,
    }
    if profile is not None and html is None:
        raise click.UsageError("--profile is shown in the page: say --html FILE too.")
    measured = None
    if profile is not None:
        from thalweg.check.profiles import Profile  # noqa: PLC0415

        measured = Profile.load(profile)  # before the work that it would end
    with own_prints_aside(as_json):
        report = doctor(target, samples, tokenizer=tokenizer, words=words, **told)
        if html is not None:
            from thalweg.check.overview import overview  # noqa: PLC0415

            write_page(html, overview(target, samples, tokenizer=tokenizer, words=words, profile=measured, **told))
    if as_json:
        print_json(report.to_dict())
    else:
        show(report)
    if not report.ok:
        raise SystemExit(1)
