"""A logging directory on an object store: commits are conditional puts, outputs are uploads completed at commit.

Decides the order of requests, which makes a crash between any two of them harmless. Keys of commits, statistics,
marks and outputs carry their generation, so that an act that comes late touches nothing of a newer one. Nothing is
copied, and nothing is told from times.
"""

from __future__ import annotations

import getpass
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import msgspec

from thalweg.core.errors import ConfigError, RunError
from thalweg.run.ledger import remove
from thalweg.run.logging_dir import Attempt, LoggingDir, Made, Run, ranks_in
from thalweg.run.objects import Objects, is_far
from thalweg.run.uploads import NOTED, Uploads

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

NOTES = 60.0  # seconds between notes of progress: each is a request
VOID = "void"


@dataclass
class ObjectRun(Run):
    """A generation that is kept in objects.

    Args:
        store: the logging directory.
        generation: number from 0.
        record: what it is.
        uploads: output folders.
    """

    store: Objects
    generation: int
    record: dict[str, Any]
    uploads: Uploads = field(default_factory=Uploads)
    _sealed: dict[int, dict[str, Any]] = field(default_factory=dict[int, "dict[str, Any]"], repr=False)

    def key(self, kind: str, rank: int | str, *, generation: int | None = None) -> str:
        """Name the commit, statistics or mark of a rank."""
        return key_of(kind, self.generation if generation is None else generation, rank)

    @property
    def stages(self) -> Path:
        """Local directory in which this machine's attempts are made."""
        name = blake2b(f"{self.store.url} {self.record['id']}".encode(), digest_size=8).hexdigest()
        return Path(tempfile.gettempdir()) / f"thalweg-{getpass.getuser()}" / f"{name}.g{self.generation}"

    def begin(self, rank: int) -> Attempt:
        """Start an attempt on this machine's disk. No request: what counts is settled when it commits."""
        name = token_hex(16)
        path = self.stages / f"{rank:05d}.{name}"
        path.mkdir(parents=True)
        return Attempt(rank, name, path)

    def stage(self, attempt: Attempt, number: int, final: str) -> str:
        """Make a staging directory."""
        del final
        stage = attempt.path / f"o{number}"
        stage.mkdir()
        return str(stage)

    def seal(self, attempt: Attempt, made: Made) -> None:
        """Send all files as uploads; the record is kept until the commit."""
        far = self.uploads.send(made, attempt, self.generation)
        entry = {"rank": attempt.rank, "attempt": attempt.id, "files": [], "far": far, "stats": dict(made.stats)}
        self._sealed[attempt.rank] = entry | {"patterns": dict(made.patterns)}

    def commit(self, attempt: Attempt) -> bool:
        """Put the record unless there is one; after any unclear answer, read back what is there.

        Raises:
            RunError: a newer generation has begun.
        """
        name, entry = self.key("commits", attempt.rank), self._sealed[attempt.rank]
        unclear: OSError | None = None
        try:
            if self.store.create(name, msgspec.json.encode(entry)):
                return True
        except OSError as error:
            unclear = error
        theirs = self._commit(attempt.rank)
        if theirs is None:
            raise RunError(f"the commit did not arrive: {unclear}", where=f"{self.store.url}/{name}", fix="run again")
        if theirs["attempt"] == VOID:
            raise self._fenced()
        return bool(theirs["attempt"] == attempt.id)

    def _commit(self, rank: int, generation: int | None = None) -> dict[str, Any] | None:
        data = self.store.get(self.key("commits", rank, generation=generation))
        return None if data is None else dict(msgspec.json.decode(data))

    def commit_of(self, rank: int) -> dict[str, Any] | None:
        """Read the commit of a rank; None where there is none that counts."""
        found = self._commit(rank)
        return None if found is None or found["attempt"] == VOID else found

    def publish(self, rank: int) -> None:
        """Complete the uploads of the commit, remove stale objects, put the statistics, then the mark.

        Raises:
            RunError: a newer generation has ended an upload.
        """
        entry = self._sealed.get(rank) or self.commit_of(rank)  # own, where it has won
        if entry is None:
            raise self._fenced()
        if self.uploads.complete(entry["far"], entry["attempt"]) is not None:
            raise self._fenced()
        if not self.record.get("fresh_outputs", False):
            self.uploads.remove_stale(entry["patterns"], entry["far"])
        self.store.put(self.key("stats", f"{rank:05d}.json"), msgspec.json.encode(entry["stats"]))
        self.store.put(self.key("completions", rank), b"")
        for path in self.stages.glob(f"{rank:05d}.{entry['attempt']}/{NOTED}"):
            path.unlink(missing_ok=True)  # all complete
        self._collect(rank)

    def _collect(self, rank: int) -> None:
        self._sealed.pop(rank, None)
        for path in self.stages.glob(f"{rank:05d}.*") if self.stages.is_dir() else ():
            self.uploads.end_noted(path)
            remove(path)

    def abandon(self, attempt: Attempt) -> None:
        """End the uploads of an attempt and remove its directory."""
        entry = self._sealed.get(attempt.rank)
        if entry is not None and entry["attempt"] == attempt.id:
            del self._sealed[attempt.rank]
        self.uploads.end_noted(attempt.path)
        remove(attempt.path)

    def sweep(self) -> list[int]:
        """Publish what is committed and not marked; end uploads that killed attempts of marked ranks have left."""
        done = sorted(self.committed() - self.marked())
        for rank in done:
            self.publish(rank)
        marked = self.marked()
        for path in self.stages.glob("*.*") if self.stages.is_dir() else ():
            if int(path.name.partition(".")[0]) in marked:
                self.uploads.end_noted(path)
                remove(path)
        self.tidy(marked)
        return done

    def tidy(self, marked: set[int]) -> None:
        """End uploads that are left."""
        self.uploads.tidy(list(self.uploads.folders), marked, self.commit_of)

    def marked(self) -> set[int]:
        """List the ranks that are complete. One request a thousand."""
        return self._listed("completions", self.generation)

    def committed(self) -> set[int]:
        """List the ranks whose outcome is decided. One request a thousand."""
        return self._listed("commits", self.generation)

    def unpublished(self, marked: set[int]) -> set[int]:
        """Say nothing while many ranks are complete: the list of commits costs a request a thousand ranks."""
        return self.committed() - marked if int(self.record["tasks"]) <= 1000 else set()

    def begun(self) -> set[int]:
        """List the ranks whose attempts are on this machine."""
        return {int(p.name.partition(".")[0]) for p in self.stages.glob("*.*")} if self.stages.is_dir() else set()

    def _listed(self, kind: str, generation: int) -> set[int]:
        return listed(self.store, kind, generation)

    def settle(self) -> None:
        """End all older generations: nobody can commit in them, nothing of theirs is or will be among the outputs."""
        for g in range(self.generation):
            if self.store.get(key_of("ended", g, "")) is not None:
                continue
            _, tasks = g, int(self._record_of(g)["tasks"])
            for rank in sorted(set(range(tasks)) - self._listed("commits", g)):
                self.store.create(self.key("commits", rank, generation=g), msgspec.json.encode({"attempt": VOID}))
            for rank in range(tasks):
                old = self._commit(rank, g)
                if old is not None and old["attempt"] != VOID:
                    self.uploads.erase(old["far"])
            self.store.put(key_of("ended", g, ""), b"")

    def _record_of(self, generation: int) -> dict[str, Any]:
        data = self.store.get(f"runs/{generation:05d}.json")
        assert data is not None, "a generation that began has a record"
        return dict(msgspec.json.decode(data))

    def _fenced(self) -> RunError:
        return RunError(
            "another launch has begun this run anew; what this process made does not count",
            where=self.store.url,
            fix="look at the newer launch: thalweg status",
        )


