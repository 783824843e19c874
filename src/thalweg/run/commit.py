"""How the work of one attempt becomes visible: seal, sync, commit, publish, mark, collect.

Decides the order of these acts, which makes a crash between any two of them harmless (the protocol is modelled and
searched; see docs/pipeline.md). Every outside effect is one link or rename with an end in the attempt's own
directory. Knows no pipeline.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

import msgspec

from thalweg.core.errors import IntegrityError, RunError
from thalweg.run.ledger import Ledger, fenced, remove
from thalweg.run.objects import is_far
from thalweg.run.uploads import NOTED, checksum
from thalweg.store.claim import fsync_dir, fsync_file, link_once, seal, write_durable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from thalweg.run.logging_dir import Attempt, Made
    from thalweg.run.uploads import Uploads


def record(attempt: Attempt, made: Made, far: list[dict[str, Any]]) -> dict[str, Any]:
    """Seal and sync everything an attempt has made and write its record.

    Args:
        attempt: the attempt.
        made: what it made.
        far: entries of what it has uploaded.

    Returns: the record: attempt, rank, files with their final paths, sizes and checksums.
    """
    files: list[dict[str, Any]] = []
    for final, stage in made.stages.items():
        if is_far(final):
            continue
        for folder, names in _tree(stage):
            for name in names:
                source = f"{folder}/{name}"
                seal(source)
                fsync_file(source)
                relative = os.path.relpath(source, stage)
                size, summed = made.sums.get((final, relative), (-1, None))
                real = os.stat(source).st_size  # noqa: PTH116
                if size not in {-1, real}:
                    raise IntegrityError(f"{size} bytes were written and {real} are there", where=source)
                summed = summed or checksum(source)
                files.append({"from": source, "to": f"{final}/{relative}", "bytes": real, "xxh3": summed})
            fsync_dir(folder)
    entry = {"rank": attempt.rank, "attempt": attempt.id, "files": sorted(files, key=lambda f: f["to"]), "far": far}
    entry |= {"folders": [f for f in made.stages if not is_far(f)], "patterns": dict(made.patterns)}
    write_durable(attempt.path / "stats", msgspec.json.encode(made.stats))
    write_durable(attempt.path / "mark", b"")
    write_durable(attempt.path / "rec", msgspec.json.encode(entry))
    for place in attempt.places:
        fsync_dir(place)
        fsync_dir(place.parent)
    return entry


def _tree(stage: str) -> list[tuple[str, list[str]]]:
    return [(folder, sorted(names)) for folder, _, names in os.walk(stage, topdown=False)]


def commit(ledger: Ledger, attempt: Attempt) -> bool:
    """Let a recorded attempt count, if no other of its rank does. True where it does.

    Raises:
        RunError: a newer generation has moved this one away.
    """
    target = ledger.dir("commits") / f"{attempt.rank:05d}"
    try:
        if link_once(attempt.path / "rec", target):
            return True
    except FileNotFoundError as error:
        raise fenced(ledger.root) from error
    theirs = ledger.commit_of(attempt.rank)
    return theirs is not None and theirs["attempt"] == attempt.id


def publish(ledger: Ledger, rank: int, uploads: Uploads) -> None:
    """Put the files of a rank's commit in their places and mark the rank; any process may, at any time.

    Raises:
        RunError: a newer generation has moved this one away.
        IntegrityError: a file is neither in the attempt nor, whole, in its place.
    """
    entry = ledger.commit_of(rank)
    if entry is None:
        raise fenced(ledger.root)
    fsync_dir(ledger.dir("commits"))
    home = ledger.attempts / f"{rank:05d}.{entry['attempt']}"
    if rank in ledger.marked():
        collect(ledger, rank, uploads)
        return
    for file in entry["files"]:
        _place(file)
    if uploads.complete(entry["far"], entry["attempt"]) is not None:
        raise fenced(ledger.root)
    _set_aside(ledger, rank, entry, home)
    if not ledger.record.get("fresh_outputs", False):
        uploads.remove_stale(entry["patterns"], entry["far"])
    _move(home / "stats", ledger.dir("stats") / f"{rank:05d}.json")
    for folder in {os.path.dirname(f["to"]) for f in entry["files"]} | {str(ledger.dir("stats"))}:  # noqa: PTH120
        fsync_dir(folder)
    _move(home / "mark", ledger.dir("completions") / f"{rank:05d}")
    fsync_dir(ledger.dir("completions"))
    (home / NOTED).unlink(missing_ok=True)  # all complete
    collect(ledger, rank, uploads)


def _place(file: Mapping[str, Any]) -> None:
    target = file["to"]
    os.makedirs(os.path.dirname(target), exist_ok=True)  # noqa: PTH103, PTH120
    try:
        os.rename(file["from"], target)  # noqa: PTH104
    except FileNotFoundError:
        _check_placed(file, target)


def _check_placed(file: Mapping[str, Any], target: str) -> None:
    try:
        right = os.stat(target).st_size == file["bytes"] and checksum(target) == file["xxh3"]  # noqa: PTH116
    except FileNotFoundError:
        right = False
    if not right:
        raise IntegrityError(
            "a finished file is missing, or not whole, in its place",
            where=target,
            fix="start the run anew: skip_completed=False, or --adopt",
        )


def _move(source: Path, target: Path) -> None:
    try:
        source.rename(target)
    except FileNotFoundError:
        if not target.exists():
            raise fenced(target.parent.parent) from None


def _set_aside(ledger: Ledger, rank: int, entry: Mapping[str, Any], home: Path) -> None:
    """Take files of this rank that the commit does not name out of the output folders, into the attempt."""
    named = {f["to"] for f in entry["files"]}
    ours = tuple(f"{folder}/" for folder in entry["folders"])
    older = {f["to"] for old in ledger.old_commits(rank) for f in old["files"]} - named
    stale = {path for path in older if path.startswith(ours)}
    if not ledger.record.get("fresh_outputs", False):
        for folder in entry["folders"]:
            stale |= _matching(folder, entry["patterns"].get(folder, [])) - named
    for number, path in enumerate(sorted(stale)):
        aside = home / "stale"
        try:
            aside.mkdir(exist_ok=True)
            os.rename(path, aside / str(number))  # noqa: PTH104
        except FileNotFoundError:
            continue
        except OSError as error:
            raise RunError(f"an older output cannot be moved away: {error}", where=path, fix="remove it") from error


def _matching(folder: str, patterns: list[str]) -> set[str]:
    rules = [re.compile(p) for p in patterns]
    found: set[str] = set()
    for place, folders, names in os.walk(folder):
        folders[:] = [f for f in folders if not f.startswith(".")]
        for name in names:
            path = f"{place}/{name}"
            if any(rule.fullmatch(os.path.relpath(path, folder)) for rule in rules):
                found.add(path)
    return found


def collect(ledger: Ledger, rank: int, uploads: Uploads) -> None:
    """Remove what attempts of a marked rank have left, uploads included."""
    for path in ledger.attempts_of(rank):
        uploads.end_noted(path)
        remove(path)


def sweep(ledger: Ledger, uploads: Uploads) -> list[int]:
    """Publish every commit that has no mark and remove what attempts of marked ranks left. Returns ranks published."""
    done = sorted(ledger.committed() - ledger.marked())
    for rank in done:
        publish(ledger, rank, uploads)
    left = ledger.all_attempts()
    for rank in left.keys() & ledger.marked():
        for path in left[rank]:
            uploads.end_noted(path)
            remove(path)
    return done
