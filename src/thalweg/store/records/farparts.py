"""Parts of a record set behind a URL, made into one set by whoever comes when all are there.

Decides what is read, copied and removed when parts are merged there. How parts get there is the business of others.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from xxhash import xxh3_64_hexdigest

from thalweg.core.errors import RecordsError
from thalweg.store.records import place
from thalweg.store.records.far import NOTE, FarFiles
from thalweg.store.records.farwrite import Both
from thalweg.store.records.generation import combine
from thalweg.store.records.manifest import Manifest, pack, unpack
from thalweg.store.records.opened import Source
from thalweg.store.records.pieces import side_by_side
from thalweg.store.remote import Remote


def merge_far_parts(url: str, parts: int, generation: int, storage_options: Mapping[str, Any]) -> Manifest:
    """Make a generation of a set behind a URL out of its parts. Any process may, any number of times, at once.

    Args:
        url: of the set.
        parts: how many there are.
        generation: of the set; it replaces all older ones.
        storage_options: for fsspec.

    Raises:
        RecordsError: parts are missing.
    """
    home = FarFiles(Source(url, io="pread", storage_options=dict(storage_options)))
    remote, target = home.remote, place.manifest_path(Path(), generation).name
    try:
        return unpack(remote.read(target), Manifest, f"{url}/{target}")
    except FileNotFoundError:
        pass
    names = [place.part_path(Path(), generation, k).name for k in range(parts)]
    try:
        raw = list(side_by_side(remote.read, names))
    except FileNotFoundError as error:
        raise RecordsError("a part is missing", where=str(error), fix="finish the ranks that make the parts") from error
    found = [unpack(data, Manifest, f"{url}/{name}") for data, name in zip(raw, names, strict=True)]
    # The name follows from the content, so that two mergers write the same bytes under the same names.
    prefix = f"merged-{generation}-{xxh3_64_hexdigest(b''.join(raw))}"
    with tempfile.TemporaryDirectory(prefix="thalweg-merge-") as stage:
        whole = combine(found, Both(Path(stage), home), prefix, sync=False)
        whole = msgspec.structs.replace(whole, generation=generation, replaces=generation)
        made = sorted(n for n in place.files_of(whole) if (Path(stage) / n).exists())
        list(side_by_side(lambda name: remote.write(name, Path(stage) / name), made))
        remote.create(target, pack(whole))
    remote.write_bytes(NOTE, str(generation).encode())
    home.forget()
    return unpack(remote.read(target), Manifest, f"{url}/{target}")


def drop_far_sets(url: str, generation: int, storage_options: Mapping[str, Any]) -> None:
    """Take away that sets of generations before this one can be opened: their parts go."""
    remote = Remote(url, storage_options)
    for number in range(generation):
        remote.remove(place.manifest_path(Path(), number).name)
    if generation:
        remote.remove(NOTE)
