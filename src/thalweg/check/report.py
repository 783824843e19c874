"""A report on data: facts, findings with remedies, and samples shown token by token.

Decides what a report holds and when it is "ok". How it looks is the business of `html` and `terminal`. Knows no feed,
file or model.
"""

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from thalweg.check.tokens import View

Level: TypeAlias = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that was seen.

    Args:
        level: "error": training on this is wrong; "warning": probably not what is wanted; "note": good to know.
        what: one sentence without a full stop.
        count: in how many samples; None where it is about the whole.
        of: of how many.
        where: file, sample or stage.
        fix: what to change, an imperative.
    """

    level: Level
    what: str
    count: int | None = None
    of: int | None = None
    where: str | None = None
    fix: str | None = None

    def __str__(self) -> str:
        """Compose one line: level, what, how many, where, what to change."""
        share = f": {self.count:,} of {self.of:,} samples" if self.count is not None and self.of else ""
        where = f" [{self.where}]" if self.where else ""
        fix = f". Try: {self.fix}" if self.fix else ""
        return f"{self.level[0].upper()} {self.what}{share}{where}{fix}"

    def to_dict(self) -> dict[str, Any]:
        """Write as JSON-like data, without empty fields."""
        fields = {name: getattr(self, name) for name in ("level", "what", "count", "of", "where", "fix")}
        return {name: value for name, value in fields.items() if value is not None}


@dataclass(slots=True)
class Report:
    """What was found out about data.

    Args:
        title: what it is about.
        facts: name -> value, in the order of the table.
        findings: what was seen, the worst first.
        samples: samples to show.
        figures: pictures, as SVG text; HTML only.
    """

    title: str
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    findings: list[Finding] = field(default_factory=list[Finding])
    samples: list[View] = field(default_factory=list[View])
    figures: list[str] = field(default_factory=list[str])

    @property
    def ok(self) -> bool:
        """True when no finding is an error."""
        return all(finding.level != "error" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Write as JSON-like data."""
        return {
            "title": self.title,
            "ok": self.ok,
            "facts": self.facts,
            "findings": [finding.to_dict() for finding in self.findings],
            "samples": [view.to_dict() for view in self.samples],
        }

    def html(self) -> str:
        """Give one self-contained HTML page: no script, no font, no link to anywhere."""
        from thalweg.check.html import page  # noqa: PLC0415 (html imports this module)

        return page(self)

    def _repr_html_(self) -> str:
        return self.html()

    def __str__(self) -> str:
        """Give plain text: facts, findings, samples with the trained tokens in brackets."""
        width = max(map(len, self.facts), default=0)
        lines = [self.title, *(f"  {name:<{width}}  {value_text(value)}" for name, value in self.facts.items())]
        lines += [str(finding) for finding in self.findings]
        lines += [f"\n{view.title}\n{view.marked()}" for view in self.samples]
        return "\n".join(lines)


def value_text(value: Any) -> str:
    """Write a fact for people: thousands with commas, yes and no, four digits of a fraction."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {value_text(count)}" for name, count in value.items()) or "none"
    return str(value)
