"""Whether a set is what was written: names and sizes, or every byte.

Decides what is compared and in which order, and names the first difference with its offset.
"""

from typing import Literal

import numpy as np
from xxhash import xxh3_64_intdigest, xxh3_128_hexdigest

from thalweg.core.errors import ConfigError, IntegrityError
from thalweg.store.records import place
from thalweg.store.records.blocks import BlockTable, damaged
from thalweg.store.records.manifest import Shard
from thalweg.store.records.opened import Opened
from thalweg.store.records.region import place_shards
from thalweg.store.records.shard import combined


def verify(opened: Opened, level: Literal["quick", "full"]) -> None:
    """Check a set.

    Raises:
        IntegrityError: the first file that differs.
    """
    if level not in ("quick", "full"):
        raise ConfigError(f"verify({level!r})", fix='say "quick" or "full"')
    manifest = opened.manifest
    opened.check_sizes()
    files = [*manifest.indexes, *(f.file for f in manifest.facts.values() if f.file is not None)]
    for file in files:
        path = opened.local(file.name)
        size = path.stat().st_size if path.is_file() else -1
        if size != file.size:
            raise IntegrityError(f"a file has {size} bytes, {file.size} were written", where=str(path))
    if level == "quick":
        return
    if opened.source.path and (opened.folder / place.manifest_path(opened.folder, manifest.generation).name).exists():
        place.read_manifest(place.manifest_path(opened.folder, manifest.generation))
    for file in files:
        if file.size and xxh3_128_hexdigest(opened.mapped(file).data) != file.checksum:
            raise damaged(opened.local(file.name), 0, file.size)
    table = BlockTable(manifest, place_shards([s.size for s in manifest.shards]), opened.mapped)
    blocks = np.searchsorted(table.shard, np.arange(len(manifest.shards) + 1))
    for number, shard in enumerate(manifest.shards):
        _verify_shard(opened, table, number, shard, range(int(blocks[number]), int(blocks[number + 1])))


def _verify_shard(opened: Opened, table: BlockTable, number: int, shard: Shard, blocks: range) -> None:
    read, name = opened.whole(number), opened.shard_name(number)
    digests: list[int] = []
    end = 0
    for block in blocks:
        _, first, end, digest = table.entry(block)[:4].tolist()
        if table.checksum(block, read(first, end)) != digest % 2**64:
            raise damaged(name, first, end)
        digests.append(digest % 2**64)
    tail = xxh3_64_intdigest(read(end, shard.size))
    if combined([*digests, tail]) != shard.checksum:
        raise damaged(name, end, shard.size)
