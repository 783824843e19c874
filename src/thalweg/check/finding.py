"""One line of a report: what was seen, with numbers, and what to change.

Decides the levels and how a finding is written. Knows no check, no report and no page.
"""

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Level: TypeAlias = Literal["error", "warning", "note", "ok"]
LETTERS = {"error": "E", "warning": "W", "note": "N", "ok": "+"}


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that was seen.

    Args:
        level: "error": training on this is wrong; "warning": probably not what is wanted; "note": good to know;
            "ok": looked at, and nothing is wrong.
        what: one sentence without a full stop.
        count: in how many samples; None where it is about the whole.
        of: of how many.
        where: file, sample or stage.
        fix: what to change, an imperative.
        check: name of the check that saw it.
        numbers: further figures by name.
    """

    level: Level
    what: str
    count: int | None = None
    of: int | None = None
    where: str | None = None
    fix: str | None = None
    check: str = ""
    numbers: dict[str, Any] = field(default_factory=dict[str, Any])

    def __str__(self) -> str:
        """Compose one line: level, what, how many, figures, where, what to change."""
        share = f": {self.count:,} of {self.of:,} samples" if self.count is not None and self.of else ""
        more = ", ".join(f"{name} {value_text(value)}" for name, value in self.numbers.items())
        figures = f" ({more})" if more else ""
        where = f" [{self.where}]" if self.where else ""
        fix = f". Try: {self.fix}" if self.fix else ""
        return f"{LETTERS[self.level]} {self.what}{share}{figures}{where}{fix}"

    def to_dict(self) -> dict[str, Any]:
        """Write as JSON-like data, without empty fields."""
        names = ("level", "check", "what", "count", "of", "where", "numbers", "fix")
        fields = {name: getattr(self, name) for name in names}
        return {name: value for name, value in fields.items() if value is not None and value not in ("", {})}


def value_text(value: Any) -> str:
    """Write a figure for people: thousands with commas, yes and no, four digits of a fraction."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {value_text(count)}" for name, count in value.items()) or "none"
    return str(value)
