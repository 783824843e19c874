"""What lies where a record set is expected and is none, and what to type.

Decides the words. What a format is, is in `store.formats`.
"""

from pathlib import Path

import msgspec

from thalweg.core.errors import InputError, RecordsError
from thalweg.store.records import place

_GO_ON = "run the same `thalweg convert` again: it goes on where it stopped"


def absent(path: Path) -> RecordsError:
    """Say that there is no record set, and what there is instead."""
    from thalweg.store.formats import format as formats  # noqa: PLC0415  (they open record sets themselves)

    what, fix = "there is no record set", "check the path, or write it first"
    if not path.exists():
        return RecordsError(what, where=str(path), fix="check the path; a set is a directory")
    left = _unfinished_conversion(path)
    if left is not None:
        return RecordsError(f"{what}, but a conversion that is not finished: {left}", where=str(path), fix=_GO_ON)
    try:
        form = formats.detect(str(path))
    except InputError:
        form = None
    below = [path] if path.is_file() else sorted(p for p in path.iterdir() if not p.name.startswith("."))
    sets = [p for p in below if p.is_dir() and place.generations(p)]
    files = [p for p in below if p.is_file()]
    if form is not None:
        what += f", but data in the format {form}"
        fix = f"`thalweg convert {path} TARGET` makes a set of it"
        if form in ("jsonl", "parquet"):
            first = next((p for p in files if formats.by_name(p.name) == form), path)
            fix = f"`thalweg inspect {first}` shows it, tw.from_files({str(path)!r}) reads it as it is, " + fix
    elif sets:
        what, fix = f"{what}, but sets below it", f"name one of them, such as {sets[0]}"
    elif files:
        what += f", but files such as {files[0].name}"
        fix = (
            f"check the path; of text or CSV: tw.from_files({str(files[0])!r}); `thalweg convert --help` names formats"
        )
    return RecordsError(what, where=str(path), fix=fix)


def _unfinished_conversion(path: Path) -> str | None:
    """Count the pieces of a folder that `thalweg convert` began; None: it did not, or all are there."""
    from thalweg.store.formats.convert import NOTE  # noqa: PLC0415

    note = path / NOTE
    if not note.is_file():
        return None
    pieces = len(msgspec.json.decode(note.read_bytes())["inputs"])
    there = sum(1 for p in path.iterdir() if p.name.startswith("part-") and not p.name.endswith(".tmp"))
    return None if there >= pieces else f"{there} of {pieces} pieces are there"
