"""A logging directory on a POSIX file system: the run's interface over links and renames.

Decides where logs and notes of progress lie. The order of acts is in `commit`, the directories are in `ledger`.
"""

from __future__ import annotations

import logging
import os
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from thalweg.run import commit as acts
from thalweg.run import ledger as places
from thalweg.run.ledger import Ledger, remove
from thalweg.run.logging_dir import Attempt, LoggingDir, Made, Run, ranks_in
from thalweg.run.objects import is_far
from thalweg.run.uploads import Uploads
from thalweg.store.claim import create_once, fsync_dir

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

log = logging.getLogger("thalweg.run")


@dataclass(frozen=True)
class PosixRun(Run):
    """A generation that is kept in directories.

    Args:
        ledger: the directories.
        uploads: output folders that are elsewhere.
    """

    ledger: Ledger
    uploads: Uploads = field(default_factory=Uploads)

    @property
    def generation(self) -> int:  # type: ignore[override]
        """Number from 0."""
        return self.ledger.generation

    @property
    def record(self) -> dict[str, Any]:  # type: ignore[override]
        """What the generation is."""
        return self.ledger.record

    def begin(self, rank: int) -> Attempt:
        """Start an attempt.

        Raises:
            RunError: a newer generation has moved this one away.
        """
        return self.ledger.begin(rank)

    def stage(self, attempt: Attempt, number: int, final: str) -> str:
        """Make a staging directory on the file system of the final folder; for a remote one, in the attempt."""
        if final in self.record.get("outside", ()):
            home = self.ledger.stage_root(final) / attempt.path.name
            home.mkdir()
            return str(home)
        stage = attempt.path / f"o{number}"
        stage.mkdir()
        fsync_dir(attempt.path)
        return str(stage)

    def seal(self, attempt: Attempt, made: Made) -> None:
        """Sync all files and write the record."""
        acts.record(attempt, made, self.uploads.send(made, attempt, self.generation))

    def commit(self, attempt: Attempt) -> bool:
        """Link the record."""
        return acts.commit(self.ledger, attempt)

    def publish(self, rank: int) -> None:
        """Rename files into their places, complete uploads, mark."""
        acts.publish(self.ledger, rank, self.uploads)

    def abandon(self, attempt: Attempt) -> None:
        """End uploads and remove directories."""
        self.uploads.end_noted(attempt.path)
        for place in attempt.places:
            remove(place)

    def sweep(self) -> list[int]:
        """Publish what is committed; remove what attempts of marked ranks have left, uploads included."""
        done = acts.sweep(self.ledger, self.uploads)
        self.tidy(self.marked())
        return done

    def tidy(self, marked: set[int]) -> None:
        """End uploads that are left."""
        self.uploads.tidy(list(self.uploads.folders), marked, self.ledger.commit_of)

    def marked(self) -> set[int]:
        """List the ranks that are complete."""
        return self.ledger.marked()

    def committed(self) -> set[int]:
        """List the ranks whose outcome is decided."""
        return self.ledger.committed()

    def begun(self) -> set[int]:
        """List the ranks that have attempts."""
        return set(self.ledger.all_attempts())


