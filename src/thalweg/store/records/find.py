"""Which generation of a set is opened, and what is said where there is none.

Decides that: the newest whole one, an older one by number, or the parts that are there. Knows no row.
"""

from pathlib import Path

import msgspec
import numpy as np

from thalweg.core.errors import RecordsError
from thalweg.store.records import place
from thalweg.store.records.absent import absent
from thalweg.store.records.declared import CONVERT, unfinished
from thalweg.store.records.generation import fact_pieces, joined
from thalweg.store.records.manifest import Manifest, unpack
from thalweg.store.records.opened import Opened, Source
from thalweg.store.records.parts import missing_parts
from thalweg.store.records.reread import Here
from thalweg.store.remote import is_url


def find(source: Source, generation: int | None, *, partial: bool) -> Opened:
    """Find a generation of a set and read its manifest.

    Raises:
        RecordsError: there is none, or it is unfinished.
    """
    if is_url(source.path):
        if partial:
            raise RecordsError("partial=True needs a directory", where=source.path, fix="open it where it is written")
        from thalweg.store.records.far import find_far  # noqa: PLC0415  (asks for fsspec)

        return find_far(source, generation)
    folder = Path(source.path)
    if not folder.is_dir():
        raise absent(folder)
    whole = place.generations(folder)
    if generation is not None or (whole and not partial):
        manifest = place.read_manifest(place.manifest_path(folder, whole[-1] if generation is None else generation))
        return Opened(source, folder, manifest)
    declared = place.declarations(folder)
    if not declared:
        raise absent(folder)
    count, missing = missing_parts(folder, declared[-1])
    if missing and not partial:
        raise unfinished(folder, count, missing)
    if not missing and not partial:
        raise RecordsError(
            "all parts are there, but they are not merged", where=str(folder), fix=f"merge_parts(path); {CONVERT}"
        )
    paths = [place.part_path(folder, declared[-1], k) for k in range(count) if k not in set(missing)]
    parts = [unpack(p.read_bytes(), Manifest, str(p)) for p in paths]
    if whole:
        parts.insert(0, place.read_manifest(place.manifest_path(folder, whole[-1])))
    return _unmerged(source, folder, parts)


def _unmerged(source: Source, folder: Path, parts: list[Manifest]) -> Opened:
    if not parts:
        raise RecordsError("no part of the set is there", where=str(folder), fix="wait for the first part")
    names = dict.fromkeys(name for p in parts for name in p.facts)
    facts = {
        name: np.concatenate([piece for p in parts for piece in fact_pieces(Here(folder), p.rows, p.facts.get(name))])
        for name in names
    }
    return Opened(
        source, folder, msgspec.structs.replace(joined(parts, Here(folder)), generation=parts[-1].generation), facts
    )
