"""A record set behind a URL: its files come through the node's cache when they are touched.

Opening costs a request for the newest manifest and one that finds no newer; ranks of a node share the answer for a
minute. Decides that and the names in the cache. Knows no protocol.
"""

import json
import shutil
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from xxhash import xxh3_64_hexdigest

from thalweg.core.errors import RecordsError
from thalweg.core.sizes import to_bytes
from thalweg.store.cache import NodeCache
from thalweg.store.lines import default_cache
from thalweg.store.records import place
from thalweg.store.records.manifest import File, Manifest, pack, unpack
from thalweg.store.records.opened import Opened, Source
from thalweg.store.records.writer import RecordsWriter
from thalweg.store.remote import Remote

FRESH = 60.0  # seconds for which the newest generation of a set is not asked for again on this node


class FarOpened(Opened):
    """One generation of a set behind a URL."""

    def __init__(self, source: Source, remote: Remote, cache: NodeCache, manifest: Manifest) -> None:
        super().__init__(source, cache.folder, manifest)
        self._remote, self._cache = remote, cache
        shards = {s.name: (s.size, s.checksum) for s in manifest.shards}
        files: list[File] = [*manifest.indexes, *(f.file for f in manifest.facts.values() if f.file is not None)]
        self._sizes = {**shards, **{f.name: (f.size, f.checksum) for f in files}}

    def local(self, name: str) -> Path:
        """Give a file's path in the cache, fetching it if need be."""
        size, checksum = self._sizes[name]
        return self._cache.get(f"{checksum}-{name}", lambda target: self._remote.fetch(name, size, target))


def find_far(source: Source, generation: int | None) -> Opened:
    """Find a generation behind a URL.

    Raises:
        RecordsError: there is none.
    """
    remote = Remote(source.path, source.storage_options)
    folder = Path(source.cache_dir) if source.cache_dir else default_cache().parent / "records"
    cache = NodeCache(folder, to_bytes(source.cache_bytes))
    stem = xxh3_64_hexdigest((source.path.rstrip("/") + json.dumps(source.storage_options, default=str)).encode())
    if generation is None:
        generation = _newest(remote, cache, stem)

    try:
        path = cache.get(f"{stem}-manifest.{generation}", partial(_fetch_manifest, remote, generation))
    except FileNotFoundError as error:
        raise RecordsError(
            "there is no record set",
            where=source.path,
            fix="check the URL; a set that is being written has no manifest",
        ) from error
    manifest = unpack(path.read_bytes(), Manifest, f"{source.path}/manifest.{generation}")
    return FarOpened(source, remote, cache, manifest)


def _newest(remote: Remote, cache: NodeCache, stem: str) -> int:
    note = cache.folder / f"{stem}-newest"

    def ask(target: Path) -> None:
        number = 0
        while True:
            name = f"{stem}-manifest.{number + 1}"
            try:
                cache.get(name, partial(_fetch_manifest, remote, number + 1))
            except FileNotFoundError:
                break
            number += 1
        target.write_text(str(number))

    if note.exists() and not 0 <= time.time() - note.stat().st_ctime < FRESH:
        note.unlink(missing_ok=True)
    return int(cache.get(note.name, ask).read_text())


def _fetch_manifest(remote: Remote, number: int, target: Path) -> None:
    target.write_bytes(remote.read(f"manifest.{number}"))


class FarWriter(RecordsWriter):
    """Writes a set on this machine, and copies it behind the URL at the end, the manifest last."""

    def __init__(self, url: str, options: Mapping[str, Any], storage_options: Mapping[str, Any], **more: Any) -> None:
        self._remote = Remote(url, storage_options)
        if self._present():
            raise RecordsError("the path is in use", where=url, fix="choose another URL")
        self._stage = Path(tempfile.mkdtemp(prefix="thalweg-records-"))
        super().__init__(self._stage, base=None, replace=False, options=options, **more)

    def _present(self) -> bool:
        try:
            self._remote.read("manifest.0")
        except FileNotFoundError:
            return False
        return True

    def close(self) -> None:
        """Finish and copy. Twice is fine."""
        if not self._open:
            return
        super().close()
        try:
            assert self.manifest is not None
            for name in sorted(place.files_of(self.manifest)):
                self._remote.write(name, self._stage / name)
            if not self._remote.create("manifest.0", pack(self.manifest)):
                raise RecordsError("the path is in use", where=self._remote.url, fix="choose another URL")
        finally:
            shutil.rmtree(self._stage, ignore_errors=True)

    def abandon(self) -> None:
        """Throw away what was written."""
        super().abandon()
        shutil.rmtree(self._stage, ignore_errors=True)
