"""A report on data: facts, findings with remedies, and samples shown token by token.

Decides what a report holds and when it is "ok". How it looks is the business of `html` and `terminal`. Knows no feed,
file or model.
"""

from dataclasses import dataclass, field
from typing import Any

from thalweg.check.finding import Finding, value_text
from thalweg.check.html import page
from thalweg.check.tokens import View


@dataclass(slots=True)
class Report:
    """What was found out about data.

    Args:
        title: what it is about.
        facts: name -> value, in the order of the table.
        findings: what was seen, without the checks that found nothing.
        samples: samples to show.
        figures: pictures, as SVG text; HTML only.
        verdicts: (group, finding) of every check that could judge, in the order of suspicion; `doctor` only.
        pictures: pictures of the samples as data URLs; HTML only.
        lengths: "16 to 31" -> samples of so many tokens, rising; HTML draws it among the figures.
    """

    title: str
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    findings: list[Finding] = field(default_factory=list[Finding])
    samples: list[View] = field(default_factory=list[View])
    figures: list[str] = field(default_factory=list[str])
    verdicts: list[tuple[str, Finding]] = field(default_factory=list[tuple[str, Finding]])
    pictures: list[str] = field(default_factory=list[str])
    lengths: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def ok(self) -> bool:
        """True when no finding is an error."""
        return all(finding.level != "error" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Write as JSON-like data."""
        checks = [{"group": group, **finding.to_dict()} for group, finding in self.verdicts]
        return {
            "title": self.title,
            "ok": self.ok,
            "facts": self.facts,
            "findings": [finding.to_dict() for finding in self.findings],
            **({"lengths": self.lengths} if self.lengths else {}),
            **({"checks": checks} if checks else {}),
            "samples": [view.to_dict() for view in self.samples],
        }

    def html(self) -> str:
        """Give one self-contained HTML page: no script, no font, no link to anywhere."""
        return page(self)

    def _repr_html_(self) -> str:
        return self.html()

    def __str__(self) -> str:
        """Give plain text: facts, verdicts or findings, samples with the trained tokens in brackets."""
        width = max(map(len, self.facts), default=0)
        lines = [self.title, *(f"  {name:<{width}}  {value_text(value)}" for name, value in self.facts.items())]
        lines += self.drawn_lengths()
        group = ""
        for of, verdict in self.verdicts:
            lines += [of] if of != group else []
            lines.append(f"  {verdict}")
            group = of
        lines += [self.summary()] if self.verdicts else map(str, self.findings)
        lines += [f"\n{view.title}\n{view.marked()}" for view in self.samples]
        return "\n".join(lines)

    def drawn_lengths(self) -> list[str]:
        """Draw the lengths as lines of text; none where they are not known."""
        if not self.lengths:
            return []
        most, wide = max(self.lengths.values()), max(map(len, self.lengths))
        return ["tokens of a sample"] + [
            f"  {name:>{wide}} {'█' * round(30 * n / max(most, 1)) or '▏' * bool(n)} {n:,}"
            for name, n in self.lengths.items()
        ]

    def summary(self) -> str:
        """Count the verdicts in one line."""
        levels: list[str] = [finding.level for _, finding in self.verdicts]
        named = (("error", "error"), ("warning", "warning"), ("note", "note"), ("ok", "check"))
        told = (f"{n} {name}{'s' * (n != 1)}" for level, name in named for n in (levels.count(level),))
        return ", ".join(told) + " passed"
