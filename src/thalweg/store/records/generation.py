"""How files become a generation: the exclusive appearance of one manifest.

Decides what a generation after another one holds, and who wins when two come at once. Knows no Arrow.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from thalweg.store import fs
from thalweg.store.records import fingerprint, place
from thalweg.store.records.facts import FactFile
from thalweg.store.records.kinds import NULL, Kind, join, parse
from thalweg.store.records.manifest import Fact, Layout, Manifest, Shard, pack
from thalweg.store.records.part import describe
from thalweg.store.records.reread import Files, Here, Reread


def publish(folder: Path, own: Manifest, base: Manifest | None, prefix: str, *, replace: bool, sync: bool) -> Manifest:
    """Make a writer's files, and others of its prefix, the newest generation, after `base` (None: alone).

    Where another writer was faster, the rows follow its rows. With `replace` the older generations are removed
    once the new one is there.
    """
    while True:
        whole = after(base, own, Here(folder), prefix, replace=replace, sync=sync)
        number = whole.generation
        if sync:
            fs.sync_folder(folder)
        if fs.write_whole(place.manifest_path(folder, number), pack(whole), exclusive=True, sync=sync):
            break
        base = place.read_manifest(place.manifest_path(folder, place.generations(folder)[-1]))
    for name in place.files_of(own) - place.files_of(whole):  # facts that were copied into those of all rows
        (folder / name).unlink(missing_ok=True)
    if replace:
        place.sweep(folder)
    return whole


def after(base: Manifest | None, own: Manifest, files: Files, prefix: str, *, replace: bool, sync: bool) -> Manifest:
    """Give the manifest of the generation after `base` (None: the first): its rows and `own`, or `own` alone."""
    whole = own if base is None or replace else combine([base, own], files, prefix, sync=sync)
    number = 0 if base is None else base.generation + 1
    replaced = number if replace else 0 if base is None else base.replaces
    return msgspec.structs.replace(whole, generation=number, replaces=replaced)


def combine(
    parts: Sequence[Manifest], files: Files, prefix: str, *, sync: bool, scratch: str | None = None
) -> Manifest:
    """Give the manifest of the rows of all parts in order.

    Writes their facts end to end as `PREFIX.NAME.all.npy`, first under the prefix `scratch` where that is given.
    """
    facts = _join_facts(parts, files, prefix, scratch or prefix, sync=sync)
    return msgspec.structs.replace(joined(parts, files), facts=facts)


def joined(parts: Sequence[Manifest], files: Files) -> Manifest:
    """Give the manifest of the rows of all parts in order, without facts."""
    layouts: list[Layout] = []
    shards: list[Shard] = []
    columns: dict[str, Kind] = {}
    before = 0
    for part in parts:
        numbers = []
        for layout in part.layouts:
            if layout not in layouts:
                layouts.append(layout)
            numbers.append(layouts.index(layout))
        shards += [msgspec.structs.replace(s, layout=numbers[s.layout], index=before + s.index) for s in part.shards]
        before += len(part.indexes)
        for name, word in part.columns.items():
            columns[name] = join(columns.get(name, NULL), parse(word))
    total = fingerprint.join([p.print for p in parts], Reread(files, parts))
    lineage: dict[str, Any] = {}
    for part in parts:
        lineage.update(part.lineage)
    return msgspec.structs.replace(
        parts[0],
        rows=sum(p.rows for p in parts),
        tokens=sum(p.tokens for p in parts),
        fingerprint=total.text(),
        print=total,
        columns={name: str(kind) for name, kind in columns.items()},
        lineage=lineage,
        layouts=layouts,
        indexes=[f for p in parts for f in p.indexes],
        shards=shards,
        facts={},
        quarantined=sum(p.quarantined for p in parts),
        part=None,
        parts=None,
    )


def _join_facts(parts: Sequence[Manifest], files: Files, prefix: str, scratch: str, *, sync: bool) -> dict[str, Fact]:
    out: dict[str, Fact] = {}
    names = dict.fromkeys(name for p in parts for name in p.facts)
    for name in names:
        facts = [(p.rows, p.facts.get(name)) for p in parts if p.rows]
        constants = {None if f is None else f.constant for _, f in facts if f is None or f.file is None}
        dtypes = {f.dtype for _, f in facts if f is not None}
        dtype = "float32" if "float32" in dtypes else "int32"
        if all(f is not None and f.file is None for _, f in facts) and len(constants) <= 1:
            value = constants.pop() if constants else 0
            out[name] = Fact(dtype, None, value or 0)
            continue
        path = files.folder / f"{prefix}.{name}.all.npy"
        temporary = files.folder / f"{scratch}.{name}.all.npy"
        file = FactFile(temporary, dtype)
        for rows, fact in facts:
            for piece in fact_pieces(files, rows, fact):
                file.write(piece.astype(dtype, copy=False))
        file.close()
        if file.constant is not None:
            out[name] = Fact(dtype, None, file.constant)
            continue
        temporary.rename(path)
        if sync:
            fs.sync_file(path)
        out[name] = Fact(dtype, describe(path))
    return out


def fact_pieces(files: Files, rows: int, fact: Fact | None, step: int = 1 << 22) -> Iterator[NDArray[Any]]:
    """Give one fact of `rows` rows in pieces; rows without it have 0."""
    for a in range(0, rows, step):
        n = min(step, rows - a)
        if fact is None or fact.file is None:
            yield np.full(n, 0 if fact is None else fact.constant, "int32" if fact is None else fact.dtype)
        else:
            yield np.load(files.path(fact.file), mmap_mode="r")[a : a + n]
