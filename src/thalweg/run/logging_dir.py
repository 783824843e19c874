"""What executors ask of a logging directory, wherever it lies: one interface, two implementations.

Decides the words: a logging directory holds generations of one run; a run knows attempts, commits and marks. How they
are kept is the business of `posix` (links and renames) and `object_store` (conditional puts, uncompleted uploads).
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thalweg.steps.folder import Folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

KINDS = ("completions", "commits", "stats")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try of one rank: a local directory that no other process ever uses.

    Args:
        rank: of the run.
        id: 128 random bits.
        path: directory of its outputs and record.
        outside: more directories of it, on other file systems; they are there when they are used.
    """

    rank: int
    id: str
    path: Path
    outside: tuple[Path, ...] = ()

    @property
    def places(self) -> list[Path]:
        """All directories of this try."""
        return [self.path, *(p for p in self.outside if p.is_dir())]


@dataclass(frozen=True, slots=True)
class Made:
    """What an attempt has made.

    Args:
        stages: final folder -> local staging directory.
        sums: (final folder, name) -> (bytes, checksum) where they were taken while writing.
        stats: the rank's statistics.
        patterns: final folder -> patterns of all names that this rank may ever write there.
        kept: final folders whose names carry the generation by themselves.
    """

    stages: Mapping[str, str]
    sums: Mapping[tuple[str, str], tuple[int, str | None]] = field(default_factory=dict[Any, Any])
    stats: Mapping[str, Any] = field(default_factory=dict[str, Any])
    patterns: Mapping[str, list[str]] = field(default_factory=dict[str, Any])
    kept: frozenset[str] = frozenset()


class Run(ABC):
    """One generation of a run, as a rank's process and a launch see it. Pickles."""

    generation: int
    record: dict[str, Any]

    @abstractmethod
    def begin(self, rank: int) -> Attempt:
        """Start an attempt under a fresh random name."""

    @abstractmethod
    def stage(self, attempt: Attempt, number: int, final: str) -> str:
        """Make the local directory in which an attempt writes what belongs into a final folder."""

    @abstractmethod
    def seal(self, attempt: Attempt, made: Made) -> None:
        """Make everything that an attempt has made durable, and write its record; nothing is visible yet."""

    @abstractmethod
    def commit(self, attempt: Attempt) -> bool:
        """Let a sealed attempt count, if no other of its rank does; True where it does."""

    @abstractmethod
    def publish(self, rank: int) -> None:
        """Let the files of a rank's commit appear, and mark the rank; any process may, at any time."""

    @abstractmethod
    def abandon(self, attempt: Attempt) -> None:
        """Remove what an attempt that does not count has made."""

    @abstractmethod
    def sweep(self) -> list[int]:
        """Publish commits without a mark and remove what attempts of marked ranks left; give the ranks published."""

    @abstractmethod
    def tidy(self, marked: set[int]) -> None:
        """End uploads that killed attempts of complete ranks have left. One request a remote output folder."""

    @abstractmethod
    def marked(self) -> set[int]:
        """List the ranks that are complete."""

    @abstractmethod
    def committed(self) -> set[int]:
        """List the ranks whose outcome is decided."""

    def unpublished(self, marked: set[int]) -> set[int]:
        """List the ranks that are decided and not complete, as far as that is known at a few requests."""
        return self.committed() - marked

    @abstractmethod
    def begun(self) -> set[int]:
        """List the ranks of which attempts are known to this machine."""


class LoggingDir(ABC):
    """Where a run keeps its record, marks, statistics and logs. Pickles."""

    path: str
    fresh = 30.0  # seconds after which a rank's last note is old

    def __str__(self) -> str:
        """Give the path or URL."""
        return self.path

    @abstractmethod
    def newest(self) -> tuple[int, dict[str, Any]] | None:
        """Read the newest generation's number and record; None where no run has begun."""

    @abstractmethod
    def start(self, generation: int, record: dict[str, Any], folders: Mapping[str, Any]) -> Run:
        """Begin a generation, or join the launch that began it first. `folders`: final path -> options, if remote."""

    @abstractmethod
    def join(self, generation: int, record: dict[str, Any], folders: Mapping[str, Any]) -> Run:
        """Join a generation; an unfinished start of it is finished."""

    @abstractmethod
    def look_at(self, generation: int, record: dict[str, Any]) -> Run:
        """Give a generation to read from."""

    @abstractmethod
    def facts(self, outputs: Sequence[str], folders: Mapping[str, Any]) -> dict[str, Any]:
        """Give what a generation's record says of the places of its outputs."""

    @abstractmethod
    def foreign_marks(self) -> list[str]:
        """List completion marks that lie here without a record of a run."""

    @abstractmethod
    def take_over(self) -> None:
        """Take the marks of another program for those of generation 0."""

    @abstractmethod
    def marked(self) -> set[int]:
        """List the complete ranks of the newest generation, or of another program."""

    @abstractmethod
    def stats(self) -> Iterator[Any]:
        """Read the statistics of complete ranks, in the order of ranks."""

    @abstractmethod
    def progress(self) -> tuple[int, int]:
        """Give (documents, bytes) that complete ranks have read, as far as that is known at a few requests."""

    @abstractmethod
    def write(self, name: str, data: bytes, *, private: bool = False) -> None:
        """Let a whole file appear, whatever was there; `private`: nobody else on this machine may read it."""

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """Read a file; None where there is none."""

    @abstractmethod
    def log(self, rank: int) -> AbstractContextManager[Path]:
        """Give a local path to append a rank's log to; afterwards it lies where `log_place` says."""

    @abstractmethod
    def note(self, rank: int, documents: int, size: int) -> None:
        """Keep how far a rank is. May be dropped when it is called often."""

    @abstractmethod
    def ended(self, rank: int, failure: str | None) -> None:
        """Forget how far a rank is, and keep why it failed."""

    @abstractmethod
    def heard(self, ranks: set[int]) -> dict[int, tuple[int, int, float]]:
        """Give the last notes of ranks: rank -> (documents, bytes, seconds since)."""

    @abstractmethod
    def failed(self, marked: set[int]) -> list[int]:
        """List the ranks whose last attempt failed and that are not complete."""

    @abstractmethod
    def log_text(self, rank: int) -> str | None:
        """Read a rank's log; None where there is none."""

    def log_place(self, rank: int) -> str:
        """Give the place of a rank's log."""
        return f"{self.path}/logs/task_{rank:05d}.log"


def logging_dir_at(like: Any) -> LoggingDir:
    """Open a logging directory.

    Args:
        like: a path, a URL, (URL, options of the fsspec file system), or one that is open.

    Raises:
        ConfigError: neither, or a store on which a run cannot be kept.
    """
    if isinstance(like, LoggingDir):
        return like
    folder: Folder = Folder.of(like)
    if folder.local:
        from thalweg.run.posix import PosixDir  # noqa: PLC0415  (each implementation is loaded where it is used)

        return PosixDir(Path(os.fspath(folder.path)))
    from thalweg.run.object_store import ObjectDir  # noqa: PLC0415

    return ObjectDir(folder.path, folder.options)


def ranks_in(names: Iterator[str]) -> set[int]:
    """Read rank numbers from the names of marks or commits."""
    return {int(name) for name in names if name.isdigit()}
