"""Proves from ledgers that every row was delivered once, over restarts, ranks and topologies.

Decides which entries count (a later leg that resumed at step s supersedes earlier entries from s on) and what a
problem is. Reads ledger files, and a plan where one is given; reads no token.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.core.errors import InputError
from thalweg.feed.ledgerfile import Entry, read_leg
from thalweg.feed.remix import read

MOST = 20  # problems that are spelled out


@dataclass(eq=False)
class Stretch:
    """What ranks handed over between two places: from a start, a resume or a restart on.

    Args:
        key: (leg, number in the leg), in the order of time.
        start: its first step.
        passed: restarts before it: a restarted epoch is read anew on purpose.
        steps: step -> {(rank, micro-batch): entry}.
    """

    key: tuple[int, int]
    start: int
    passed: int
    world: int
    accumulation: int
    fingerprint: str
    head: dict[str, Any] = field(default_factory=dict[str, Any])
    steps: dict[int, dict[tuple[int, int], Entry]] = field(default_factory=lambda: defaultdict(dict))


@dataclass(eq=False)
class Verdict:
    """What a ledger proves.

    Args:
        problems: what is wrong, spelled out; empty is proof.
        legs: starts and continuations.
        steps: steps that count.
        rows: rows that count.
        repeated: rows that came again to fill a step.
        superseded: rows handed over and then rolled back.
        epochs: epoch -> rows that count.
        open_steps: steps at the end that not every rank had written.
        sources: with a feed: source -> pass over it -> (samples delivered, samples of a pass).
    """

    problems: list[str] = field(default_factory=list[str])
    legs: int = 0
    steps: int = 0
    rows: int = 0
    repeated: int = 0
    superseded: int = 0
    epochs: dict[int, int] = field(default_factory=dict[int, int])
    open_steps: int = 0
    sources: dict[str, dict[int, tuple[int, int]]] = field(default_factory=dict[str, dict[int, tuple[int, int]]])

    @property
    def ok(self) -> bool:
        """Say whether nothing is wrong."""
        return not self.problems

    def text(self, *, compared: bool) -> str:
        """Write for a human; `compared`: ids were compared with the plan of a feed."""
        lines = [f"{self.rows:,} rows of {self.steps:,} steps in {self.legs:,} legs"]
        lines += [f"  epoch {epoch}: {rows:,} rows" for epoch, rows in sorted(self.epochs.items())]
        for n, words in (
            (self.superseded, "rows handed over and then rolled back, not counted"),
            (self.repeated, "rows came again to fill a step, not counted"),
            (self.open_steps, "steps at the end that not every rank had written, not counted"),
        ):
            lines += [f"  {n:,} {words}"] * bool(n)
        lines += _by_source(self.sources)
        lines += [f"problem: {p}" for p in self.problems]
        if self.ok:
            more = (
                "and held what the plan says" if compared else "name the feed as file.py:feed to compare with its plan"
            )
            lines.append(f"each row counts exactly once ({more})")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Write as JSON-like data."""
        return {"ok": self.ok, **{k: getattr(self, k) for k in self.__dataclass_fields__}}


def _by_source(counts: Mapping[str, Mapping[int, tuple[int, int]]]) -> list[str]:
    lines = [
        f"  source {name}: " + ", ".join(f"pass {p} {got:,} of {n:,}" for p, (got, n) in sorted(passes.items()))
        for name, passes in list(counts.items())[:MOST]
    ]
    return lines + [f"  and {len(counts) - MOST:,} more sources"] * (len(counts) > MOST)


def stretches(folder: Path) -> list[Stretch]:
    """Read all files of a ledger.

    Raises:
        InputError: there is none.
    """
    files = sorted(folder.glob("*.ledger"))
    if not files:
        raise InputError(f"no ledger in {folder}", fix="give the folder that Loader(ledger=...) was given")
    found: dict[tuple[int, int], Stretch] = {}
    for path in files:
        leg, entries = read_leg(path)
        number, passed, start = 0, 0, int(leg.get("step", 0))
        for entry in entries:
            if isinstance(entry, dict):
                if entry["event"] == "closed":
                    continue
                number, start = number + 1, int(entry["step"])
                passed += entry["event"] == "restarted"
                continue
            key = (int(leg["leg"]), number)
            if key not in found:
                found[key] = Stretch(
                    key, start, passed, int(leg["world"]), int(leg["accumulation"]), str(leg.get("fingerprint")), leg
                )
            found[key].steps[entry.step][int(leg["rank"]), entry.micro] = entry
    return [found[k] for k in sorted(found)]


