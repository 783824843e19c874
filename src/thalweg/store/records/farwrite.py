"""Writing a record set behind a URL: on this machine first, then copied, the manifest last and exclusively.

Decides what is copied when, what follows an append of somebody else, and what an overwrite removes. Knows no protocol.
"""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from thalweg.core.errors import RecordsError
from thalweg.store.records import place
from thalweg.store.records.far import NOTE, FarFiles
from thalweg.store.records.farsweep import STAGE, Writing, sweep, sweep_stages
from thalweg.store.records.generation import after
from thalweg.store.records.manifest import File, Manifest, pack
from thalweg.store.records.opened import Opened, Source
from thalweg.store.records.pieces import side_by_side
from thalweg.store.records.reread import Here
from thalweg.store.records.writer import RecordsWriter
from thalweg.store.remote import Remote


def start(url: str, storage_options: Mapping[str, Any], *, changes: bool) -> tuple[FarFiles, Manifest | None]:
    """Find what is behind a URL before something is written there: the newest manifest, None where there is no set.

    Raises:
        RecordsError: there is a set, and it is not to change.
    """
    # Rows that are read again for the fingerprint are few: they are asked for by ranges, and nothing is kept.
    home = FarFiles(Source(url, io="pread", storage_options=dict(storage_options)))
    sweep(home.remote)
    sweep_stages()
    try:
        base = home.manifest(home.newest(fresh=True))
    except FileNotFoundError:
        return home, None
    if not changes:
        raise RecordsError("the path is in use", where=url, fix="append=True, overwrite=True or another URL")
    return home, base


class FarWriter(RecordsWriter):
    """Writes one generation of a set behind a URL.

    Args:
        home: the set there.
        more: as for RecordsWriter.
    """

    def __init__(self, home: FarFiles, **more: Any) -> None:
        self._home = home
        self._stage = Path(tempfile.mkdtemp(prefix=STAGE))
        super().__init__(self._stage, **more)

    def _publish(self, own: Manifest) -> Manifest:
        writing = Writing(self._home.remote, self.prefix)
        try:
            whole, base = self._copy(own, writing)
        except BaseException:
            writing.give_up()
            raise
        self._home.remote.write_bytes(NOTE, str(whole.generation).encode())
        self._home.forget()
        writing.end()
        if self._replace and base is not None:
            self._remove(base, whole)
        return whole

    def _copy(self, own: Manifest, writing: Writing) -> tuple[Manifest, Manifest | None]:
        """Copy the files, and let the manifest appear; gives it, and the one before it."""
        remote = self._home.remote
        files, base = Both(self._stage, self._home), self._base
        copied: set[str] = set()
        writing.say()
        rejected = f"{self.prefix}.quarantine.jsonl"
        if (self._stage / rejected).exists():
            copy_files(remote, self._stage, [rejected], writing)
        while True:
            whole = after(base, own, files, self.prefix, replace=self._replace, sync=False)
            mine = sorted(n for n in place.files_of(whole) if n not in copied and (self._stage / n).exists())
            copy_files(remote, self._stage, mine, writing)
            copied |= {n for n in mine if n in place.files_of(own)}  # facts of all rows may change yet
            writing.settle()
            if remote.create(place.manifest_path(Path(), whole.generation).name, pack(whole)):
                return whole, base
            base = self._home.manifest(self._home.newest(fresh=True))  # somebody was faster: our rows follow

    def _remove(self, base: Manifest, whole: Manifest) -> None:
        """Remove the generations that were replaced, the oldest first."""
        remote = self._home.remote
        for number in range(base.replaces, base.generation + 1):
            try:
                old = self._home.manifest(number)
            except FileNotFoundError:
                continue
            gone = (place.files_of(old) | place.rejected_of(old)) - place.files_of(whole) - place.rejected_of(whole)
            list(side_by_side(remote.remove, sorted(gone)))
            remote.remove(place.manifest_path(Path(), number).name)

    def close(self) -> None:
        """Finish and copy. Twice is fine."""
        try:
            super().close()
        finally:
            shutil.rmtree(self._stage, ignore_errors=True)

    def abandon(self) -> None:
        """Throw away what was written."""
        super().abandon()
        shutil.rmtree(self._stage, ignore_errors=True)


def copy_files(remote: Remote, stage: Path, names: Sequence[str], writing: Writing) -> None:
    """Copy files behind the URL, several at once."""

    def copy(name: str) -> None:
        remote.write(name, stage / name)
        writing.say()

    list(side_by_side(copy, names))


class Both(Here):
    """New files on this machine, and those of the set behind the URL, fetched when they are read."""

    def __init__(self, folder: Path, home: FarFiles) -> None:
        super().__init__(folder)
        self._home = home

    def path(self, file: File) -> Path:
        """Give the path of a file, fetching it if it is not here."""
        here = self.folder / file.name
        return here if here.exists() else self._home.file(file)

    def open(self, manifest: Manifest) -> Opened:
        """Open what a manifest names, without its facts."""
        names = place.files_of(manifest)
        if all((self.folder / n).exists() for n in names):
            return super().open(manifest)
        return self._home.open(manifest)
