"""Names in a record set's directory: which file belongs to whom, which is the newest, which is left over.

    manifest.G           a generation, whole
    parts.G              how many parts generation G is declared to have
    part.G.00003         the manifest of one part
    PREFIX.00000.arrow   a shard;  PREFIX.index, PREFIX.length.npy, ...: what belongs to the shards of one writer
    .PREFIX.life         held by the writer while it lives

Decides these names and what may be removed. Knows no content of a shard.
"""

import os
import re
import secrets
from pathlib import Path

from thalweg.core.errors import RecordsError
from thalweg.store import fs
from thalweg.store.records.manifest import Manifest, unpack

_MANIFEST, _PARTS = re.compile(r"manifest\.(\d+)"), re.compile(r"parts\.(\d+)")
_PART = re.compile(r"part\.(\d+)\.(\d{5})")
_HALF = re.compile(  # on its way to one of these, or to the last below
    r"\.(?:(?:manifest|parts|part)\.[\d.]+\.[0-9a-f]{16}\.tmp|(?:data|part|merged)-[\w-]+\.life\.new)"
)
_OWNED = re.compile(r"((?:data|part|merged)-[\w-]+)\.(?:\d{5}\.arrow(?:\.tmp)?|index|[\w.-]+\.npy|quarantine\.jsonl)")


def new_prefix(stem: str = "data") -> str:
    """Give a prefix that nobody else has: 64 random bits."""
    return f"{stem}-{secrets.token_hex(8)}"


def make_folder(folder: Path) -> None:
    """Make the directory of a set.

    Raises:
        RecordsError: there is a file in its way.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise RecordsError(
            "a file is in the way of the directory of a record set", where=str(folder), fix="choose another path"
        ) from error


def life_of(folder: Path, prefix: str) -> Path:
    """Name the lock file of a writer."""
    return folder / f".{prefix}.life"


def manifest_path(folder: Path, generation: int) -> Path:
    """Name the manifest of a generation."""
    return folder / f"manifest.{generation}"


def declaration_path(folder: Path, generation: int) -> Path:
    """Name the declaration of a generation's parts."""
    return folder / f"parts.{generation}"


def part_path(folder: Path, generation: int, part: int) -> Path:
    """Name the manifest of a part."""
    return folder / f"part.{generation}.{part:05d}"


def _numbers(folder: Path, stem: str) -> list[int]:
    """List the numbers of the files `stem.N`: one listing and no Path for each of 10,000 shards."""
    if not folder.is_dir():
        return []
    names = os.listdir(folder)  # noqa: PTH208  (a Path for each of 10,000 shards takes 50 ms)
    return sorted(int(n[len(stem) :]) for n in names if n.startswith(stem) and n[len(stem) :].isdigit())


def generations(folder: Path) -> list[int]:
    """List the generations that are whole, oldest first."""
    return _numbers(folder, "manifest.")


def declarations(folder: Path) -> list[int]:
    """List the generations whose parts are declared."""
    return _numbers(folder, "parts.")


def read_manifest(path: Path) -> Manifest:
    """Read a manifest from a local file."""
    try:
        return unpack(path.read_bytes(), Manifest, str(path))
    except FileNotFoundError as error:
        raise RecordsError("no such generation of the record set", where=str(path), fix="open the newest") from error


def files_of(manifest: Manifest) -> set[str]:
    """List the files that a manifest names."""
    facts = {f.file.name for f in manifest.facts.values() if f.file is not None}
    return {s.name for s in manifest.shards} | {f.name for f in manifest.indexes} | facts


def rejected_of(manifest: Manifest) -> set[str]:
    """List the files that hold rows a manifest counts as quarantined, of each writer one at most."""
    if not manifest.quarantined:
        return set()
    return {f"{index.name.removesuffix('.index')}.quarantine.jsonl" for index in manifest.indexes}


def is_ours(name: str) -> bool:
    """Whether a file of this name belongs to record sets, or is hidden."""
    return name.startswith(".") or any(p.fullmatch(name) for p in (_MANIFEST, _PARTS, _PART, _OWNED))


def drop_parts(folder: Path, generation: int, keep: set[str]) -> None:
    """Remove the declaration, the parts and their files of a generation that was replaced."""
    for path in list(folder.iterdir()):
        match = _PART.fullmatch(path.name)
        if match and int(match[1]) == generation:
            for name in files_of(read_manifest(path)) - keep:
                (folder / name).unlink(missing_ok=True)
            path.unlink(missing_ok=True)
    declaration_path(folder, generation).unlink(missing_ok=True)


def sweep(folder: Path) -> list[str]:
    """Remove what dead writers left, and generations that were replaced.

    Returns:
        The names removed.
    """
    removed = _drop_replaced(folder)
    names = sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []
    lives = {m[1]: n for n in names if (m := re.fullmatch(r"\.((?:data|part|merged)-[\w-]+)\.life", n))}
    dead = {prefix for prefix, name in lives.items() if not fs.is_alive(folder / name)}
    if dead:
        # Manifests are read after the lives: a writer that committed in between is named by now.
        named: set[str] = set()
        for name in (p.name for p in folder.iterdir()):
            if _MANIFEST.fullmatch(name) or _PART.fullmatch(name):
                manifest = read_manifest(folder / name)
                named |= files_of(manifest) | rejected_of(manifest)
        found = [(n, m[1]) for n in names if (m := _OWNED.fullmatch(n))]
        removed += [n for n, prefix in found if prefix in dead and n not in named]
        removed += [lives[prefix] for prefix in sorted(dead)]
    removed += [n for n in names if _HALF.fullmatch(n) and not fs.is_alive(folder / n)]
    for name in removed:
        (folder / name).unlink(missing_ok=True)
    return removed


def _drop_replaced(folder: Path) -> list[str]:
    """Remove generations before one that replaces them; in an order that can be broken off and begun again."""
    numbers = generations(folder)
    if not numbers:
        return []
    newest = read_manifest(manifest_path(folder, numbers[-1]))
    since = newest.replaces
    old = [g for g in numbers if g < since]
    removed: list[str] = []
    for number in old:
        path = manifest_path(folder, number)
        manifest = read_manifest(path)
        gone = (files_of(manifest) | rejected_of(manifest)) - files_of(newest) - rejected_of(newest)
        for name in sorted(gone):
            (folder / name).unlink(missing_ok=True)
            removed.append(name)
        path.unlink(missing_ok=True)
        removed.append(path.name)
    for number in declarations(folder):
        if number < since:
            drop_parts(folder, number, files_of(newest))
    return removed