def verify_ledger(folder: str | Path, feed: Any = None, seed: int | None = None) -> Verdict:
    """Prove that each row counts once, and say where not.

    Args:
        folder: of the ledger.
        feed: the feed that was read: the digests of delivered ids are then compared with the plan too.
        seed: the loader's; None: as the ledger says.

    Returns:
        A verdict; `ok` where ranks, legs and (with a feed) the plan agree.
    """
    parts, out = stretches(Path(folder)), Verdict()
    out.legs = len({s.key[0] for s in parts})
    prints = {s.fingerprint for s in parts}
    changed = {c.before for s in parts for c in read(s.head.get("changes"))}  # weights that changed at a checkpoint
    if len(prints - changed) > 1:
        out.problems.append(f"legs of {len(prints)} different feeds lie in one folder")
    counted = counting(parts)
    every = sum(_rows(entries.values()) for part in parts for entries in part.steps.values())
    out.superseded = every - sum(_rows(part.steps[s].values()) for part, steps in counted for s in steps)
    table = _Table()
    for part, steps in counted:
        last = part is parts[-1]
        for step in steps:
            entries = part.steps[step]
            missing = part.world * part.accumulation - len(entries)
            if missing and last and step > _complete(part):
                out.open_steps += 1
                continue
            if missing:
                out.problems.append(
                    f"step {step} of leg {part.key[0]}: {missing} of {part.world} ranks' entries are missing"
                )
            out.steps += 1
            table.add(part, entries.values())
    _gaps([s for _, steps in counted for s in steps], out)
    table.check(out)
    _same_rows(parts, out)
    if feed is not None:
        _against_plan(table, feed, parts[-1].head if parts else {}, seed, out)
    out.problems = out.problems[:MOST]
    return out


def counting(parts: list[Stretch]) -> list[tuple[Stretch, list[int]]]:
    """Give the steps of each stretch that count: those that no later one began again."""
    cut = 1 << 62
    counted: list[tuple[Stretch, list[int]]] = []
    for part in reversed(parts):
        counted.append((part, sorted(s for s in part.steps if s < cut)))
        cut = min(cut, part.start)
    counted.reverse()
    return counted


def _rows(entries: Iterable[Entry]) -> int:
    return sum(len(e.digests) for e in entries)


def _complete(part: Stretch) -> int:
    """Give the last step that all ranks wrote; what comes after it was cut off by the end of the job."""
    whole = [s for s, e in part.steps.items() if len(e) == part.world * part.accumulation]
    return max(whole, default=-1)


def _gaps(steps: list[int], out: Verdict) -> None:
    there = np.unique(np.array(steps, np.int64))
    jumps = np.flatnonzero(np.diff(there) > 1)
    for j in jumps[:MOST].tolist():
        out.problems.append(f"steps {there[j] + 1} to {there[j + 1] - 1} are in no leg")


