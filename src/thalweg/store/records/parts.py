"""Many writers of one set: the number of parts is declared first, each part appears whole, anyone merges.

Decides when a set of parts is complete. Knows no job system: ranks, processes and tasks are all "parts".
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
from xxhash import xxh3_64_hexdigest

from thalweg.core.errors import RecordsError
from thalweg.core.sizes import to_bytes
from thalweg.store import fs
from thalweg.store.records import place
from thalweg.store.records.declared import Declaration, unfinished
from thalweg.store.records.generation import combine
from thalweg.store.records.manifest import Manifest, checked_lineage, pack, unpack
from thalweg.store.records.part import PartFiles, parse_schema
from thalweg.store.records.reread import Here
from thalweg.store.records.rowwriter import RowWriter
from thalweg.store.remote import is_url


def declare_parts(
    path: str | Path, parts: int, *, append: bool = False, storage_options: Mapping[str, Any] | None = None
) -> int:
    """Say how many parts the next generation of a set has, before the first of them is written.

    Any process may call it, any number of times, at once.

    Args:
        path: directory of the set, made if it is not there; or a URL that fsspec knows.
        parts: number of parts, at least 1.
        append: the parts follow the rows that are there.
        storage_options: for fsspec.

    Returns:
        The number of the generation.

    Raises:
        RecordsError: another number is declared already, or the path is in use and append is not said.
    """
    if parts < 1:
        raise RecordsError(f"{parts} parts", fix="declare at least one")
    if is_url(str(path)):
        far = import_module("thalweg.store.records.farparts")  # asks for fsspec
        generation: int = far.declare_far_parts(str(path), parts, storage_options or {}, append=append)
        return generation
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
        path: directory of the set, or a URL: the files are then written on this machine and copied at the end.
        part: number of this part, 0 to parts - 1.
        parts: number of parts; declared here if nobody has.
        folder: where to put the files instead of `path`. The caller then moves `files` into `path`, all of them
            before or with the last one, and the names depend on the part alone.
        schema, shard_bytes, vocab_size, facts, lineage, sync: as for `create_records`.
        append: the parts follow the rows that are there.
        generation: taken as declared; `path` is not looked at.
        storage_options: for fsspec.

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
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if not 0 <= part < parts:
            raise RecordsError(f"part {part} of {parts}", fix=f"number parts from 0 to {parts - 1}")
        self.path, self.part, self.parts = Path(path), part, parts
        options = dict(storage_options or {})
        if generation is None:
            generation = declare_parts(path, parts, append=append, storage_options=options)
        self.generation = generation
        self._away = folder is not None
        self._far: Any = None
        if folder is None and is_url(str(path)):
            self._far = import_module("thalweg.store.records.farparts").FarPart(str(path), options)
        self.folder = Path(folder) if folder is not None else self.path if self._far is None else self._far.stage
        self.folder.mkdir(parents=True, exist_ok=True)
        stem = f"part-{self.generation}-{part:05d}"
        prefix = self._prefix = stem if self._away else place.new_prefix(stem)
        self._lineage = checked_lineage(lineage)
        if vocab_size is not None:
            self._lineage.setdefault("vocab_size", vocab_size)
        life = None if self._away else fs.Life(place.life_of(self.folder, prefix), new=True).begin()
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
        if self._far is not None:
            if self._far.publish(own, self._files.names, self._prefix):
                self.files = [*self._files.names, target.name]
            return
        if self._files.sync:
            fs.sync_folder(self.folder)
        if fs.write_whole(target, pack(own), exclusive=not self._away, sync=self._files.sync):
            self.files = [*self._files.names, target.name]
        else:
            self._files.abandon()

    def _end(self) -> None:
        super()._end()
        if self._far is not None:
            self._far.clear()


def missing_parts(folder: Path, generation: int) -> tuple[int, list[int]]:
    """Give the declared number of parts of a generation, and which of them are not there."""
    target = place.declaration_path(folder, generation)
    declared = unpack(target.read_bytes(), Declaration, str(target)).parts
    there = {p.name for p in folder.iterdir()}
    return declared, [k for k in range(declared) if place.part_path(folder, generation, k).name not in there]


def merge_parts(path: str | Path, *, storage_options: Mapping[str, Any] | None = None) -> Manifest:
    """Make the newest declared generation out of its parts. Any process may, any number of times, at once.

    Args:
        path: directory of the set, or a URL.
        storage_options: for fsspec.

    Returns:
        The manifest of that generation.

    Raises:
        RecordsError: parts are missing; they are named.
    """
    if is_url(str(path)):
        far = import_module("thalweg.store.records.farparts")  # asks for fsspec
        made: Manifest = far.merge_newest_far(str(path), storage_options or {})
        return made
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
    with fs.Life(place.life_of(folder, scratch), new=True):
        whole = combine([*base, *parts], Here(folder), prefix, sync=True, scratch=scratch)
        replaced = base[0].replaces if base else 0
        whole = msgspec.structs.replace(whole, generation=number, replaces=replaced)
        fs.sync_folder(folder)
        fs.write_whole(target, pack(whole), exclusive=True)
    return place.read_manifest(target)
