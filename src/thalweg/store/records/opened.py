"""An open generation: its manifest, facts, blocks and memory, each made when it is first needed.

Decides where the parts of a set are found and how they are put together. Knows no row.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.core.errors import IntegrityError
from thalweg.store import fs
from thalweg.store.records.blocks import BlockTable, Span, Touch
from thalweg.store.records.decode import Decoder
from thalweg.store.records.guard import Guard
from thalweg.store.records.manifest import Fact, File, Manifest
from thalweg.store.records.region import FileReads, Region, missing, place_shards, wrong_size
from thalweg.store.records.token_ids import TokenIds


@dataclass(frozen=True)
class Source:
    """How a set is opened; enough to open it again in another process."""

    path: str
    io: str = "auto"
    verify: bool = False
    cache_dir: str | None = None
    cache_bytes: int | str = "50GB"
    storage_options: dict[str, Any] = field(default_factory=dict[str, Any])


class Opened:
    """One generation of one set.

    Args:
        source: how it was opened.
        folder: the local directory that holds it.
        manifest: of the generation.
        facts: facts in memory, for a set that is not merged; None: they lie in files.
    """

    def __init__(
        self, source: Source, folder: Path, manifest: Manifest, facts: Mapping[str, NDArray[Any]] | None = None
    ) -> None:
        self.source, self.folder, self.manifest = source, folder, manifest
        self.where = source.path
        self._given = facts
        self.guard = Guard()

    @cached_property
    def facts(self) -> Mapping[str, NDArray[Any]]:
        """Each fact, (n,), mapped."""
        if self._given is not None:
            return self._given
        return {name: self._fact(fact) for name, fact in self.manifest.facts.items()}

    def _fact(self, fact: Fact) -> NDArray[Any]:
        if fact.file is None:
            return np.broadcast_to(np.array(fact.constant, fact.dtype), (self.manifest.rows,))
        mapped = self.mapped(fact.file, offset=128).view(fact.dtype)
        if len(mapped) != self.manifest.rows:
            raise IntegrityError(
                "a file of row facts has another number of rows", where=str(self.folder / fact.file.name)
            )
        return mapped

    def mapped(self, file: File, offset: int = 0) -> NDArray[np.uint8]:
        """Map a file beside the shards, without holding it open.

        Raises:
            IntegrityError: it is missing or has another size.
        """
        path = self.local(file.name)
        if not file.size:
            return np.empty(0, np.uint8)
        region = Region(place_shards([file.size]))
        self.guard.add(path, region.map(0, path, file.size), file.size, shard=False)
        return region.bytes[offset : file.size]

    def local(self, name: str) -> Path:
        """Give the path of one of the set's files on this machine."""
        return self.folder / name

    def shard_path(self, number: int) -> Path:
        """Give the path of a shard on this machine."""
        return self.local(self.manifest.shards[number].name)

    def shard_name(self, number: int) -> str:
        """Say where a shard lies, for messages."""
        return str(self.folder / self.manifest.shards[number].name)

    @cached_property
    def memory(self) -> Region | FileReads:
        """The shards, mapped or read by ranges."""
        sizes = [s.size for s in self.manifest.shards]
        places = place_shards(sizes)
        if self.source.io == "pread" or (self.source.io == "auto" and fs.is_remote_mount(self.folder)):
            return FileReads(places, self.shard_path, sizes)
        try:
            return Region(places)
        except OSError:
            if self.source.io == "mmap":
                raise
            return FileReads(places, self.shard_path, sizes)

    @cached_property
    def table(self) -> BlockTable:
        """The index of the blocks."""
        return BlockTable(self.manifest, place_shards([s.size for s in self.manifest.shards]), self.mapped)

    @cached_property
    def touch(self) -> Touch:
        """Makes blocks readable."""
        return Touch(self.table, self.memory, self.ready, self.shard_name, verify=self.source.verify)

    def ready(self, spans: Sequence[Span]) -> None:
        """Make spans of shards readable in the memory: here their whole shards are mapped."""
        if isinstance(self.memory, Region):
            for shard in dict.fromkeys(s for s, _, _ in spans):
                if not self.memory.mapped[shard]:
                    path, size = self.shard_path(shard), self.manifest.shards[shard].size
                    self.guard.add(path, self.memory.map(shard, path, size), size, shard=True)

    def ahead(self, rows: NDArray[np.int64], calls: int) -> bool:  # noqa: ARG002
        """Fetch what rows need before they are read; False where there is nothing to fetch, as on a local disk."""
        return False

    def whole(self, number: int) -> Callable[[int, int], Any]:
        """Give what reads bytes [first, end) of a shard anew, for a check of all of it."""
        size = self.manifest.shards[number].size
        region = Region(place_shards([size]))
        region.map(0, self.shard_path(number), size)
        data = region.bytes[:size].data
        return lambda first, end: data[first:end]

    def check_sizes(self) -> None:
        """Compare the sizes of all shards with those of the manifest.

        Raises:
            IntegrityError: one is not there, or has another size.
        """
        for number, shard in enumerate(self.manifest.shards):
            path = self.shard_path(number)
            try:
                found = path.stat().st_size
            except FileNotFoundError as error:
                raise missing(path) from error
            if found != shard.size:
                raise wrong_size(path, found, shard.size)

    @cached_property
    def decoder(self) -> Decoder:
        """Reads columns."""
        return Decoder(self.table, self.memory)

    @cached_property
    def ids_only(self) -> TokenIds | None:
        """The short way to `input_ids` alone, where the set allows it."""
        return TokenIds.of(self.table, self.memory, self.touch, self.decoder, self.facts)
