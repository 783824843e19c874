"""A report as one self-contained HTML page.

Decides colours and layout alone. No script, no font and no link to anywhere, so the page can be mailed and opened
behind any wall; light and dark follow the reader's system.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Protocol

from thalweg.check.finding import Finding, value_text
from thalweg.check.tokens import Piece, View

STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --dim: #8a94a3; --paper: #fbfaf7; --card: #ffffff; --line: #e3e0d8;
  --loss: #0a6b4f; --loss-bg: #d8f3e4; --bad: #b3261e; --warn: #8a5a00; --water: #1f6feb; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --dim: #7d8794; --paper: #12161c; --card: #1a2029;
  --line: #2b333f; --loss: #7fe3b5; --loss-bg: #123528; --bad: #ff8a80; --warn: #f0c060; --water: #79b0ff; } }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 60rem;
  margin: 2.5rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
table { border-collapse: collapse; width: 100%; background: var(--card); border: 1px solid var(--line); }
th, td { text-align: left; padding: .45rem .8rem; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 500; color: var(--dim); width: min(18rem, 40%); } td { font-variant-numeric: tabular-nums; }
.sample { background: var(--card); border: 1px solid var(--line); border-radius: 6px; margin: 1rem 0; }
.sample h3 { font-size: .95rem; margin: 0; padding: .5rem .8rem; border-bottom: 1px solid var(--line); }
.sample h3 small { color: var(--dim); font-weight: 400; }
pre { font: 13px/1.5 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; margin: 0;
  padding: .7rem .8rem; max-height: 26rem; overflow-y: auto; }
pre + pre { border-top: 2px dashed var(--line); }
.loss { color: var(--loss); background: var(--loss-bg); border-radius: 2px; } .context { color: var(--dim); }
.padding { color: var(--dim); font-style: italic; }
span[title]:hover { outline: 1px solid var(--water); }
.error b { color: var(--bad); } .warning b { color: var(--warn); } li { margin: .3rem 0; } svg { max-width: 100%; }
.ok b { color: var(--loss); } .pictures img { max-height: 8rem; margin: .2rem; } figure { margin: 1.2rem 0; }
"""
LEGEND = (
    '<p><span class="loss">trained on</span> &middot; <span class="context">read, not in the loss</span> &middot; '
    "a dashed line parts documents that do not see each other &middot; rest the pointer on a token for its id</p>"
)


class Shown(Protocol):
    """What a page is made of: a report."""

    @property
    def title(self) -> str: ...  # noqa: D102
    @property
    def facts(self) -> Mapping[str, Any]: ...  # noqa: D102
    @property
    def findings(self) -> Sequence[Finding]: ...  # noqa: D102
    @property
    def verdicts(self) -> Sequence[tuple[str, Finding]]: ...  # noqa: D102
    @property
    def figures(self) -> Sequence[str]: ...  # noqa: D102
    @property
    def pictures(self) -> Sequence[str]: ...  # noqa: D102
    @property
    def samples(self) -> Sequence[View]: ...  # noqa: D102


def page(report: Shown) -> str:
    """Give the whole page as text."""
    rows = "".join(f"<tr><th>{escape(k)}</th><td>{escape(value_text(v))}</td></tr>" for k, v in report.facts.items())
    parts = [f"<h1>{escape(report.title)}</h1>", f"<table>{rows}</table>" if rows else ""]
    if report.findings:
        parts.append(f"<h2>Findings</h2><ul>{''.join(map(_finding, report.findings))}</ul>")
    if report.verdicts:
        parts.append(f"<h2>Checks</h2>{_verdicts(report.verdicts)}")
    parts += [f"<figure>{figure}</figure>" for figure in report.figures]
    if report.pictures:
        shown = "".join(f'<img alt="picture of a sample" src="{url}">' for url in report.pictures)
        parts.append(f'<h2>Pictures</h2><p class="pictures">{shown}</p>')
    if report.samples:
        encoded = any(view.documents for view in report.samples)
        head = f"<h2>Samples, token by token</h2>{LEGEND}" if encoded else "<h2>Samples</h2>"
        parts += [head, *map(_sample, report.samples)]
    title = escape(report.title)
    meta = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    head = f"<head>{meta}<title>{title}</title><style>{STYLE}</style></head>"
    return f'<!doctype html>\n<html lang="en">{head}<body>{"".join(parts)}</body></html>\n'


def _verdicts(verdicts: Sequence[tuple[str, Finding]]) -> str:
    """Write every verdict, one table a group."""
    rows: list[str] = []
    group = ""
    for of, finding in verdicts:
        if of != group:
            rows.append(f'<tr><th colspan="2">{escape(of)}</th></tr>')
            group = of
        rows.append(
            f'<tr class="{finding.level}"><td><b>{finding.level}</b></td><td>{escape(str(finding)[2:])}</td></tr>'
        )
    return f"<table>{''.join(rows)}</table>"


def _finding(finding: Finding) -> str:
    return f'<li class="{finding.level}"><b>{finding.level}</b> {escape(str(finding)[2:])}</li>'


def _sample(view: View) -> str:
    documents = f"<pre>{escape(view.text)}</pre>" if view.text else ""
    documents += "".join(f"<pre>{''.join(_piece(piece) for piece in _merged(doc))}</pre>" for doc in view.documents)
    return f'<div class="sample"><h3>{escape(view.title)} <small>{view.size}</small></h3>{documents}</div>'


def _merged(document: tuple[Piece, ...]) -> list[Piece | int]:
    """Replace each run of padding by its length."""
    merged: list[Piece | int] = []
    for piece in document:
        if piece.kind != "padding":
            merged.append(piece)
        elif merged and isinstance(merged[-1], int):
            merged[-1] += len(piece.ids)
        else:
            merged.append(len(piece.ids))
    return merged


def _piece(piece: Piece | int) -> str:
    if isinstance(piece, int):
        return f'<span class="padding">{piece:,} padding tokens</span>'
    ids = " ".join(map(str, piece.ids))
    return f'<span class="{piece.kind}" title="{ids}">{escape(piece.text)}</span>'
