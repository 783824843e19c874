"""`thalweg profile TARGET`: what a loop waits for; `thalweg profile diff A B`: what a change did.

Decides the command's options. What is measured is `check.profile`.
"""

from pathlib import Path

import click

from thalweg.cli.output import (
    file_option,
    html_option,
    json_option,
    own_prints_aside,
    print_json,
    words_argument,
    write_page,
)


@click.command(
    name="profile",
    help="Measure where a step's time goes in TARGET (file.py:feed, data.yaml), or compare two saved profiles: "
    "thalweg profile diff A B.",
)
@click.argument("target")
@words_argument
@click.option("--steps", type=int, default=50, show_default=True, help="Batches to measure.")
@click.option("--train-ms", type=float, default=0.0, show_default=True, help="What a step of training takes.")
@click.option("--workers", type=int, default=None, help="Workers of the loader.")
@file_option("--save", "Keep the profile here.")
@file_option("--trace", "Write every call for chrome://tracing.")
@html_option
@json_option
def command(
    target: str,
    words: tuple[str, ...],
    *,
    steps: int,
    train_ms: float,
    workers: int | None,
    save: Path | None,
    trace: Path | None,
    html: Path | None,
    as_json: bool,
) -> None:
    """Measure, or compare; print shares, verdict and advice."""
    from thalweg.check.profile import profile  # noqa: PLC0415 (numpy is needed for the run, not for --help)
    from thalweg.check.profiles import Profile, compared  # noqa: PLC0415
    from thalweg.check.terminal import show  # noqa: PLC0415

    if target == "diff":
        if len(words) != 2:
            raise click.UsageError("diff takes two saved profiles.")
        report = compared(*map(Profile.load, words))
        data = report.to_dict()
    else:
        if any("=" not in word for word in words):
            raise click.UsageError("one target at a time; two saved profiles are compared by: diff A B")
        with own_prints_aside(as_json):
            made = profile(target, steps, train=train_ms / 1000, workers=workers, trace=trace, words=words)
        if save is not None:
            made.save(save)
        report, data = made.report(), made.to_dict()
    if html is not None:
        write_page(html, report)
    if as_json:
        print_json(data)
    else:
        show(report)
