"""The demo's last word: a table in the terminal and one self-contained HTML page.

Decides what of an outcome is shown where. Knows how none of it came about.
"""

from pathlib import Path
from typing import Any

import click
import numpy as np

import thalweg as tw
from thalweg.check.finding import Finding
from thalweg.check.report import Report
from thalweg.check.terminal import show
from thalweg.check.tokens import View, view_sample
from thalweg.cli.demo.figure import loss_curves
from thalweg.cli.demo.job import Outcome, table
from thalweg.cli.demo.proof import MUST_FALL, SAME_LOSS, by_step
from thalweg.encode.tokens import load_tokenizer, qwen_tokenizer

TITLE = "thalweg demo: from raw files to training steps, killed and continued"
SAMPLES = {"chat": 3, "pages": 2}
SHORT = (30, 400)  # tokens of a sample that is shown


def report(outcome: Outcome) -> Report:
    """Make the report: the facts, what speaks against success, the losses, and five samples token by token."""
    whole = by_step(outcome.whole)
    losses = [sum(entry.loss for entry in whole[step]) for step in sorted(whole)]
    figure = loss_curves(losses, outcome.proof.losses, outcome.size.kill_at)
    samples = [view for name, count in SAMPLES.items() for view in _samples(outcome, name, count)]
    return Report(TITLE, table(outcome), findings(outcome), samples, [figure])


def findings(outcome: Outcome) -> list[Finding]:
    """List what speaks against success; empty for a demo that shows what it promises."""
    proof = outcome.proof
    found = [Finding("error", line, where="exactly-once") for line in proof.against]
    if not proof.same_losses:
        found.append(Finding("error", f"losses differ by {proof.loss_difference:.1e}, more than {SAME_LOSS:.0e}"))
    if not proof.fell:
        found.append(Finding("error", f"the loss fell by {proof.fall:.1%}, less than {MUST_FALL:.0%}"))
    for name, made in outcome.sets.items():
        if not made.idle_second:
            found.append(Finding("error", f"a second launch of the pipeline of {name} did not find all work done"))
    return found


def _samples(outcome: Outcome, name: str, count: int) -> list[View]:
    """Show a few samples of moderate length, evenly spread over a record set."""
    records: Any = tw.open_records(outcome.sets[name].path)
    decode = load_tokenizer(qwen_tokenizer()).decode
    fit = np.flatnonzero((records.lengths >= SHORT[0]) & (records.lengths <= SHORT[1]))
    picks = fit[np.linspace(0, len(fit) - 1, count + 2).astype(int)[1:-1]] if len(fit) else fit
    return [
        view_sample(f"{name}: {title}", records[int(i)], decode)
        for i, title in zip(picks, records.ids(picks), strict=True)
    ]


def closing(outcome: Outcome, page: Report, place: Path, seconds: float) -> None:
    """Print the table, what speaks against success, and where to look further."""
    show(Report(page.title, page.facts, page.findings))
    click.echo(f"\nreport   {place.resolve()}")
    click.echo(f"look     thalweg inspect {outcome.sets['chat'].path}")
    click.echo(f"took     {seconds:.0f} s")
