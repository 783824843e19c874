"""`thalweg tune TARGET`: how the functions of a feed run fastest here, found by trying.

Decides the command's options. How settings are tried is `check.tune`.
"""

from pathlib import Path

import click

from thalweg.cli.output import file_option, json_option, own_prints_aside, print_json, say, words_argument


@click.command(
    name="tune",
    help="Try mode, workers and batches ahead for TARGET (file.py:feed, data.yaml), and write the best.",
)
@click.argument("target")
@words_argument
@click.option("--seconds", type=float, default=60.0, show_default=True, help="That the search may take, about.")
@click.option("--steps", type=int, default=100, show_default=True, help="Batches of a trial at least.")
@click.option("--train-ms", type=float, default=0.0, show_default=True, help="What a step of training takes.")
@click.option("--max-memory", default=None, help='That loader and workers may take, such as "8GB".')
@file_option("--write", "Write the settings here.")
@json_option
def command(
    target: str,
    words: tuple[str, ...],
    *,
    seconds: float,
    steps: int,
    train_ms: float,
    max_memory: str | None,
    write: Path | None,
    as_json: bool,
) -> None:
    """Search, print every trial, write the best."""
    from thalweg.check.terminal import show  # noqa: PLC0415 (numpy is needed for the run, not for --help)
    from thalweg.check.tune import tune, write_settings  # noqa: PLC0415

    with own_prints_aside(as_json):
        found = tune(target, seconds=seconds, steps=steps, train=train_ms / 1000, max_memory=max_memory, words=words)
    if write is not None:
        write_settings(found, target, write, words)
        say(f"written: {write}")
    if as_json:
        print_json(found.to_dict())
    else:
        show(found.report())
