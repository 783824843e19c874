"""A profile as a value: printed, saved, read again, compared with another.

Decides the form of a saved profile and what a comparison says. Measures nothing.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from thalweg.check.advice import Costs
from thalweg.check.finding import Finding
from thalweg.check.report import Report
from thalweg.core.errors import InputError

VERSION = 2
HEAVY = 1.1  # times the rate without functions at which preprocessing counts as heavy


@dataclass(slots=True)
class Profile:
    """What a loop spent its time on.

    Args:
        title: what ran.
        batches, tokens, samples: that were measured; samples are calls of the functions.
        wall: seconds.
        costs: seconds a batch by stage.
        advice: what to change, the likeliest first.
        preprocess, consume: mean seconds a sample, of functions and of training.
        case: which of the three tuning cases holds.
        values: settings that the case asks for.
        rates: batches a second, as it is, without functions, without training; of a stream also with functions that
            follow each other apart.
        waits: seconds that each batch was waited for.
        queues: by stage: items in it on average ("mean") and at most ("most"), bytes at most, while it ran.
    """

    title: str
    batches: int
    wall: float
    tokens: int
    samples: int
    costs: Costs
    advice: list[str] = field(default_factory=list[str])
    preprocess: float = 0.0
    consume: float = 0.0
    case: str = ""
    values: dict[str, int] = field(default_factory=dict[str, int])
    rates: dict[str, float] = field(default_factory=dict[str, float])
    waits: list[float] = field(default_factory=list[float])
    queues: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def rate(self) -> float:
        """Batches a second."""
        return self.batches / self.wall if self.wall else 0.0

    @property
    def waiting_share(self) -> float:
        """Share of step time spent waiting for data."""
        return self.costs.share

    @property
    def shares(self) -> dict[str, float]:
        """Share of each stage, training included, of all seconds that were worked."""
        parts = {**self.costs.stages, "training": self.costs.train}
        whole = sum(parts.values())
        return {name: seconds / whole if whole else 0.0 for name, seconds in parts.items()}

    @property
    def busy(self) -> float | None:
        """Share of the workers' time in which they worked; None where functions run inline."""
        if not self.costs.workers or not self.wall:
            return None
        return sum(self.costs.maps.values()) * self.batches / (self.wall * self.costs.workers)

    @property
    def verdict(self) -> str:
        """Say whether preprocessing is heavy, by the loop without it; "" where that was not run."""
        if "without functions" not in self.rates:
            return ""
        heavy = self.rates["without functions"] > HEAVY * self.rates["as it is"]
        return "preprocessing is heavy" if heavy else "preprocessing is not heavy"

    @property
    def fusing(self) -> float | None:
        """Times the rate that functions give which run as one call instead of one by one; None where none do."""
        slow = self.rates.get("functions apart")
        return self.rates["as it is"] / slow if slow else None

    def jumps(self) -> list[int]:
        """Give the batches that were waited for far longer than the rest: other shapes, other files, a slow disk."""
        if len(self.waits) < 8:
            return []
        waited = sorted(w for w in self.waits if w > 1e-3)
        middle = waited[len(waited) // 2] if waited else 0.0
        found = [n for n, w in enumerate(self.waits) if w > max(5 * middle, 0.01)]
        return found if len(found) <= max(1, len(self.waits) // 20) else []

    def to_dict(self) -> dict[str, Any]:
        """Write as JSON-like data."""
        more = {"waiting_share": self.waiting_share, "rate": self.rate, "verdict": self.verdict}
        return {"kind": "profile", "version": VERSION, **asdict(self), "shares": self.shares, **more}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Profile":
        """Read what `to_dict` wrote.

        Raises:
            InputError: it is no profile, or of a newer version.
        """
        if data.get("kind") != "profile" or int(data.get("version", 0)) > VERSION:
            raise InputError("this is no profile that can be read here", fix="thalweg profile TARGET --save FILE")
        if int(data.get("version", 0)) < 2:
            data = {**data, "queues": {}}  # they were kept otherwise
        fields = {k: data[k] for k in cls.__dataclass_fields__ if k != "costs"}
        return cls(**fields, costs=Costs(**data["costs"]))

    def save(self, path: str | Path) -> None:
        """Write a JSON file."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=1), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> "Profile":
        """Read a JSON file.

        Raises:
            InputError: there is none, or it is no profile.
        """
        try:
            return cls.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError) as error:
            fix = "write one: thalweg profile TARGET --save FILE"
            raise InputError(f"no profile can be read: {error}", where=str(path), fix=fix) from error

    def report(self) -> Report:
        """Give it as a report, to be printed or shown as a page."""
        facts: dict[str, Any] = {
            "waiting for data": f"{self.waiting_share:.1%} of step time",
            "rate": f"{self.rate:.2f} batches a second, {self.tokens / self.wall if self.wall else 0:,.0f} tokens",
        }
        for name, share in self.shares.items():
            seconds = {**self.costs.stages, "training": self.costs.train}[name]
            facts[name] = f"{share:.1%} of the work, {seconds * 1000:.2f} ms a batch"
        if self.busy is not None:
            facts["workers"] = f"{self.costs.workers} {self.costs.mode}, {self.busy:.0%} busy"
        if self.samples:
            ratio = self.preprocess / self.consume if self.consume else float("inf")
            facts["a sample"] = (
                f"{1e3 * self.preprocess:.3f} ms made, {1e3 * self.consume:.3f} ms used, ratio {ratio:.2f}"
            )
            told = ", ".join(f"{k}={v}" for k, v in self.values.items())
            facts["case"] = f"{self.case}: {told}"
        facts |= {f"rate {name}": f"{rate:.2f} batches a second" for name, rate in self.rates.items()}
        facts["waiting for the next in order"] = f"{self.costs.ordered * 1000:.2f} ms a batch"
        facts |= {f"queue {name}": _depth(value) for name, value in self.queues.items()}
        if len(self.costs.maps) > 1:
            facts["functions in a row"] = f"{len(self.costs.maps)}, run as one call a sample: no queue between them"
        findings = [Finding("note", line) for line in self.advice]
        if self.verdict:
            findings.insert(0, Finding("note", self.verdict))
        if self.fusing:
            what = f"functions in a row run as one call: {self.fusing:.2f} times the rate of functions apart"
            findings.append(Finding("note", what))
        if self.jumps():
            what = f"batches {', '.join(map(str, self.jumps()[:5]))} were waited for far longer than the rest"
            findings.append(Finding("warning", what, fix="look at the shapes of batches: thalweg doctor"))
        return Report(self.title, facts, findings)

    def __str__(self) -> str:
        """Give plain text."""
        return str(self.report())


def compared(a: Profile, b: Profile) -> Report:
    """Say what changed from one profile to another: seconds of a batch by stage, waiting, rate."""
    facts: dict[str, Any] = {
        "rate": f"{a.rate:.2f} -> {b.rate:.2f} batches a second ({_times(a.rate, b.rate)})",
        "waiting for data": f"{a.waiting_share:.1%} -> {b.waiting_share:.1%}",
    }
    before = {**a.costs.stages, "training": a.costs.train}
    after = {**b.costs.stages, "training": b.costs.train}
    for name in dict.fromkeys([*before, *after]):
        x, y = before.get(name, 0.0), after.get(name, 0.0)
        facts[name] = f"{1000 * x:.2f} -> {1000 * y:.2f} ms a batch ({_times(x, y)})"
    report = Report(f"{a.title} -> {b.title}", facts)
    gain = b.rate / a.rate if a.rate else 1.0
    if gain > 1.03:
        report.findings.append(Finding("note", f"the change helps: {gain:.2f} times the rate"))
    elif gain < 0.97:
        report.findings.append(Finding("warning", f"the change costs: {gain:.2f} times the rate", fix="take it back"))
    else:
        report.findings.append(Finding("note", "the change makes no difference to the rate"))
    return report


def _depth(queue: dict[str, float]) -> str:
    size = f", at most {queue['bytes'] / 1e6:,.1f} MB" if queue["bytes"] else ""
    return f"{queue['mean']:.1f} on average, at most {queue['most']:.0f}{size}"


def _times(a: float, b: float) -> str:
    return f"x{b / a:.2f}" if a else "new" if b else "same"
