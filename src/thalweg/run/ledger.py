"""The directories of one run on a POSIX file system: generations, attempts, commits, marks.

Decides which generation a launch belongs to and moves an old one away. A generation's directories know their number,
so that of two launches that start one only one moves anything. Knows no pipeline.

    runs/00000.json          what generation 0 is (exclusive); the newest is the run
    attempts/g0/00007.ID/    one try of rank 7: outputs, `stats`, `mark`, `rec`
    commits/00007            the record of the try that counts
    stats/00007.json         its statistics
    completions/00007        empty: its outputs and statistics are in their places, durably
    old/g0/                  what an abandoned generation left
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import msgspec

from thalweg.core.errors import RunError
from thalweg.run.logging_dir import KINDS, Attempt, ranks_in
from thalweg.store.claim import create_once, fsync_dir, generation_of, make_generation_dir

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Ledger:
    """The directories of one generation.

    Args:
        root: the logging directory.
        generation: number from 0.
        record: content of `runs/GENERATION.json`.
    """

    root: Path
    generation: int
    record: dict[str, Any]

    def dir(self, kind: str) -> Path:
        """Give the directory of marks, commits or statistics."""
        return self.root / kind

    @property
    def attempts(self) -> Path:
        """The directory of this generation's attempts."""
        return self.root / "attempts" / f"g{self.generation}"

    def stage_root(self, final: str) -> Path:
        """Give the directory in which attempts are made for an output folder on another file system."""
        return Path(final) / ".thalweg" / f"{self.record['id']}.g{self.generation}"

    def begin(self, rank: int) -> Attempt:
        """Start an attempt under a fresh random name.

        Raises:
            RunError: a newer generation has moved this one away.
        """
        name = token_hex(16)
        path = self.attempts / f"{rank:05d}.{name}"
        try:
            path.mkdir()
        except FileNotFoundError as error:
            raise fenced(self.root) from error
        outside = tuple(self.stage_root(final) / path.name for final in self.record.get("outside", ()))
        return Attempt(rank, name, path, outside)

    def marked(self) -> set[int]:
        """List the ranks that are complete."""
        return _ranks(self.dir("completions"))

    def committed(self) -> set[int]:
        """List the ranks whose outcome is decided; those not marked still have to be published."""
        return _ranks(self.dir("commits"))

    def commit_of(self, rank: int) -> dict[str, Any] | None:
        """Read the commit of a rank; None where there is none."""
        try:
            data = (self.dir("commits") / f"{rank:05d}").read_bytes()
        except FileNotFoundError:
            return None
        return dict(msgspec.json.decode(data))

    def attempts_of(self, rank: int) -> list[Path]:
        """List what attempts of a rank have left, on all file systems."""
        roots = [self.attempts, *(self.stage_root(f) for f in self.record.get("outside", ()))]
        return [p for root in roots if root.is_dir() for p in root.glob(f"{rank:05d}.*")]

    def all_attempts(self) -> dict[int, list[Path]]:
        """List what attempts of all ranks have left."""
        found: dict[int, list[Path]] = {}
        for root in [self.attempts, *(self.stage_root(f) for f in self.record.get("outside", ()))]:
            for path in root.iterdir() if root.is_dir() else ():
                rank = path.name.partition(".")[0]
                if rank.isdigit():
                    found.setdefault(int(rank), []).append(path)
        return found

    def commits_of(self, generation: int) -> Iterator[dict[str, Any]]:
        """Read all commits of an earlier generation."""
        for path in (self.root / f"old/g{generation}/commits").glob("*"):
            if path.name.isdigit():
                yield dict(msgspec.json.decode(path.read_bytes()))

    def old_commits(self, rank: int) -> list[dict[str, Any]]:
        """Read the commits of a rank in earlier generations; ranks that are no more are shared out among the rest."""
        found: list[dict[str, Any]] = []
        tasks = int(self.record["tasks"])
        for g in range(self.generation):
            before = int(read_record(self.root, g)["tasks"])
            for old in range(rank, max(before, rank + 1), tasks):
                with suppress(FileNotFoundError):
                    data = (self.root / f"old/g{g}/commits/{old:05d}").read_bytes()
                    found.append(dict(msgspec.json.decode(data)))
        return found


def fenced(root: Path) -> RunError:
    """Say that this process has been overtaken."""
    return RunError(
        "another launch has begun this run anew; what this process made does not count",
        where=str(root),
        fix="look at the newer launch: thalweg status",
    )


def _ranks(path: Path) -> set[int]:
    with suppress(FileNotFoundError):
        return ranks_in(p.name for p in path.iterdir())
    return set()


def newest(root: Path) -> tuple[int, dict[str, Any]] | None:
    """Read the newest generation's number and record; None where no run has begun."""
    runs = root / "runs"
    if not runs.is_dir():
        return None
    numbers = [int(p.stem) for p in runs.glob("*.json") if p.stem.isdigit()]
    if not numbers:
        return None
    return max(numbers), read_record(root, max(numbers))


def read_record(root: Path, generation: int) -> dict[str, Any]:
    """Read what a generation is."""
    return dict(msgspec.json.decode((root / "runs" / f"{generation:05d}.json").read_bytes()))


def start(root: Path, generation: int, record: dict[str, Any]) -> Ledger:
    """Begin a generation, or join the launch that began it first.

    Raises:
        RunError: the launch that was faster begins something else.
    """
    (root / "runs").mkdir(parents=True, exist_ok=True)
    record = {"id": token_hex(8), "generation": generation, **record}
    path = root / "runs" / f"{generation:05d}.json"
    if not create_once(path, msgspec.json.encode(record)):
        theirs = dict(msgspec.json.decode(path.read_bytes()))
        if theirs["manifest"] != record["manifest"]:
            raise RunError("another launch began a different run at the same moment", where=str(path), fix="look at it")
        record = theirs
    ledger = Ledger(root, generation, record)
    settle(ledger)
    return ledger


def settle(ledger: Ledger) -> None:
    """Finish what the start of this generation left undone: move older ones away, make the directories.

    Moving the attempts first stops every process of an older generation at once: each of their outside effects has
    one end in a directory whose path is gone.
    """
    root, number = ledger.root, ledger.generation
    if all(generation_of(p) == number for p in [*(root / k for k in KINDS), ledger.attempts]):
        return
    for g in range(number):
        _retire(root / "attempts" / f"g{g}", root / f"old/g{g}/attempts")
        for outside in ledger.record.get("outside", ()):
            for stage in Path(outside).glob(f".thalweg/*.g{g}"):
                _retire(stage, stage.with_name(f"old.{stage.name}"))
    for kind in KINDS:
        found = generation_of(root / kind)
        if found is not None and found < number:
            _retire(root / kind, root / f"old/g{found}/{kind}")
    for path in [*(root / k for k in KINDS), ledger.attempts]:
        make_generation_dir(path, number)
    for outside in ledger.record.get("outside", ()):
        make_generation_dir(ledger.stage_root(outside), number)


def _retire(path: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    with suppress(OSError):  # gone or moved already: the names can exist only once
        path.rename(to)
        fsync_dir(path.parent)


def remove(path: Path) -> None:
    """Remove a directory tree; parts that are gone already are fine."""
    shutil.rmtree(path, ignore_errors=True)
