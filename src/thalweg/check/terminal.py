"""A report in the terminal.

Decides colours and layout alone. With colours, trained tokens are green and the rest is dimmed; without (a file, a
pipe, NO_COLOR) trained tokens stand in brackets, so that nothing is lost. Imports rich only when something is painted.
"""

from itertools import groupby
from typing import TYPE_CHECKING, Any

from thalweg.check.finding import value_text

if TYPE_CHECKING:
    from thalweg.check.report import Report
    from thalweg.check.tokens import View

STYLES = {"loss": "bold green", "context": "dim", "padding": "dim italic"}
LEVELS = {"error": "bold red", "warning": "yellow", "note": "cyan", "ok": "green"}


def show(report: "Report", console: Any = None) -> None:
    """Print a report.

    Args:
        report: what to print.
        console: a rich Console; None makes one for stdout.
    """
    from rich.console import Console  # noqa: PLC0415 (rich costs a start 60 ms)
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console() if console is None else console
    table = Table(title=report.title, title_justify="left", title_style="bold", show_header=False)
    for name, value in report.facts.items():
        table.add_row(Text(name, style="dim"), Text(value_text(value)))
    if report.facts:
        console.print(table)
    for line in report.drawn_lengths():
        console.print(Text(line))
    group = ""
    for of, finding in report.verdicts or [("", finding) for finding in report.findings]:
        if of != group:
            console.print(Text(of, style="bold"))
            group = of
        console.print(Text(str(finding), style=LEVELS[finding.level]))
    if report.verdicts:
        console.print(Text(report.summary(), style="bold"))
    coloured = console.color_system is not None and not console.no_color
    if report.samples and coloured:
        console.print(Text.assemble(("trained on", STYLES["loss"]), "  ", ("read, not in the loss", STYLES["context"])))
    for view in report.samples:
        console.rule(Text(f"{view.title}: {view.size}"), align="left")
        console.print(_painted(view) if coloured else Text(view.marked()))


def _painted(view: "View") -> Any:
    from rich.text import Text  # noqa: PLC0415

    text = Text(view.text)
    for number, document in enumerate(view.documents):
        if number:
            text.append("\n────\n", style="blue")
        for kind, run in groupby(document, key=lambda piece: piece.kind):
            pieces = list(run)
            count = sum(len(piece.ids) for piece in pieces)
            words = f"({count:,} padding tokens)" if kind == "padding" else "".join(piece.text for piece in pieces)
            text.append(words, style=STYLES[kind])
    return text
