"""Outputs in folders of an object store: sent as uploads that nobody sees, which appear when their rank is published.

Decides the key of each file, and what is removed when a generation ends. A key belongs to one generation for ever:
from generation 1 on, `.gN` stands before the first dot of a name. Knows no ledger.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import xxhash

from thalweg.core.errors import IntegrityError
from thalweg.run.objects import Objects, is_far

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from thalweg.run.logging_dir import Attempt, Made

NOTED = "uploads"  # file of an attempt's directory: a line for each upload it has begun


@dataclass
class Uploads:
    """The remote output folders of a run.

    Args:
        folders: URL -> options of the fsspec file system.
    """

    folders: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def _at(self, final: str) -> Objects:
        return Objects(final, dict(self.folders.get(final) or {}))

    def send(self, made: Made, attempt: Attempt, generation: int) -> list[dict[str, Any]]:
        """Upload what an attempt made for remote folders; gives the entries of its record.

        Each upload is noted in the attempt's directory before its bytes are sent: whoever removes the directory of an
        attempt that was killed ends them (`end_noted`), also those whose names tell no rank.
        """
        entries: list[dict[str, Any]] = []
        try:
            for final in filter(is_far, made.stages):
                store = self._at(final)
                for name, path in files_below(made.stages[final]):
                    size, summed = made.sums.get((final, name), (-1, None))
                    _refuse_other_size(size, path)
                    key = name if final in made.kept else named(name, generation)
                    entry: dict[str, Any] = {"folder": final, "name": key, "to": f"{final}/{key}"}
                    entry |= {"bytes": path.stat().st_size, "xxh3": summed or checksum(str(path))}
                    entry["upload"], entry["tags"] = store.upload(
                        key, path, {"attempt": attempt.id}, partial(_note, attempt.path, final, key)
                    )
                    entries.append(entry)
        except BaseException:
            self.drop(entries)
            raise
        return entries

    def end_noted(self, attempt: Path) -> None:
        """End the uploads that a removed attempt has begun; those that are complete or ended are fine."""
        with suppress(FileNotFoundError):
            for line in (attempt / NOTED).read_bytes().splitlines():
                with suppress(msgspec.DecodeError):  # killed while it noted one
                    folder, name, upload = msgspec.json.decode(line, type=tuple[str, str, str])
                    self._at(folder).abort(name, upload)

    def complete(self, entries: list[dict[str, Any]], attempt: str) -> str | None:
        """Let uploads appear; gives the URL of the first that can't, because a newer generation ended it."""
        for e in entries:
            if not self._at(e["folder"]).complete(e["name"], e["upload"], e["tags"], {"attempt": attempt}):
                return str(e["to"])
        return None

    def drop(self, entries: list[dict[str, Any]]) -> None:
        """End the uploads of an attempt that does not count."""
        for e in entries:
            self._at(e["folder"]).abort(e["name"], e["upload"])

    def erase(self, entries: list[dict[str, Any]]) -> None:
        """End the uploads of a commit of an older generation, then remove what has appeared of them."""
        self.drop(entries)
        for e in entries:
            self._at(e["folder"]).delete(e["name"])

    def remove_stale(self, patterns: Mapping[str, list[str]], entries: list[dict[str, Any]]) -> None:
        """Remove objects of this rank's names that its commit does not name."""
        mine = {e["to"] for e in entries}
        for final in filter(is_far, patterns):
            rules = [re.compile(p) for p in patterns[final]]
            store = self._at(final)
            for name, _, _ in list(store.names("")):
                if f"{final}/{name}" not in mine and any(r.fullmatch(name) for r in rules):
                    store.delete(name)

    def fresh(self, final: str) -> bool:
        """Say whether a folder holds nothing. One request."""
        return next(iter(self._at(final).names("")), None) is None

    def tidy(self, finals: list[str], marked: set[int], commit_of: Callable[[int], dict[str, Any] | None]) -> None:
        """End uploads that killed attempts of complete ranks have left. One request a folder where there are none."""
        for final in filter(is_far, finals):
            store = self._at(final)
            for name, upload in list(store.uploads()):
                ranks = {int(digits) for digits in re.findall(r"\d{5,}", name)} & marked
                if any(_belongs(commit_of(rank), final, name) for rank in ranks):
                    store.abort(name, upload)


def _note(attempt: Path, folder: str, name: str, upload: str) -> None:
    with (attempt / NOTED).open("ab") as file:
        file.write(msgspec.json.encode((folder, name, upload)) + b"\n")


def _refuse_other_size(size: int, path: Path) -> None:
    if size not in {-1, path.stat().st_size}:
        raise IntegrityError(f"{size} bytes were written and {path.stat().st_size} are there", where=str(path))


def _belongs(commit: dict[str, Any] | None, final: str, name: str) -> bool:
    if commit is None:
        return False
    plain = re.sub(r"\.g\d+(?=\.|$)", "", name, count=1)
    rules = commit.get("patterns", {}).get(final, ())
    return any(f["to"] == f"{final}/{name}" for f in commit["files"]) or any(
        re.fullmatch(p, plain) or re.fullmatch(p, name) for p in rules
    )


def named(name: str, generation: int) -> str:
    """Give the name of a file in a generation: `a/00000.jsonl.zst` is `a/00000.g1.jsonl.zst` in generation 1."""
    if not generation:
        return name
    folder, slash, base = name.rpartition("/")
    stem, dot, ending = base.partition(".")
    return f"{folder}{slash}{stem}.g{generation}{dot}{ending}"


def files_below(stage: str) -> list[tuple[str, Path]]:
    """List (name, path) of all files in a staging directory, sorted by name."""
    found = [Path(folder) / name for folder, _, names in os.walk(stage) for name in names]
    return sorted((str(path.relative_to(stage)), path) for path in found)


def checksum(path: str) -> str:
    """Sum the bytes of a file: xxh3_64 as hexadecimal digits."""
    sum64 = xxhash.xxh3_64()
    with open(path, "rb") as file:  # noqa: PTH123
        while block := file.read(1 << 20):
            sum64.update(block)
    return sum64.hexdigest()
