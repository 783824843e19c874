"""The shards of a set behind a URL, on this node: fetched in pieces of some MB, each a file of the node's cache.

Decides what is fetched for a span of a shard, that pieces come side by side, and how they make one memory: mapped where
the whole set fits into the cache, else read from the files, so that nothing evicted stays on the disk. Knows no rows.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from thalweg.store.cache import NodeCache
from thalweg.store.records.blocks import Span
from thalweg.store.records.manifest import Shard
from thalweg.store.records.region import FileReads, Region, place_shards, read_range
from thalweg.store.remote import Remote

PIECE = 8 << 20  # bytes, whole pages: a request that takes longer than its way to the server, and a small waste
STREAMS = 8  # requests at once
Piece = tuple[int, int]  # shard, number in it


class Pieces:
    """Fetches pieces of shards into the node's cache.

    Args:
        remote: where the shards are.
        cache: of this node.
        shards: names, sizes and checksums.
    """

    def __init__(self, remote: Remote, cache: NodeCache, shards: Sequence[Shard]) -> None:
        self.remote, self.cache, self.shards, self._step = remote, cache, shards, PIECE
        counts = [-(-s.size // PIECE) for s in shards]
        self._first = [0, *itertools.accumulate(counts)]

    @property
    def total(self) -> int:
        """Pieces of all shards."""
        return self._first[-1]

    def of(self, spans: Sequence[Span]) -> list[Piece]:
        """Give the pieces of spans, each once, in order of their first use."""
        found: dict[Piece, None] = {}
        for shard, first, end in spans:
            for k in range(first // self._step, -(-end // self._step)):
                found[shard, k] = None
        return list(found)

    def fitting(self, pieces: Sequence[Piece], readers: int = 1) -> list[Piece]:
        """Give the first of some pieces that take no more than half of the cache, shared by so many readers."""
        left = self.cache.max_bytes // 2 // readers
        out: list[Piece] = []
        for piece in pieces:
            start, end = self.bounds(piece)
            left -= end - start
            if left < 0 and out:
                break
            out.append(piece)
        return out

    def number(self, piece: Piece) -> int:
        """Number a piece among those of all shards."""
        return self._first[piece[0]] + piece[1]

    def bounds(self, piece: Piece) -> tuple[int, int]:
        """Give first byte and end of a piece in its shard."""
        start = piece[1] * self._step
        return start, min(start + self._step, self.shards[piece[0]].size)

    def key(self, piece: Piece) -> str:
        """Name a piece in the cache: by the content of its shard and its place in it."""
        shard = self.shards[piece[0]]
        start, end = self.bounds(piece)
        return f"{shard.checksum}-{shard.name}.{start}-{end}"

    def path(self, piece: Piece) -> Path:
        """Give the file of a piece, fetching it if nobody has."""
        start, end = self.bounds(piece)
        return self.cache.get(self.key(piece), partial(self.remote.fetch, self.shards[piece[0]].name, start, end))

    def fetch(self, pieces: Sequence[Piece]) -> None:
        """Bring pieces here that are not, side by side."""
        side_by_side(self.path, [p for p in pieces if not self.cache.has(self.key(p))])

    def read(self, piece: Piece, offset: int, size: int) -> bytes:
        """Read bytes of a piece."""
        start, end = self.bounds(piece)
        while True:
            try:
                return read_range(self.path(piece), offset, size, end - start)
            except FileNotFoundError:  # evicted since it was found
                continue


def side_by_side(call: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
    """Call a function that waits for a server, several at once, and give the results in order."""
    if len(items) < 2:
        return iter([call(item) for item in items])
    with ThreadPoolExecutor(min(STREAMS, len(items)), "thalweg-fetch") as pool:
        return iter(list(pool.map(call, items)))


class MappedPieces(Region):
    """Memory of a set that fits into the cache: pieces are mapped at their place when they are touched."""

    def __init__(self, pieces: Pieces) -> None:
        super().__init__(place_shards([s.size for s in pieces.shards]))
        self._pieces = pieces
        self._there = np.zeros(pieces.total, bool)

    def ready(self, spans: Sequence[Span]) -> None:
        """Make spans readable."""
        pieces = self._pieces
        wanted = [p for p in pieces.of(spans) if not self._there[pieces.number(p)]]
        pieces.fetch(wanted)
        for piece in wanted:
            self._put(piece)

    def _put(self, piece: Piece) -> None:
        start, end = self._pieces.bounds(piece)
        while True:
            try:
                self.put(int(self.places[piece[0]]) + start, self._pieces.path(piece), end - start)
            except FileNotFoundError:  # evicted since it was found
                continue
            self._there[self._pieces.number(piece)] = True
            return


class PieceReads(FileReads):
    """Memory of a set that does not fit into the cache: bytes are copied out of the files of its pieces."""

    def __init__(self, pieces: Pieces) -> None:
        sizes = [s.size for s in pieces.shards]
        super().__init__(place_shards(sizes), lambda n: Path(pieces.shards[n].name), sizes)
        self._pieces = pieces

    def several(self, wanted: Sequence[tuple[int, int, int]]) -> Iterator[bytes]:
        """Read ranges, after what is missing was fetched side by side, as much as the cache may hold."""
        self._pieces.fetch(self._pieces.fitting(self._pieces.of([(s, at, at + size) for s, at, size in wanted])))
        return super().several(wanted)

    def read(self, shard: int, offset: int, size: int) -> bytes:
        """Read one range of one shard."""
        out: list[bytes] = []
        for piece in self._pieces.of([(shard, offset, offset + size)]):
            start, end = self._pieces.bounds(piece)
            a, b = max(offset, start), min(offset + size, end)
            out.append(self._pieces.read(piece, a - start, b - a))
        return b"".join(out)


class RangeReads(FileReads):
    """Memory that keeps nothing: the server is asked for the ranges of the rows alone."""

    GAP = 256

    def __init__(self, remote: Remote, shards: Sequence[Shard]) -> None:
        sizes = [s.size for s in shards]
        super().__init__(place_shards(sizes), lambda n: Path(shards[n].name), sizes)
        self._remote, self._shards = remote, shards

    def several(self, wanted: Sequence[tuple[int, int, int]]) -> Iterator[bytes]:
        """Read ranges, several at once."""
        return side_by_side(lambda one: self.read(*one), wanted)

    def read(self, shard: int, offset: int, size: int) -> bytes:
        """Read one range of one shard."""
        return self._remote.range(self._shards[shard].name, offset, offset + size) if size else b""
