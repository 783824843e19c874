"""The blocks of a set: which rows each holds, where its buffers lie, and whether it was touched.

Decides how a row number becomes a block and how a block becomes readable. Knows no values.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_128_hexdigest

from thalweg.core.errors import IntegrityError
from thalweg.store.records.checksum import block_checksum
from thalweg.store.records.manifest import HEAD, File, Layout, Manifest
from thalweg.store.records.region import FileReads, Region
from thalweg.work.beside import Beside, has_second_cpu


class BlockTable:
    """The index of a set, in memory: about 40 bytes a block, beside the mapped positions.

    Args:
        manifest: of the set.
        places: of its shards, as `region.place_shards` gives them.
        load: gives the bytes of an index file.
    """

    def __init__(
        self, manifest: Manifest, places: NDArray[np.int64], load: Callable[[File], NDArray[np.uint8]]
    ) -> None:
        self.layouts: Sequence[Layout] = manifest.layouts
        shards = manifest.shards
        counts = np.array([s.blocks for s in shards], np.int64)
        rows = np.array([s.rows for s in shards], np.int64)
        self.shard = np.repeat(np.arange(len(shards)), counts)
        self.base = places[self.shard]
        self.layout = np.array([s.layout for s in shards], np.int32)[self.shard]
        self.row_of_matrix = np.zeros(len(self.shard), np.int64)
        self._matrices = self._load(manifest, load)
        before = np.concatenate([np.zeros(1, np.int64), np.cumsum(rows)])
        local = np.zeros(len(self.shard), np.int64)
        for number, matrix in enumerate(self._matrices):
            mine = self.layout == number
            self.row_of_matrix[mine] = np.arange(len(matrix))
            local[mine] = matrix[:, 0]
        self.first = np.concatenate([before[self.shard] + local, [manifest.rows]]).astype(np.int64)
        self.single = len(self.layouts) == 1

    def _load(self, manifest: Manifest, load: Callable[[File], NDArray[np.uint8]]) -> list[NDArray[np.int64]]:
        raw = self._raw = [checked(load(file), file).view(np.int64) for file in manifest.indexes]
        self._index_of = np.array([s.index for s in manifest.shards], np.int64)
        if len(raw) == 1 and len(self.layouts) == 1:
            width = self.layouts[0].width
            return [raw[0][: len(self.shard) * width].reshape(-1, width)]
        pieces: list[list[NDArray[np.int64]]] = [[] for _ in self.layouts]
        for shard in manifest.shards:
            width = self.layouts[shard.layout].width
            at = shard.at // 8
            pieces[shard.layout].append(raw[shard.index][at : at + shard.blocks * width].reshape(-1, width))
        widths = [layout.width for layout in self.layouts]
        return [np.concatenate(p) if p else np.zeros((0, w), np.int64) for p, w in zip(pieces, widths, strict=True)]

    def __len__(self) -> int:
        """Count the blocks."""
        return len(self.shard)

    def of_rows(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Find the block of each row; int64 (k,)."""
        return np.searchsorted(self.first, rows, "right") - 1

    def entry(self, block: int) -> NDArray[np.int64]:
        """Give the index entry of one block: int64 (layout.width,)."""
        matrix: NDArray[np.int64] = self._matrices[self.layout[block]]
        entry: NDArray[np.int64] = matrix[self.row_of_matrix[block]]
        return entry

    def checksum(self, block: int, data: Any) -> int | None:
        """Compute the checksum of the bytes of a block; None where they are damaged for certain."""
        entry = self.entry(block).tolist()
        raw = self._raw[self._index_of[self.shard[block]]].view(np.uint16)
        at = entry[HEAD - 1]
        ends = raw[at + 1 : at + 1 + int(raw[at])]
        n = int(self.first[block + 1] - self.first[block])
        return block_checksum(data, n, entry, self.layouts[self.layout[block]], ends)

    def slot(self, layout: int, column: int, which: int, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give places in the region of one buffer of one column in blocks of one layout; -1 where there is none."""
        at = HEAD + 4 * column + which
        found = self._matrices[layout][self.row_of_matrix[blocks], at]
        return np.where(found < 0, -1, found + self.base[blocks])


def checked(data: NDArray[np.uint8], file: File) -> NDArray[np.uint8]:
    """Compare an index with its checksum.

    Raises:
        IntegrityError: it differs.
    """
    if len(data) != file.size or xxh3_128_hexdigest(np.ascontiguousarray(data).data) != file.checksum:
        raise IntegrityError(
            "the index of the shards is damaged", where=file.name, fix="restore it, or write the set again"
        )
    return data


_AHEAD = 16  # blocks whose bytes are brought beside their verification: they must stay in memory until then
_MUCH = 1 << 20  # bytes from which on that is worth a thread: they are hashed in 0.1 ms, it takes as long
Span: TypeAlias = tuple[int, int, int]  # shard, first byte, end


class Touch:
    """Makes blocks readable: brings their bytes into memory, and compares their checksum where that is asked for.

    Without a lock: doing it twice at once gives the same memory.

    Args:
        table: the blocks.
        memory: of the shards.
        ready: makes spans of shards readable in it.
        name_of: says where a shard lies, for errors.
        verify: compare checksums.
    """

    def __init__(
        self,
        table: BlockTable,
        memory: Region | FileReads,
        ready: Callable[[Sequence[Span]], None],
        name_of: Callable[[int], str],
        *,
        verify: bool,
    ) -> None:
        self._table, self._memory, self._ready, self._name_of = table, memory, ready, name_of
        self._verify = verify
        self._beside = verify and isinstance(memory, Region) and has_second_cpu()
        self.done = np.zeros(len(table), bool)

    def __call__(self, blocks: NDArray[np.int64]) -> list[int]:
        """Make blocks readable and give those that were not so before."""
        new = [] if self.done[blocks].all() else np.flatnonzero(np.bincount(blocks[~self.done[blocks]])).tolist()
        if new:
            self._ready([self.span(block) for block in new])
            if self._verify:
                for k in range(0, len(new), _AHEAD):
                    self._compare_some(new[k : k + _AHEAD])
            else:
                self.done[new] = True
        return new

    def _compare_some(self, blocks: Sequence[int]) -> None:
        """Compare blocks in order. A thread brings their bytes while those before are hashed."""
        memory, base = self._memory, self._table.base
        spans = [(int(base[block]), *self.span(block)[1:]) for block in blocks]

        def fetch() -> None:
            assert isinstance(memory, Region)
            for place, first, end in spans:
                memory.fetch(place + first, place + end)

        ahead = Beside(fetch, name="thalweg-verify")
        if self._beside and sum(end - first for _, first, end in spans) >= _MUCH:
            ahead.start()
        try:
            for block in blocks:
                self.compare(block)
                self.done[block] = True
        finally:
            ahead.wait()

    def span(self, block: int) -> Span:
        """Say which bytes of which shard a block is."""
        _, first, end = self._table.entry(block)[:3].tolist()
        return int(self._table.shard[block]), first, end

    def compare(self, block: int) -> None:
        """Compare the bytes of a block with their checksum.

        Raises:
            IntegrityError: they differ.
        """
        shard, first, end = self.span(block)
        place = int(self._table.base[block])
        if isinstance(self._memory, Region):
            data: memoryview | bytes = self._memory.bytes[place + first : place + end].data
        else:
            data = self._memory.read(shard, first, end - first)
        if self._table.checksum(block, data) != int(self._table.entry(block)[3]) % 2**64:
            raise damaged(self._name_of(shard), first, end)


def damaged(path: Path | str, first: int, end: int) -> IntegrityError:
    """Say that bytes are not those that were written."""
    return IntegrityError(
        "bytes are not those that were written",
        where=f"{path}, offset {first} to {end}",
        fix="restore the file, or write the set again",
    )
