"""What to change in a loop that waits: decided from seconds a batch, without a clock or a feed.

Decides which stage is slowest, what fits it, and which of three cases of preprocessing against training holds. Source
of the cases: the tuning rules of the asynchronous preprocessing document (preprocessing slower: workers first, then
ahead; alike: ahead between one and two times the workers; training slower: neither).
"""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Case: TypeAlias = Literal["preprocessing is slower", "alike", "training is slower"]
ENOUGH = 0.03  # share of waiting below which nothing is to be gained
ALIKE = 0.25  # how far from 1 the ratio may be to count as alike
COMPUTES, ONE_CPU = 0.7, 1.2  # shares of a CPU from which a function computes, and up to which it is one CPU's work
JITTER = 0.5  # standard deviation over mean of a function's time from which more `ahead` helps


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of one batch by stage, busy wherever they run.

    Args:
        read, plan, collate, transfer: of the loader.
        maps: each function as typed -> seconds.
        train: between batches.
        waited: seconds the loop waited.
        ordered: seconds that what hands over in order waited for the next sample while later ones were done.
        workers: threads or processes of the functions; 0 where they run inline.
        mode: "inline" | "threads" | "processes".
        cpus: usable CPUs.
        jitter: standard deviation over mean of the slowest function's call.
        computing: share of the functions' time in which they computed; None where unknown.
        cores: CPUs that the functions kept busy together; None where unknown.
        cached: functions run once only.
        random: a function draws random numbers, so no cache can stand behind it.
        packed: rows are packed already.
    """

    read: float = 0.0
    plan: float = 0.0
    maps: dict[str, float] = field(default_factory=dict[str, float])
    collate: float = 0.0
    transfer: float = 0.0
    train: float = 0.0
    waited: float = 0.0
    ordered: float = 0.0
    workers: int = 0
    mode: str = "inline"
    cpus: int = 1
    jitter: float = 0.0
    computing: float | None = None
    cores: float | None = None
    cached: bool = False
    random: bool = False
    packed: bool = False

    @property
    def stages(self) -> dict[str, float]:
        """Seconds by stage, functions each."""
        return {
            "read": self.read,
            **self.maps,
            "plan and pack": self.plan,
            "collate": self.collate,
            "transfer": self.transfer,
        }

    @property
    def holding(self) -> bool:
        """Say whether the functions hold the interpreter: they compute, and threads together fill one CPU only."""
        if self.computing is not None and self.computing > COMPUTES:
            return True
        threads = self.mode == "threads" and self.workers > 1
        return threads and self.cores is not None and COMPUTES < self.cores <= ONE_CPU

    @property
    def share(self) -> float:
        """Share of step time spent waiting for data."""
        whole = self.waited + self.transfer + self.train
        return self.waited / whole if whole else 0.0


@dataclass(frozen=True, slots=True)
class Advice:
    """One change: a word for it, why, and what to write."""

    change: str
    why: str
    write: str

    def __str__(self) -> str:
        """One line."""
        return f"{self.change}: {self.why}. Write {self.write}" if self.write else f"{self.change}: {self.why}"


def case_of(preprocess: float, consume: float) -> Case:
    """Say which case holds, from mean seconds a sample."""
    if consume <= 0 or preprocess / consume > 1 + ALIKE:
        return "preprocessing is slower"
    return "alike" if preprocess / consume >= 1 - ALIKE else "training is slower"


def values_of(case: Case, preprocess: float, consume: float, cpus: int) -> dict[str, int]:
    """Give the settings that a case asks for: workers, and items ahead."""
    if case == "training is slower":
        return {"workers": 1, "ahead": 2}
    ratio = preprocess / consume if consume > 0 else float(cpus)
    workers = max(1, min(cpus, -int(-ratio // 1) + (case == "preprocessing is slower")))
    return {"workers": workers, "ahead": 2 * workers if case == "alike" else max(workers, 2 * workers)}


def advise(c: Costs) -> list[Advice]:
    """Say what to change, the likeliest first; where nothing is to be gained, only that."""
    if c.share < ENOUGH:
        return [Advice("you are training-bound, stop", f"only {c.share:.1%} of a step is spent waiting", "")]
    slowest = max(c.stages, key=lambda name: c.stages[name])
    work = sum(c.maps.values())
    out: list[Advice] = []
    if work >= c.read and work >= c.collate + c.plan and c.maps:
        out += _for_functions(c, max(c.maps, key=lambda name: c.maps[name]))
    elif slowest == "read":
        why = f"reading takes {c.read * 1000:.1f} ms a batch"
        out.append(Advice("write records", why, "tw.create_records once, then tw.from_records; or .cache()"))
        out.append(Advice("read ahead", "reading and training take turns", "prefetch=8"))
    elif slowest == "transfer":
        out.append(Advice("copy ahead", "copying to the device takes the time", 'device="cuda" with prefetch=4'))
    else:
        why = f"{slowest} takes {c.stages[slowest] * 1000:.1f} ms a batch"
        fix = "a plain collate" if c.packed else ".pack(...), or a plain collate"
        out.append(Advice("fewer columns and shapes", why, fix))
        out.append(Advice("read ahead", "batches are made while the loop waits", "prefetch=8"))
    return out


def _for_functions(c: Costs, slowest: str) -> list[Advice]:
    work, out = sum(c.maps.values()), list[Advice]()
    share = f"functions take {work * 1000:.1f} ms of a batch, most of it {slowest}"
    if not c.cached and not c.random:
        out.append(Advice("cache", share, ".cache() behind the functions: they run once"))
    python = c.holding
    if c.mode == "threads" and c.workers > 1 and python:
        why = "the functions hold the interpreter, so threads do not help"
        out.append(Advice("processes instead of threads", why, 'map(..., mode="processes")'))
    elif c.mode == "inline" or c.workers < c.cpus or not python:
        more = max(2, min(4 * c.cpus if not python else c.cpus, 2 * max(c.workers, 1)))
        mode = "processes" if python else "threads"
        out.append(Advice("more workers", share, f'map(..., workers={more}, mode="{mode}")'))
    if c.jitter > JITTER and c.workers and work / max(c.workers, 1) < c.train:
        why = f"the time of a call varies by {c.jitter:.0%} of its mean"
        out.insert(0, Advice("more ahead", why, "prefetch=8"))
    if len(c.maps) > 2 and max(c.maps.values()) < 0.5 * work:
        out.append(Advice("merge maps", f"{len(c.maps)} functions in a row", "one function that does all"))
    return out
