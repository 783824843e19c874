"""Many writers of one set: the number of parts is declared first, each part appears whole, anyone merges.

Decides when a set of parts is complete. Knows no job system: ranks, processes and tasks are all "parts".
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from xxhash import xxh3_64_hexdigest

from thalweg.core.errors import RecordsError
from thalweg.core.sizes import to_bytes
from thalweg.store import fs
from thalweg.store.records import place
from thalweg.store.records.generation import combine
from thalweg.store.records.manifest import Manifest, pack, unpack
from thalweg.store.records.part import PartFiles, parse_schema
from thalweg.store.records.reread import Here
from thalweg.store.records.rowwriter import RowWriter


class Declaration(msgspec.Struct, frozen=True):
    """What is written when a set of parts begins."""

    parts: int
    generation: int


def declare_parts(path: str | Path, parts: int, *, append: bool = False) -> int:
    """Say how many parts the next generation of a set has, before the first of them is written.

    Any process may call it, any number of times, at once.

    Args:
        path: directory of the set; made if it is not there.
        parts: number of parts, at least 1.
        append: the parts follow the rows that are there.

    Returns:
        The number of the generation.

    Raises:
        RecordsError: another number is declared already, or the path is in use and append is not said.
    """
    if parts < 1:
        raise RecordsError(f"{parts} parts", fix="declare at least one")
    folder = Path(path)
    place.make_folder(folder)
    declared, whole = place.declarations(folder), place.generations(folder)
    if declared and (declared[-1] not in whole or not append):
        number = declared[-1]
    elif whole and not append:
        raise RecordsError("the path is in use", where=str(folder), fix="append=True, or another path")
    else:
        number = whole[-1] + 1 if whole else 0
    wanted = Declaration(parts, number)
    target = place.declaration_path(folder, number)
    fs.write_whole(target, pack(wanted), exclusive=True)
    found = unpack(target.read_bytes(), Declaration, str(target))
    if found.parts != parts:
        raise RecordsError(
            f"{found.parts} parts are declared, {parts} asked for",
            where=str(target),
            fix="use the declared number, or start a new set",
        )
    return number


class PartWriter(RowWriter):
    """Writes one part of a declared set.

    Args:
        path: directory of the set.
        part: number of this part, 0 to parts - 1.
        parts: number of parts; declared here if nobody has.
        folder: where to put the files instead of `path`. The caller then moves `files` into `path`, all of them
            before or with the last one, and the names depend on the part alone.
        schema, shard_bytes, vocab_size, facts, lineage, sync: as for `create_records`.
        append: the parts follow the rows that are there.
        generation: taken as declared; `path` is not looked at.

    Use it as a context manager: the part appears after the block, nothing after an exception. A part that was
    written twice appears once, the first time; the second is dropped.
    """

    def __init__(
        self,
        path: str | Path,
        part: int,
        parts: int,
        *,
        folder: str | Path | None = None,
        schema: Mapping[str, Any] | None = None,
        shard_bytes: int | str = "256MB",
        vocab_size: int | None = None,
        facts: Sequence[str] = (),
        lineage: Mapping[str, Any] | None = None,
        append: bool = False,
        sync: bool = True,
        generation: int | None = None,
    ) -> None:
        if not 0 <= part < parts:
            raise RecordsError(f"part {part} of {parts}", fix=f"number parts from 0 to {parts - 1}")
        self.path, self.part, self.parts = Path(path), part, parts
        self.generation = declare_parts(path, parts, append=append) if generation is None else generation
        self._away = folder is not None
        self.folder = Path(folder) if folder is not None else self.path
        self.folder.mkdir(parents=True, exist_ok=True)
        stem = f"part-{self.generation}-{part:05d}"
        prefix = stem if self._away else place.new_prefix(stem)
        self._lineage = dict(lineage or {})
        if vocab_size is not None:
            self._lineage.setdefault("vocab_size", vocab_size)
        life = None if self._away else fs.Life(place.life_of(self.folder, prefix)).begin()
        files = PartFiles(
            self.folder,
            prefix,
            declared=parse_schema(schema),
            shard_bytes=to_bytes(shard_bytes),
            facts=facts,
            vocab_size=vocab_size,
            sync=sync,
        )
        super().__init__(files, schema, life=life)
        self.files: list[str] = []

    def _finish(self) -> None:
        """Let the part's manifest appear; the names of its files are in `files`, the manifest last."""
        target = place.part_path(self.folder, self.generation, self.part)
        own = self._files.finish(self._lineage)
        own = msgspec.structs.replace(own, generation=self.generation, part=self.part, parts=self.parts)
        if self._files.sync:
            fs.sync_folder(self.folder)
        if fs.write_whole(target, pack(own), exclusive=not self._away, sync=self._files.sync):
            self.files = [*self._files.names, target.name]
        else:
            self._files.abandon()


def missing_parts(folder: Path, generation: int) -> tuple[int, list[int]]:
    """Give the declared number of parts of a generation, and which of them are not there."""
    target = place.declaration_path(folder, generation)
    declared = unpack(target.read_bytes(), Declaration, str(target)).parts
    there = {p.name for p in folder.iterdir()}
    return declared, [k for k in range(declared) if place.part_path(folder, generation, k).name not in there]


def merge_parts(path: str | Path) -> Manifest:
    """Make the newest declared generation out of its parts. Any process may, any number of times, at once.

    Returns:
        The manifest of that generation.

    Raises:
        RecordsError: parts are missing; they are named.
    """
    folder = Path(path)
    declared = place.declarations(folder)
    if not declared:
        raise RecordsError("no parts are declared", where=str(folder), fix="declare_parts(path, n) first")
    number = declared[-1]
    target = place.manifest_path(folder, number)
    if target.exists():
        return place.read_manifest(target)
    count, missing = missing_parts(folder, number)
    if missing:
        raise unfinished(folder, count, missing)
    found = [place.part_path(folder, number, k) for k in range(count)]
    raw = [p.read_bytes() for p in found]
    parts = [unpack(data, Manifest, str(p)) for data, p in zip(raw, found, strict=True)]
    older = [g for g in place.generations(folder) if g < number]
    base = [place.read_manifest(place.manifest_path(folder, older[-1]))] if older else []
    # The name follows from the content, so that two mergers write the same bytes under the same names.
    prefix = f"merged-{number}-{xxh3_64_hexdigest(b''.join(raw))}"
    scratch = place.new_prefix(prefix)
    with fs.Life(place.life_of(folder, scratch)):
        whole = combine([*base, *parts], Here(folder), prefix, sync=True, scratch=scratch)
        replaced = base[0].replaces if base else 0
        whole = msgspec.structs.replace(whole, generation=number, replaces=replaced)
        fs.sync_folder(folder)
        fs.write_whole(target, pack(whole), exclusive=True)
    return place.read_manifest(target)


def unfinished(folder: Path, count: int, missing: Sequence[int]) -> RecordsError:
    """Say which parts are missing."""
    shown = ", ".join(map(str, missing[:20])) + (f" and {len(missing) - 20} more" if len(missing) > 20 else "")
    return RecordsError(
        f"the set is unfinished: {len(missing)} of {count} parts are missing: {shown}",
        where=str(folder),
        fix="finish them, or open with partial=True",
    )