@dataclass(frozen=True)
class PosixDir(LoggingDir):
    """A logging directory on a file system that all processes of the run see.

    Args:
        root: its path.
    """

    root: Path

    @property
    def path(self) -> str:  # type: ignore[override]
        """Its path."""
        return str(self.root)

    def newest(self) -> tuple[int, dict[str, Any]] | None:
        """Read the newest generation."""
        return places.newest(self.root)

    def start(self, generation: int, record: dict[str, Any], folders: Mapping[str, Any]) -> Run:
        """Begin a generation."""
        return self._settled(places.start(self.root, generation, record), folders)

    def join(self, generation: int, record: dict[str, Any], folders: Mapping[str, Any]) -> Run:
        """Join a generation."""
        ledger = Ledger(self.root, generation, record)
        places.settle(ledger)
        return self._settled(ledger, folders)

    def _settled(self, ledger: Ledger, folders: Mapping[str, Any]) -> Run:
        """Take away what older generations have in remote folders."""
        run = PosixRun(ledger, Uploads(folders))
        for g in range(ledger.generation):
            done = self.root / f"old/g{g}/erased"
            if folders and not done.exists():
                for old in ledger.commits_of(g):
                    run.uploads.erase(old.get("far", []))
                for attempt in (self.root / f"old/g{g}/attempts").glob("[0-9]*"):
                    run.uploads.end_noted(attempt)
                create_once(done, b"")
        return run

    def look_at(self, generation: int, record: dict[str, Any]) -> Run:
        """Give a generation to read from."""
        return PosixRun(Ledger(self.root, generation, record))

    def facts(self, outputs: Sequence[str], folders: Mapping[str, Any]) -> dict[str, Any]:
        """Name the outputs on other file systems; say whether all are empty."""
        self.root.mkdir(parents=True, exist_ok=True)
        device = self.root.stat().st_dev
        near = [p for p in outputs if not is_far(p)]
        far = Uploads(folders)
        fresh = all(not any(_visible(p)) for p in near) and all(map(far.fresh, filter(is_far, outputs)))
        return {"outside": [p for p in near if _device(p) != device], "fresh_outputs": fresh}

    def foreign_marks(self) -> list[str]:
        """List marks of another program."""
        folder = self.root / "completions"
        return sorted(p.name for p in folder.glob("*")) if folder.is_dir() else []

    def take_over(self) -> None:
        """Give the directories of another program their number."""
        if not (self.root / "completions" / ".generation").exists():
            for kind in ("completions", "stats"):
                (self.root / kind).mkdir(exist_ok=True)
                (self.root / kind / ".generation").write_text("0")

    def marked(self) -> set[int]:
        """List the complete ranks."""
        folder = self.root / "completions"
        return ranks_in(p.name for p in folder.iterdir()) if folder.is_dir() else set()

    def stats(self) -> Iterator[Any]:
        """Read the statistics of complete ranks."""
        folder = self.root / "stats"
        for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
            yield msgspec.json.decode(path.read_bytes())

    def progress(self) -> tuple[int, int]:
        """Add up what complete ranks have read."""
        documents = size = 0
        for data in self.stats():
            read = data.get("read", [0, 0]) if isinstance(data, dict) else [0, 0]
            documents, size = documents + read[0], size + read[1]
        return documents, size

    def write(self, name: str, data: bytes, *, private: bool = False) -> None:
        """Write beside, then rename."""
        target = self.root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_name(f".{target.name}.{os.getpid()}")
        fresh.unlink(missing_ok=True)  # one that is left of a killed process keeps its mode
        with open(fresh, "wb", opener=_for_me if private else None) as file:
            file.write(data)
        with suppress(FileNotFoundError):
            fresh.replace(target)
        fsync_dir(target.parent)

    def read(self, name: str) -> bytes | None:
        """Read a file."""
        try:
            return (self.root / name).read_bytes()
        except FileNotFoundError:
            return None

    @contextmanager
    def log(self, rank: int) -> Generator[Path]:
        """Give the log itself: lines appear at once."""
        folder = self.root / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        yield folder / f"task_{rank:05d}.log"

    def note(self, rank: int, documents: int, size: int) -> None:
        """Write a small file, whole."""
        live = self.root / "live" / f"{rank:05d}"
        try:
            live.parent.mkdir(exist_ok=True)
            fresh = live.with_name(f".{live.name}.{os.getpid()}")
            fresh.write_bytes(msgspec.json.encode({"documents": documents, "bytes": size, "time": time.time()}))
            fresh.replace(live)
        except OSError:
            log.debug("progress could not be noted", exc_info=True)

    def ended(self, rank: int, failure: str | None) -> None:
        """Forget progress; why a rank failed is in its log."""
        del failure
        (self.root / "live" / f"{rank:05d}").unlink(missing_ok=True)

    def heard(self, ranks: set[int]) -> dict[int, tuple[int, int, float]]:
        """Read the notes."""
        found: dict[int, tuple[int, int, float]] = {}
        live, now = self.root / "live", time.time()
        for path in live.iterdir() if live.is_dir() else ():
            if path.name.isdigit() and int(path.name) in ranks:
                try:
                    beat = msgspec.json.decode(path.read_bytes())
                except (OSError, msgspec.DecodeError):
                    continue
                found[int(path.name)] = (beat["documents"], beat["bytes"], max(0.0, now - beat["time"]))
        return found

    def failed(self, marked: set[int]) -> list[int]:
        """List the ranks whose last attempt wrote an error into its log."""
        found: list[int] = []
        for path in (self.root / "logs").glob("task_*.log"):
            rank = int(path.stem.partition("_")[2])
            if rank not in marked and b" ERROR " in _tail(path):
                found.append(rank)
        return sorted(found)

    def log_text(self, rank: int) -> str | None:
        """Read a log."""
        path = self.root / "logs" / f"task_{rank:05d}.log"
        return path.read_text("utf-8", "replace") if path.exists() else None


def _tail(path: Path, size: int = 1 << 16) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - size))
        text = file.read()
    return text[text.rfind(b" begins\n") + 1 :]


def _for_me(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _visible(path: str) -> list[str]:
    return [n for n in os.listdir(path) if not n.startswith(".")] if os.path.isdir(path) else []  # noqa: PTH112, PTH208


def _device(path: str) -> int:
    place = Path(path)
    while not place.exists():
        place = place.parent
    return place.stat().st_dev
