"""One shard on its way to disk: blocks in, an Arrow IPC file and its index out.

Decides which blocks a shard can still take, and the checksums of its pieces. Knows no manifest of a set and no other
shard.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from xxhash import xxh3_128_hexdigest

from thalweg.store import fs
from thalweg.store.records import arrow
from thalweg.store.records.block import Block
from thalweg.store.records.checksum import HashedSink, in_pieces
from thalweg.store.records.column import Column, from_values
from thalweg.store.records.kinds import JSON, NULL, Kind, join, parse
from thalweg.store.records.manifest import HEAD, ID_HASH, KEYS, OWN_ID, Layout, Stored

_IDS = ("row", "column", "own")


@dataclass(slots=True)
class Written:
    """A finished shard. `index`: int64 (blocks, layout.width); `ends`: of each block, rows after which a piece ends."""

    path: Path
    layout: Layout
    index: NDArray[np.int64]
    ends: list[NDArray[np.uint16]]
    rows: int
    size: int
    checksum: str


def ids_mode(block: Block) -> str:
    """Say where the ids of a block's rows come from."""
    return "own" if block.own_ids is not None else "column" if "id" in block.columns else "row"


class ShardFile:
    """Writes one shard under a temporary name.

    Args:
        path: final name; the file appears under it when it is closed.
        first: the first block; it decides the columns and their types.
        widths: element types at rest by column, where they differ from the declared ones.
    """

    def __init__(self, path: Path, first: Block, widths: dict[str, str]) -> None:
        self.path, self._temporary = path, path.with_name(path.name + ".tmp")
        self.columns = [arrow.stored(name, c.kind, widths.get(name)) for name, c in first.columns.items()]
        self.ids = ids_mode(first)
        self.keys: dict[tuple[str, ...], int] = {}
        self.keyed = len(first.keys) > 1
        self._kinds = {name: c.kind for name, c in first.columns.items()}
        self._all = Layout(self.columns, [], self.keyed, self.ids).all_columns
        self._schema = arrow.schema(self._all)
        self._sink = HashedSink(self._temporary)
        self._writer = pa.ipc.new_file(self._sink, self._schema)
        self._first, self._pieces = 0, dict[str, Column]()  # of the block that was begun
        self._blocks: list[tuple[int, int, int, int, int]] = []  # rows before, first byte, end, hash, place of ends
        self._digests: list[int] = []
        self._ends: list[NDArray[np.uint16]] = []
        self.rows = 0

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._sink.size

    def accepts(self, block: Block) -> bool:
        """Whether a block fits the columns, types, keys and ids that the shard began with."""
        if not block.columns.keys() <= self._kinds.keys():
            return False
        if any(not arrow.fits(c.kind, self._kinds[name]) for name, c in block.columns.items()):
            return False
        if not self.keyed and (len(block.keys) > 1 or block.keys[0] not in self.keys):
            return False
        return _IDS.index(ids_mode(block)) <= _IDS.index(self.ids)

    def begin(self, block: Block) -> None:
        """Begin to add a block: its rows are on their way to the file until `end`, and do not change before."""
        arrays: list[pa.Array] = []
        self._first = self.size
        self._pieces = {}
        for how in self.columns:
            column = block.columns.get(how.name)
            arrays += arrow.arrays(column, how, block.n)
            if column is not None and column.offsets is not None and len(column.values) and in_pieces(how):
                self._sink.expect(arrays[-1].buffers()[3].address)
                self._pieces[how.name] = column
        for how in self._all[len(self.columns) :]:
            arrays += arrow.arrays(self._hidden(how.name, block), how, block.n)
        for name, column in block.columns.items():
            self._kinds[name] = _widened(self._kinds[name], column.kind)
        self._writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        self._sink.begin()

    def end(self, n: int, ends: NDArray[np.int64]) -> dict[str, NDArray[np.uint64]]:
        """End with the block that was begun.

        Args:
            n: its rows.
            ends: rows after which a chunk of the fingerprint ends.

        Returns:
            Hashes of the pieces between ends, uint64 (len(ends) + 1,), of the array columns that are hashed here.
        """
        at = np.concatenate([[0], ends, [n]])
        offsets = ((c.offsets, c.values.itemsize) for c in self._pieces.values())
        digest, found = self._sink.cut([o[at] * size for o, size in offsets if o is not None])
        self._digests.append(digest)
        self._blocks.append((self.rows, self._first, self.size, digest, 0))
        self._ends.append(ends.astype(np.uint16))
        self.rows += n
        return dict(zip(self._pieces, found, strict=True))

    def _hidden(self, name: str, block: Block) -> Column:
        known = np.array([self.keys.setdefault(k, len(self.keys)) for k in block.keys], np.int32)
        if name == KEYS:
            return Column(Kind("int32"), known[block.key_of])
        if name == ID_HASH:
            return Column(Kind("uint64"), block.id_hashes())
        assert name == OWN_ID
        ids = block.ids() or [None] * block.n
        return from_values([None if v is None else v.encode() for v in ids], Kind("str"))

    def note_keys(self, block: Block) -> None:
        """Number the key lists of a block that is about to be written."""
        for keys in block.keys:
            self.keys.setdefault(keys, len(self.keys))

    def close(self, *, sync: bool) -> Written:
        """Finish the file, find its buffers, take its checksums, and give it its name."""
        self._writer.close()
        self._digests.append(self._sink.cut()[0])
        self._sink.close()
        columns = [Stored(c.name, str(self._kinds[c.name]), c.width, c.shape) for c in self.columns]
        layout = Layout(columns, [list(k) for k in self.keys], self.keyed, self.ids)
        index, checksum = self._index(layout), combined(self._digests)
        if sync:
            fs.sync_file(self._temporary)
        size = self._temporary.stat().st_size
        self._temporary.rename(self.path)
        return Written(self.path, layout, index, self._ends, self.rows, size, checksum)

    def _index(self, layout: Layout) -> NDArray[np.int64]:
        """Find the buffers of all blocks in the finished file."""
        index = np.zeros((len(self._blocks), layout.width), np.int64)
        heads = np.array(self._blocks, np.uint64).astype(np.int64)
        index[:, :HEAD] = heads
        with pa.memory_map(str(self._temporary)) as mapped:
            whole = mapped.read_buffer(mapped.size())
            reader = pa.ipc.open_file(pa.BufferReader(whole))
            for k in range(len(index)):
                index[k, HEAD:] = arrow.places(reader.get_batch(k), self._all, whole.address)
            index[:, HEAD:] = arrow.checked(index[:, HEAD:], whole.size)
            del reader, whole
        return index

    def abandon(self) -> None:
        """Close and remove the unfinished file."""
        self._sink.close()
        self._temporary.unlink(missing_ok=True)


def combined(digests: list[int]) -> str:
    """Combine the checksums of a shard's blocks, the first with the head, and of its tail into the shard's."""
    return xxh3_128_hexdigest(np.array(digests, np.uint64).tobytes())


def _widened(shard: Kind, block: Kind) -> Kind:
    return shard if JSON in (shard, block) or block == NULL else join(shard, block)


def widths_for(vocab_size: int | None, declared: dict[str, Kind]) -> dict[str, str]:
    """Choose the width at rest of token ids: 2 bytes where the vocabulary allows it."""
    small = vocab_size is not None and vocab_size <= 2**16
    return {"input_ids": "uint16"} if small and parse(str(declared.get("input_ids", "int32[*]"))).is_array else {}