class _Table:
    """Rows that count: (pass, epoch, sub-stream, index) and digest; a plan has one sub-stream, number 0."""

    def __init__(self) -> None:
        self.keys: list[NDArray[np.int64]] = []
        self.digests: list[NDArray[np.uint64]] = []
        self.repeated = 0

    def add(self, part: Stretch, entries: Iterable[Entry]) -> None:
        for entry in entries:
            at = 0
            for run in entry.runs:
                if run.repeated:
                    self.repeated += run.count
                else:
                    rows = np.empty((run.count, 4), np.int64)
                    rows[:, 0], rows[:, 1], rows[:, 2] = part.passed, run.epoch, run.sub
                    rows[:, 3] = np.arange(run.index, run.index + run.count)
                    self.keys.append(rows)
                    self.digests.append(entry.digests[at : at + run.count])
                at += run.count

    def whole(self) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
        if not self.keys:
            return np.empty((0, 4), np.int64), np.empty(0, np.uint64)
        return np.concatenate(self.keys), np.concatenate(self.digests)

    def check(self, out: Verdict) -> None:
        """Find rows that count twice, and rows that were left out between others."""
        keys, _ = self.whole()
        out.rows, out.repeated = len(keys), self.repeated
        unique, counts = np.unique(keys, axis=0, return_counts=True)
        for passed, epoch, part, index in unique[counts > 1][:MOST].tolist():
            after = f" after restart {passed}" * bool(passed)
            out.problems.append(f"row {index} of epoch {epoch}{_of(part)} was delivered twice{after}")
        for passed, epoch, part in np.unique(unique[:, :3], axis=0).tolist():
            mine = unique[(unique[:, :3] == (passed, epoch, part)).all(axis=1), 3]
            out.epochs[epoch] = out.epochs.get(epoch, 0) + len(mine)
            gaps = np.flatnonzero(np.diff(mine) != 1)
            for g in gaps[:MOST].tolist():
                lost = f"rows {mine[g] + 1} to {mine[g + 1] - 1} of epoch {epoch}{_of(part)}"
                out.problems.append(f"{lost} were not delivered")


def _of(part: int) -> str:
    return f", sub-stream {part}," if part else ""


def _same_rows(parts: list[Stretch], out: Verdict) -> None:
    """Compare the digests of a row wherever it was delivered, rolled-back steps and restarts included."""
    for of_one in sorted({part.fingerprint for part in parts}):  # other weights, other rows behind the change
        _same_rows_of([part for part in parts if part.fingerprint == of_one], out)


def _same_rows_of(parts: list[Stretch], out: Verdict) -> None:
    table = _Table()
    for part in parts:
        for entries in part.steps.values():
            table.add(part, entries.values())
    keys, digests = table.whole()
    order = np.lexsort((keys[:, 3], keys[:, 2], keys[:, 1]))
    keys, digests = keys[order], digests[order]
    same = (keys[1:, 1:] == keys[:-1, 1:]).all(axis=1)
    for i in np.flatnonzero(same & (digests[1:] != digests[:-1]))[:MOST].tolist():
        out.problems.append(
            f"row {keys[i, 3]} of epoch {keys[i, 1]}{_of(int(keys[i, 2]))} held other samples in another leg or rank"
        )


def _against_plan(table: _Table, feed: Any, head: dict[str, Any], seed: int | None, out: Verdict) -> None:
    """Compare what was delivered with what the plan says, row by row."""
    from thalweg.feed.identity import parts_in, parts_of  # noqa: PLC0415
    from thalweg.feed.rowsof import Ask, planned_digests  # noqa: PLC0415  (plans only where a feed is given)
    from thalweg.feed.sourcepasses import SourcePasses  # noqa: PLC0415

    if "shards" in head:
        raise InputError("a stream has no plan to compare with", where="verify", fix="leave the feed out")
    keys, digests = table.whole()
    ask = Ask.of(head, seed)
    compiled = ask.compiled(feed)
    mine = parts_of(compiled)
    told = parts_in(head.get("parts", ""))
    other = [k for k, v in told.items() if k not in {"map", "ramp"} and mine.get(k) != v]
    if other and not head.get("changes"):
        out.problems.append(
            f"the ledger is of another feed than the one that is named: they differ in {', '.join(other)}"
        )
        return
    passes = SourcePasses(compiled, ask.micros(compiled).order)
    for epoch in np.unique(keys[:, 1]).tolist():
        mine = keys[:, 1] == epoch
        passes.add(epoch, keys[mine, 3])
        wrong = planned_digests(feed, ask, epoch, keys[mine, 3]) != digests[mine]
        for index in np.sort(keys[mine, 3][wrong])[:MOST].tolist():
            out.problems.append(f"row {index} of epoch {epoch} held other samples than the plan says (or one failed)")
    out.sources = passes.counts()
    out.problems += [f"sample {i} of source {s} came twice in pass {p}" for s, p, i in passes.twice()]
