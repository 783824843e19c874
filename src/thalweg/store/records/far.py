"""A record set behind a URL: its files come through the node's cache when they are touched.

Opening costs at most three requests: for the note of the newest generation, for one that may be newer, and for the
manifest. Ranks of a node share the answers for a minute. Decides that and the names in the cache. Knows no protocol.
"""

import contextlib
import json
import time
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_hexdigest

from thalweg.core.errors import IntegrityError, RecordsError
from thalweg.core.sizes import to_bytes
from thalweg.store.cache import NodeCache
from thalweg.store.lines import default_cache
from thalweg.store.records.ahead import Ahead
from thalweg.store.records.blocks import Span
from thalweg.store.records.declared import unfinished
from thalweg.store.records.manifest import File, Manifest, unpack
from thalweg.store.records.opened import Opened, Source
from thalweg.store.records.pieces import MappedPieces, PieceReads, Pieces, RangeReads, side_by_side
from thalweg.store.records.region import FileReads, Region
from thalweg.store.remote import Remote

FRESH = 60.0  # seconds for which the newest generation of a set is not asked for again on this node
NOTE = "newest"  # beside the manifests: the number of a generation; there may be newer ones


class FarFiles:
    """Where a URL's set is kept on this node.

    Args:
        source: URL, cache and options.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.remote = Remote(source.path, source.storage_options)
        folder = Path(source.cache_dir) if source.cache_dir else default_cache().parent / "records"
        self.cache = NodeCache(folder, to_bytes(source.cache_bytes))
        said = source.path.rstrip("/") + json.dumps(source.storage_options, default=str)
        self._stem = xxh3_64_hexdigest(said.encode())

    def manifest(self, generation: int) -> Manifest:
        """Give the manifest of a generation.

        Raises:
            FileNotFoundError: there is none.
        """
        path = self.cache.get(f"{self._stem}-manifest.{generation}", partial(self._fetch, generation))
        return unpack(path.read_bytes(), Manifest, f"{self.source.path}/manifest.{generation}")

    def _fetch(self, generation: int, target: Path) -> None:
        target.write_bytes(self.remote.read(f"manifest.{generation}"))

    def newest(self, *, fresh: bool = False) -> int:
        """Give the number of the newest generation; `fresh`: ask the server now.

        Raises:
            FileNotFoundError: there is none.
        """
        note = self.cache.folder / f"{self._stem}-newest"
        if fresh:
            return self._ask()
        if note.exists() and not 0 <= time.time() - note.stat().st_ctime < FRESH:
            note.unlink(missing_ok=True)
        return int(self.cache.get(note.name, self._note).read_text())

    def _note(self, target: Path) -> None:
        target.write_text(str(self._ask()))

    def forget(self) -> None:
        """Ask again which generation is the newest."""
        (self.cache.folder / f"{self._stem}-newest").unlink(missing_ok=True)

    def _ask(self) -> int:
        number = 0
        with contextlib.suppress(FileNotFoundError, ValueError):
            number = int(self.remote.read(NOTE))
        while self._is_there(number + 1):
            number += 1
        if number or self._is_there(0):
            return number
        # A set that was copied there without the note, and whose first generations were replaced.
        found = [n.removeprefix("manifest.") for n in self.remote.named("manifest.")]
        numbers = [int(n) for n in found if n.isdigit()]
        if not numbers:
            raise FileNotFoundError(self.source.path)
        return max(numbers)

    def _is_there(self, number: int) -> bool:
        try:
            self.manifest(number)
        except FileNotFoundError:
            return False
        return True

    def file(self, file: File) -> Path:
        """Give the path of a file in the cache, fetching it if need be."""
        return self.cache.get(f"{file.checksum}-{file.name}", partial(self.remote.fetch, file.name, 0, file.size))

    def open(self, manifest: Manifest) -> "FarOpened":
        """Open what a manifest names."""
        return FarOpened(self, manifest)


class FarOpened(Opened):
    """One generation of a set behind a URL."""

    def __init__(self, home: FarFiles, manifest: Manifest) -> None:
        super().__init__(home.source, home.cache.folder, manifest)
        self._home = home
        files: list[File] = [*manifest.indexes, *(f.file for f in manifest.facts.values() if f.file is not None)]
        self._files = {f.name: f for f in files}
        self._pieces = Pieces(home.remote, home.cache, manifest.shards)
        self._ahead = Ahead(self._pieces)

    def local(self, name: str) -> Path:
        """Give a file's path in the cache, fetching it if need be."""
        return self._home.file(self._files[name])

    def shard_name(self, number: int) -> str:
        """Say where a shard lies, for messages."""
        return f"{self.where}/{self.manifest.shards[number].name}"

    @cached_property
    def memory(self) -> Region | FileReads:
        """The shards: mapped where the cache holds the whole set, else read from it; or read from the server."""
        if self.source.io == "pread":
            return RangeReads(self._home.remote, self.manifest.shards)
        whole = sum(s.size for s in self.manifest.shards)
        if self.source.io == "mmap" or whole <= self._home.cache.max_bytes:
            with contextlib.suppress(OSError):
                return MappedPieces(self._pieces)
        return PieceReads(self._pieces)

    def ready(self, spans: Sequence[Span]) -> None:
        """Make spans of shards readable in the memory."""
        if isinstance(self.memory, MappedPieces):
            self.memory.ready(spans)

    def ahead(self, rows: NDArray[np.int64], calls: int) -> bool:
        """Fetch what rows need before they are read."""
        if isinstance(self.memory, RangeReads):
            return False
        if not len(rows):
            self._ahead.end()
            return True
        blocks = self.table.of_rows(rows)
        _, first = np.unique(blocks, return_index=True)
        spans = [self.touch.span(block) for block in blocks[np.sort(first)].tolist()]
        self._ahead.say(self._pieces.of(spans), calls)
        return True

    def whole(self, number: int) -> Callable[[int, int], Any]:
        """Give what reads bytes [first, end) of a shard, for a check of all of it."""
        reads = self.memory if isinstance(self.memory, RangeReads) else PieceReads(self._pieces)
        return lambda first, end: reads.read(number, first, end - first)

    def check_sizes(self) -> None:
        """Ask the server for the last byte of every shard."""
        shards = self.manifest.shards
        found = side_by_side(lambda s: self._home.remote.ends_at(s.name, s.size), shards)
        for number, (shard, whole) in enumerate(zip(shards, found, strict=True)):
            if not whole:
                raise IntegrityError(
                    f"a shard is missing, or has not the {shard.size} bytes that were written",
                    where=self.shard_name(number),
                    fix="restore the file, or write the set again",
                )


def find_far(source: Source, generation: int | None) -> Opened:
    """Find a generation behind a URL.

    Raises:
        RecordsError: there is none.
    """
    home = FarFiles(source)
    try:
        return home.open(home.manifest(home.newest() if generation is None else generation))
    except FileNotFoundError as error:
        if generation is None:
            _refuse_unfinished(home)
        raise RecordsError(
            "there is no record set",
            where=source.path,
            fix="check the URL; a set that is being written has no manifest",
        ) from error


def _refuse_unfinished(home: FarFiles) -> None:
    """Name the parts that are missing where a first generation was declared.

    Raises:
        RecordsError: one was.
    """
    parts = import_module("thalweg.store.records.farparts")  # only where there is no set
    count = parts.declared_far(home, 0)
    if count is None:
        return
    missing = parts.missing_far(home, 0, count)
    if missing:
        raise unfinished(home.source.path, count, missing)
    raise RecordsError("all parts are there, but they are not merged", where=home.source.path, fix="merge_parts(path)")