def key_of(kind: str, generation: int, rank: int | str) -> str:
    """Name an object of a generation: generation 0 has no prefix."""
    name = f"{rank:05d}" if isinstance(rank, int) else rank
    return (f"g{generation}/" if generation else "") + f"{kind}/{name}"


def listed(store: Objects, kind: str, generation: int) -> set[int]:
    """List the ranks that have an object of a kind."""
    prefix = key_of(kind, generation, "")
    return ranks_in(name[len(prefix) :] for name, _, _ in store.names(prefix))


@dataclass
class ObjectDir(LoggingDir):
    """A logging directory behind a URL.

    Args:
        path: such as "s3://bucket/logs/a".
        options: of the fsspec file system.
    """

    path: str
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    fresh = 2.5 * NOTES

    def __post_init__(self) -> None:
        self.store = Objects(self.path, self.options)
        self._heard: dict[int, float] = {}  # rank -> when it began or was noted last
        self._noted: set[int] = set()

    def newest(self) -> tuple[int, dict[str, Any]] | None:
        """Read the newest generation. Two requests."""
        found = [name for name, _, _ in self.store.names("runs/")]
        if not found:
            return None
        number = max(int(name[5:-5]) for name in found)
        data = self.store.get(f"runs/{number:05d}.json")
        return None if data is None else (number, dict(msgspec.json.decode(data)))

    def start(self, generation: int, record: dict[str, Any], folders: Mapping[str, Any]) -> Run:
        """Begin a generation; its record is the switch.

        Raises:
            RunError: the launch that was faster begins something else.
        """
        name = f"runs/{generation:05d}.json"
        record = {"id": token_hex(8), "generation": generation, **record}
        with suppress(OSError):  # an unclear answer: what is there now counts
            if self.store.create(name, msgspec.json.encode(record)):
                return self.join(generation, record, folders)
        data = self.store.get(name)
        theirs = {} if data is None else dict(msgspec.json.decode(data))
        if theirs.get("manifest") != record["manifest"]:
            raise RunError(
                "another launch began a different run at the same moment", where=f"{self.path}/{name}", fix="look at it"
            )
        return self.join(generation, theirs, folders)

    def join(self, generation: int, record: dict[str, Any], folders: Mapping[str, Any]) -> Run:
        """Join a generation."""
        run = ObjectRun(self.store, generation, record, Uploads(folders))
        run.settle()
        return run

    def look_at(self, generation: int, record: dict[str, Any]) -> Run:
        """Give a generation to read from."""
        return ObjectRun(self.store, generation, record)

    def facts(self, outputs: Sequence[str], folders: Mapping[str, Any]) -> dict[str, Any]:
        """Say whether all output folders are empty. One request each.

        Raises:
            ConfigError: an output folder is on this machine: nobody else could publish a rank.
        """
        near = [path for path in outputs if not is_far(path)]
        if near:
            raise ConfigError(
                "the logging directory is on an object store and an output folder is not",
                where=near[0],
                fix="put both on the store, or the logging directory on a file system that all processes see",
            )
        return {"outside": [], "fresh_outputs": all(map(Uploads(folders).fresh, outputs))}

    def foreign_marks(self) -> list[str]:
        """List marks of another program."""
        return sorted(name.rpartition("/")[2] for name, _, _ in self.store.names("completions/"))

    def take_over(self) -> None:
        """Nothing is to be done: marks of generation 0 have the same names."""

    def marked(self) -> set[int]:
        """List the complete ranks."""
        run = self.newest()
        return listed(self.store, "completions", 0 if run is None else run[0])

    def stats(self) -> Iterator[Any]:
        """Read the statistics of complete ranks. One request a rank, sixteen at once."""
        run = self.newest()
        prefix = key_of("stats", 0 if run is None else run[0], "")
        names = sorted(name for name, _, _ in self.store.names(prefix))
        with ThreadPoolExecutor(16) as pool:
            for data in pool.map(self.store.get, names):
                if data is not None:
                    yield msgspec.json.decode(data)

    def progress(self) -> tuple[int, int]:
        """Say nothing: adding up would cost a request a rank."""
        return 0, 0

    def write(self, name: str, data: bytes, *, private: bool = False) -> None:
        """Put an object; who may read it is a matter of the bucket."""
        del private
        self.store.put(name, data)

    def read(self, name: str) -> bytes | None:
        """Read an object."""
        return self.store.get(name)

    @contextmanager
    def log(self, rank: int) -> Generator[Path]:
        """Give a local file, which is put when the attempt ends."""
        with tempfile.TemporaryDirectory(prefix="thalweg-log-") as folder:
            path = Path(folder) / "log"
            path.touch()
            try:
                yield path
            finally:
                self.store.put(f"logs/task_{rank:05d}.log", path.read_bytes())

    def note(self, rank: int, documents: int, size: int) -> None:
        """Put a note, at most once a minute."""
        now = time.monotonic()
        if now - self._heard.setdefault(rank, now) >= NOTES:
            self._heard[rank] = now
            self._noted.add(rank)
            with suppress(OSError):
                self.store.put(f"live/{rank:05d}", f"{documents} {size}".encode())

    def ended(self, rank: int, failure: str | None) -> None:
        """Forget progress if it was noted; note a failure."""
        self._heard.pop(rank, None)
        if failure is not None:
            self.store.put(f"failures/{rank:05d}", failure.encode())
        if rank in self._noted:
            self._noted.discard(rank)
            self.store.delete(f"live/{rank:05d}")

    def heard(self, ranks: set[int]) -> dict[int, tuple[int, int, float]]:
        """Say who has left a note, and when. One request a thousand; the notes themselves are not read."""
        if not ranks:
            return {}
        now = time.time()
        found = {name.rpartition("/")[2]: at for name, _, at in self.store.names("live/")}
        return {int(n): (0, 0, max(0.0, now - at)) for n, at in found.items() if n.isdigit() and int(n) in ranks}

    def failed(self, marked: set[int]) -> list[int]:
        """List the ranks whose last failure was noted. One request a thousand."""
        return sorted(ranks_in(name.rpartition("/")[2] for name, _, _ in self.store.names("failures/")) - marked)

    def log_text(self, rank: int) -> str | None:
        """Read a log. One request."""
        data = self.store.get(f"logs/task_{rank:05d}.log")
        return None if data is None else data.decode("utf-8", "replace")
