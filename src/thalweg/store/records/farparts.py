"""Parts of a record set behind a URL, made into one set by whoever comes when all are there.

Decides what is read, copied and removed when parts are merged there. How parts get there is the business of others.
"""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from xxhash import xxh3_64_hexdigest

from thalweg.core.errors import RecordsError
from thalweg.store.records import place
from thalweg.store.records.declared import Declaration, unfinished
from thalweg.store.records.far import NOTE, FarFiles
from thalweg.store.records.farsweep import STAGE, Writing, sweep, sweep_stages
from thalweg.store.records.farwrite import Both, copy_files
from thalweg.store.records.generation import combine
from thalweg.store.records.manifest import Manifest, pack, unpack
from thalweg.store.records.opened import Source
from thalweg.store.records.pieces import side_by_side
from thalweg.store.remote import Remote


def home_of(url: str, storage_options: Mapping[str, Any]) -> FarFiles:
    """Give the set behind a URL; what is read of it is asked for by ranges, and nothing is kept."""
    return FarFiles(Source(url, io="pread", storage_options=dict(storage_options)))


def _newest(home: FarFiles) -> int:
    """Give the newest whole generation, -1 where there is none."""
    try:
        return home.newest(fresh=True)
    except FileNotFoundError:
        return -1


def declared_far(home: FarFiles, generation: int) -> int | None:
    """Give the declared number of parts of a generation, None where none was declared."""
    name = place.declaration_path(Path(), generation).name
    try:
        return unpack(home.remote.read(name), Declaration, f"{home.source.path}/{name}").parts
    except FileNotFoundError:
        return None


def missing_far(home: FarFiles, generation: int, count: int) -> list[int]:
    """List the parts of a generation that are not there yet: one listing."""
    there = set(home.remote.named(f"part.{generation}."))
    return [k for k in range(count) if place.part_path(Path(), generation, k).name not in there]


def declare_far_parts(url: str, parts: int, storage_options: Mapping[str, Any], *, append: bool) -> int:
    """Say how many parts the next generation of a set behind a URL has; see `declare_parts`.

    Raises:
        RecordsError: another number is declared already, or the URL is in use and append is not said.
    """
    home = home_of(url, storage_options)
    newest = _newest(home)
    number = newest + 1
    found = declared_far(home, number)
    if found is None and newest >= 0 and not append:
        raise RecordsError("the path is in use", where=url, fix="append=True, or another URL")
    target = place.declaration_path(Path(), number).name
    if found is None:
        home.remote.create(target, pack(Declaration(parts, number)))
        found = declared_far(home, number)
    if found != parts:
        raise RecordsError(
            f"{found} parts are declared, {parts} asked for",
            where=f"{url}/{target}",
            fix="use the declared number, or start a new set",
        )
    return number


class FarPart:
    """Where the files of one part lie until they are copied behind a URL.

    Args:
        url: of the set.
        storage_options: for fsspec.
    """

    def __init__(self, url: str, storage_options: Mapping[str, Any]) -> None:
        self.home = home_of(url, storage_options)
        sweep(self.home.remote)
        sweep_stages()
        self.stage = Path(tempfile.mkdtemp(prefix=STAGE))

    def publish(self, own: Manifest, names: Sequence[str], prefix: str) -> bool:
        """Copy the files, then let the part's manifest appear; False where the part was there already."""
        assert own.part is not None
        remote, writing = self.home.remote, Writing(self.home.remote, prefix)
        try:
            writing.say()
            copy_files(remote, self.stage, sorted(names), writing)
            writing.settle()
            first = remote.create(place.part_path(Path(), own.generation, own.part).name, pack(own))
        except BaseException:
            writing.give_up()
            raise
        if not first:
            for name in names:
                remote.remove(name)
        writing.end()
        return first

    def clear(self) -> None:
        """Remove the local files. Twice is fine."""
        shutil.rmtree(self.stage, ignore_errors=True)


def merge_newest_far(url: str, storage_options: Mapping[str, Any]) -> Manifest:
    """Make the newest declared generation behind a URL out of its parts; see `merge_parts`.

    Raises:
        RecordsError: nothing is declared, or parts are missing; they are named.
    """
    home = home_of(url, storage_options)
    newest = _newest(home)
    count = declared_far(home, newest + 1)
    if count is None:
        if newest >= 0 and declared_far(home, newest) is not None:
            return home.manifest(newest)  # merged already
        raise RecordsError("no parts are declared", where=url, fix="declare_parts(path, n) first")
    missing = missing_far(home, newest + 1, count)
    if missing:
        raise unfinished(url, count, missing)
    base = None if newest < 0 else home.manifest(newest)
    return merge_far_parts(url, count, newest + 1, storage_options, base=base)


def merge_far_parts(
    url: str, parts: int, generation: int, storage_options: Mapping[str, Any], *, base: Manifest | None = None
) -> Manifest:
    """Make a generation of a set behind a URL out of its parts. Any process may, any number of times, at once.

    Args:
        url: of the set.
        parts: how many there are.
        generation: of the set; without a base it replaces all older ones.
        storage_options: for fsspec.
        base: the generation whose rows come before those of the parts; None: none.

    Raises:
        RecordsError: parts are missing.
    """
    home = home_of(url, storage_options)
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
        before, replaced = ([], generation) if base is None else ([base], base.replaces)
        whole = combine([*before, *found], Both(Path(stage), home), prefix, sync=False)
        whole = msgspec.structs.replace(whole, generation=generation, replaces=replaced)
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
