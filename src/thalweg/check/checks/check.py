"""What a check is: a name, a group, and a function from evidence to one verdict.

Decides the groups and their order, which is the order of suspicion. Knows no single check.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from thalweg.check.evidence import Evidence
from thalweg.check.finding import Finding, Level

GROUPS = ("data", "masks", "lengths", "order", "speed")
Judge: TypeAlias = Callable[[Evidence], Finding | None]


@dataclass(frozen=True, slots=True)
class Check:
    """One check.

    Args:
        name: what it looks at, a few words; unique.
        group: one of `GROUPS`.
        judge: gives a verdict ("ok" included), or None where there is nothing to judge by.
    """

    name: str
    group: str
    judge: Judge

    def __call__(self, evidence: Evidence) -> Finding | None:
        """Judge, and sign the verdict."""
        verdict = self.judge(evidence)
        return None if verdict is None else replace(verdict, check=self.name)


def fine(what: str, **numbers: Any) -> Finding:
    """Say that nothing is wrong."""
    return Finding("ok", what, numbers=numbers)


def among(flags: Iterable[Any]) -> tuple[int, int, int]:
    """Count the true ones: (count, of how many, place of the first, -1 without one)."""
    values = [bool(f) for f in flags]
    return sum(values), len(values), values.index(True) if True in values else -1


def graver(share: float, *, error: float, warning: float = 0.0) -> Level:
    """Choose a level by a share: "error" from `error` on, "warning" above `warning`, else "note"."""
    return "error" if share >= error else "warning" if share > warning else "note"
