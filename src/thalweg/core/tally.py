"""Counts that must add up: in + made = out + dropped(by reason) + quarantined.

Decides what is counted and when the books balance. Knows no step by name.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Tally:
    """The books of one step or stage. `made` counts items beyond one per input, as an expansion or a reader makes."""

    taken: int = 0
    made: int = 0
    out: int = 0
    dropped: Counter[str] = field(default_factory=Counter[str])
    quarantined: int = 0

    def drop(self, reason: str, n: int = 1) -> None:
        """Count items that do not go on, under a reason."""
        self.dropped[reason] += n

    @property
    def balance(self) -> int:
        """Items that are unaccounted for: 0 when the books balance."""
        return self.taken + self.made - self.out - self.dropped.total() - self.quarantined

    def __add__(self, other: "Tally") -> "Tally":
        """Add two books, in any order with the same result. A reason that was counted as zero stays."""
        dropped = Counter(self.dropped)
        dropped.update(other.dropped)
        return Tally(
            self.taken + other.taken,
            self.made + other.made,
            self.out + other.out,
            dropped,
            self.quarantined + other.quarantined,
        )

    def to_dict(self) -> dict[str, Any]:
        """Write as JSON-like data."""
        return {
            "in": self.taken,
            "made": self.made,
            "out": self.out,
            "dropped": dict(sorted(self.dropped.items())),
            "quarantined": self.quarantined,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Tally":
        """Read what `to_dict` wrote."""
        return cls(data["in"], data["made"], data["out"], Counter(data["dropped"]), data["quarantined"])
