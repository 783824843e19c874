"""The files of one writer: blocks in; shards, their index and their facts out, and the manifest that names them.

Decides when a shard ends. Knows no other writer and no generation.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from xxhash import xxh3_128_hexdigest

from thalweg.core.errors import RecordsError, SampleError
from thalweg.core.sample import INPUT_IDS
from thalweg.store import fs
from thalweg.store.records.block import Block
from thalweg.store.records.facts import FactFile, of_block
from thalweg.store.records.fingerprint import Printer, ends_of
from thalweg.store.records.kinds import NULL, Kind, join, parse
from thalweg.store.records.manifest import FORMAT, HEAD, VERSION, Fact, File, Layout, Manifest, Shard
from thalweg.store.records.shard import ShardFile, Written, widths_for

BLOCK_BYTES = 32 << 20


class PartFiles:
    """Writes blocks into files that share a prefix.

    Args:
        folder: where the files go; it exists.
        prefix: first part of every name.
        declared: declared types, or None.
        shard_bytes: a shard ends at the first block that brings it to this size.
        facts: scalar columns whose values are also kept beside the data, 4 bytes a row.
        vocab_size: ids at or above it are refused; it may also make them 2 bytes wide at rest.
        sync: survive a power loss, not only a kill.
    """

    def __init__(
        self,
        folder: Path,
        prefix: str,
        *,
        declared: Mapping[str, Kind] | None,
        shard_bytes: int,
        facts: Sequence[str] = (),
        vocab_size: int | None = None,
        sync: bool = True,
    ) -> None:
        self.folder, self.prefix, self.sync = folder, prefix, sync
        self._declared, self._shard_bytes = dict(declared or {}), shard_bytes
        self._named, self.vocab_size = tuple(facts), vocab_size
        self.block_bytes = min(BLOCK_BYTES, shard_bytes)
        self._widths = widths_for(vocab_size, self._declared)
        self._shard: ShardFile | None = None
        self._printer = Printer()
        self._done: list[Written] = []
        self._facts: dict[str, FactFile] = {}
        self._made: list[Path] = []
        self.kinds: dict[str, Kind] = dict(self._declared)
        self.rows = self.tokens = 0
        self._torn = False

    def put(self, block: Block) -> None:
        """Write a block.

        Raises:
            SampleError: an id outside the vocabulary; the row is named.
        """
        if not block.n:
            return
        self._must_be_whole()
        self._check_ids(block)
        facts = of_block(block, self._named)
        self._torn = True
        shard = self._shard
        if shard is not None and not shard.accepts(block):
            self._close_shard()
            shard = None
        if shard is None:
            path = self.folder / f"{self.prefix}.{len(self._done):05d}.arrow"
            shard = self._shard = ShardFile(path, block, self._widths)
            self._made.append(path)
        shard.note_keys(block)
        shard.begin(block)  # first: all else goes on beside the writing
        light = block.light()
        ends = ends_of(light)
        hashed = shard.end(block.n, ends)
        self._printer.add(light, ends, block.contents(), hashed)
        for name, column in block.columns.items():
            self.kinds[name] = join(self.kinds.get(name, NULL), column.kind)
        for name, values in facts.items():
            file = self._facts.get(name)
            if file is None:
                file = self._facts[name] = FactFile(self.folder / f"{self.prefix}.{name}.npy", values.dtype)
                self._made.append(file.path)
            file.write(values)
        self.rows += block.n
        self.tokens += int(facts["length"].sum(dtype=np.int64))
        if shard.size >= self._shard_bytes:
            self._close_shard()
        self._torn = False

    def _must_be_whole(self) -> None:
        """Refuse to go on after a block that was broken off, by a full disk or by Ctrl-C: nobody knows what is there.

        Raises:
            RecordsError: one was.
        """
        if self._torn:
            raise RecordsError(
                "an earlier block was not written whole",
                where=str(self.folder),
                fix="write all rows again, in a new set",
            )

    def _check_ids(self, block: Block) -> None:
        column = block.columns.get(INPUT_IDS)
        if self.vocab_size is None or column is None or column.offsets is None or not len(column.values):
            return
        low, high = int(column.values.min()), int(column.values.max())
        if low >= 0 and high < self.vocab_size:
            return
        bad = int(np.flatnonzero((column.values < 0) | (column.values >= self.vocab_size))[0])
        row = int(np.searchsorted(column.offsets, bad, "right")) - 1
        ids = block.ids()
        name = f" id {ids[row]!r}" if ids and ids[row] is not None else ""
        raise SampleError(
            f"token id {column.values[bad]} is outside the vocabulary of {self.vocab_size}",
            where=f"row {self.rows + row}{name}, position {bad - int(column.offsets[row])}",
            fix="give the vocab_size of the tokenizer that made the ids",
        )

    def _close_shard(self) -> None:
        if self._shard is not None:
            self._done.append(self._shard.close(sync=self.sync))
            self._shard = None

    def finish(self, lineage: dict[str, Any], quarantined: int = 0) -> Manifest:
        """Close everything and give the manifest of these files alone."""
        self._must_be_whole()
        self._close_shard()
        index, layouts, shards = self._write_index()
        total = self._printer.finish()
        return Manifest(
            format=FORMAT,
            version=VERSION,
            generation=0,
            rows=self.rows,
            tokens=self.tokens,
            fingerprint=total.text(),
            print=total,
            columns={name: str(kind) for name, kind in self.kinds.items()},
            lineage=lineage,
            layouts=layouts,
            indexes=[index] if self._done else [],
            shards=shards,
            facts=self._close_facts(),
            quarantined=quarantined,
        )

    def _write_index(self) -> tuple[File, list[Layout], list[Shard]]:
        """Write the entries of all blocks, and after them, for each block, how many ends it has and which."""
        layouts: list[Layout] = []
        shards: list[Shard] = []
        ends: list[Any] = []
        at, place = 0, 4 * sum(done.index.size for done in self._done)  # bytes; and in 2 bytes
        for done in self._done:
            if done.layout not in layouts:
                layouts.append(done.layout)
            number = layouts.index(done.layout)
            shards.append(Shard(done.path.name, done.rows, done.size, done.checksum, len(done.index), number, 0, at))
            at += done.index.nbytes
            for k, some in enumerate(done.ends):
                done.index[k, HEAD - 1] = place
                ends.append(np.concatenate([np.array([len(some)], np.uint16), some]))
                place += len(some) + 1
        raw = b"".join([*(done.index.tobytes() for done in self._done), *(e.tobytes() for e in ends)])
        data = raw.ljust(-(-len(raw) // 8) * 8, b"\0")
        path = self.folder / f"{self.prefix}.index"
        if self._done:
            self._made.append(path)
            path.write_bytes(data)
            self._sync(path)
        return File(path.name, len(data), xxh3_128_hexdigest(data)), layouts, shards

    def _close_facts(self) -> dict[str, Fact]:
        out: dict[str, Fact] = {}
        for name, file in self._facts.items():
            file.close()
            constant = file.constant
            if constant is not None:
                self._made.remove(file.path)
                out[name] = Fact(file.dtype.name, None, constant)
                continue
            self._sync(file.path)
            out[name] = Fact(file.dtype.name, describe(file.path))
        return out

    def _sync(self, path: Path) -> None:
        if self.sync:
            fs.sync_file(path)

    @property
    def names(self) -> list[str]:
        """The files that were made, by name."""
        return [p.name for p in self._made]

    def abandon(self) -> None:
        """Remove everything that was written."""
        if self._shard is not None:
            self._shard.abandon()
            self._shard = None
        for file in self._facts.values():
            file.close()
        # Of a generation that did not appear there may be facts of all rows too.
        for path in (*self._made, *self.folder.glob(f"{self.prefix}.*.all.npy")):
            path.unlink(missing_ok=True)


def describe(path: Path) -> File:
    """Take the size and checksum of a file."""
    data = np.memmap(path, np.uint8, "r")
    return File(path.name, len(data), xxh3_128_hexdigest(data.data))


def parse_schema(schema: Mapping[str, Any] | None) -> dict[str, Kind] | None:
    """Read declared types: words, numpy dtypes of scalars, or None for "find out"."""
    if schema is None:
        return None
    return {name: parse(word if isinstance(word, str) else np.dtype(word).name) for name, word in schema.items()}
