"""From one format to another: in parallel, in the order of the source, resumable, whole or not there.

Decides how the source is cut into pieces and what is skipped because it is done. To records each piece is a part of
the set; to a format of many files each piece is a file; to a format of one file the pieces are written in turn.
Knows no bytes of any format.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgspec

from thalweg.core.errors import ConfigError, InputError, RecordsError
from thalweg.core.sample import INPUT_IDS, Sample
from thalweg.store import fs
from thalweg.store.formats import format as formats
from thalweg.store.formats import records_set
from thalweg.store.formats.format import Unit
from thalweg.store.quarantine import Quarantine
from thalweg.store.records import place
from thalweg.store.records.kinds import NULL, STANDARD, join, of
from thalweg.store.records.manifest import Manifest, unpack
from thalweg.store.records.parts import PartWriter, declare_parts, merge_parts

MOST_PIECES = 1024
NOTE = ".thalweg-convert.json"  # in a folder of many files: what they are made from


@dataclass
class Converted:
    """What a conversion did. `skipped`: pieces done before; `left_out`: columns without a place in the target."""

    rows: int = 0
    tokens: int = 0
    pieces: int = 0
    skipped: int = 0
    quarantined: int = 0
    left_out: list[str] = field(default_factory=list[str])


@dataclass(frozen=True)
class Job:
    """One piece: units of the source, and where its rows go."""

    source: str
    units: tuple[Unit, ...]
    target: str
    path: str
    number: int
    pieces: int
    schema: dict[str, str]
    quarantine: str | None
    inputs: dict[str, int]


@dataclass(frozen=True)
class Done:
    """What became of a piece."""

    rows: int
    tokens: int
    quarantined: int = 0
    skipped: bool = False


Progress = Callable[[int, int, int, int], None]  # pieces done, pieces, rows, tokens


def convert(  # noqa: PLR0917
    source: str,
    target: str,
    source_format: str | None = None,
    target_format: str | None = None,
    workers: int = 1,
    on_error: str = "raise",
    progress: Progress | None = None,
) -> Converted:
    """Convert a file, directory or set.

    Args:
        source: path of the input.
        target: path of the output; a piece of it that is there already is not written again.
        source_format, target_format: a name of `formats.MODULES`; None: told by the path, and records for a target
            whose name says nothing.
        workers: processes; 1 runs in this one.
        on_error: "quarantine": rows that cannot be written go to `TARGET.quarantine/` and are counted.
        progress: called after each piece.

    Raises:
        InputError: the source cannot be read; file and place are named. Nothing of the piece appears.
        RecordsError: the target holds a conversion of something else.
    """
    if on_error not in ("raise", "quarantine"):
        raise ConfigError(f"on_error={on_error!r}", fix='say "raise" or "quarantine"')
    source_format = source_format or formats.detect(source)
    target_format = target_format or formats.by_name(Path(target).name) or "records"
    if target_format != "records" and Path(target).exists() and _one_file(target, target_format):
        raise RecordsError("the path is in use", where=target, fix="choose another path, or remove what is there")
    jobs = list(_jobs(source, target, source_format, target_format, on_error))
    return _run(jobs, target, target_format, workers, progress)


def _jobs(source: str, target: str, source_format: str, target_format: str, on_error: str) -> Iterator[Job]:
    module, to = formats.get(source_format), formats.get(target_format)
    units = module.units(source)
    if not units:
        raise InputError("the source has no rows", where=source)
    one = target_format != "records" and _one_file(target, target_format)
    pieces = 1 if one else min(len(units), MOST_PIECES)
    schema = {} if target_format in ("records", "jsonl", "webdataset", "megatron") else schema_of(source, source_format)
    inputs = {u.path: _size(u.path) for u in units}
    cuts = [len(units) * k // pieces for k in range(pieces + 1)]
    paths = [target] * pieces
    if target_format == "records":
        declare_parts(target, pieces)
    elif not one:
        paths = [str(Path(target) / f"part-{k:05d}{to.SUFFIXES[0]}") for k in range(pieces)]
        made = [{u.path: inputs[u.path] for u in units[a:b]} for a, b in pairwise(cuts)]
        _begin(Path(target), paths, made, source_format)
    for k, (a, b) in enumerate(pairwise(cuts)):
        bad = f"{target}.quarantine/part-{k:05d}.jsonl" if on_error == "quarantine" else None
        yield Job(source_format, tuple(units[a:b]), target_format, paths[k], k, pieces, schema, bad, inputs)


def _begin(folder: Path, paths: Sequence[str], inputs: Sequence[Mapping[str, int]], source: str) -> None:
    """Write down what each piece of a folder is made from, so that a later start goes on with nothing else.

    Args:
        folder: the target.
        paths: where each piece goes.
        inputs: sizes of the files of each piece.
        source: format of the source.

    Raises:
        RecordsError: a piece that is there was made from other inputs, or the folder holds files of its own.
    """
    note, what = folder / NOTE, {"format": source, "inputs": inputs}
    there = [k for k, path in enumerate(paths) if Path(path).exists()]
    if note.is_file():
        before = msgspec.json.decode(note.read_bytes())
        for k in there:
            made = dict(before["inputs"][k]) if k < len(before["inputs"]) else {}
            if before["format"] != source or made != inputs[k]:
                changed = sorted(set(made.items()) ^ set(inputs[k].items()))
                raise RecordsError(
                    f"the target was begun from other inputs{f', such as {changed[0][0]}' if changed else ''}",
                    where=str(folder),
                    fix="choose another path",
                )
    elif folder.is_dir() and any(not path.name.startswith(".") for path in folder.iterdir()):
        raise RecordsError("the path is in use", where=str(folder), fix="choose another path, or remove what is there")
    folder.mkdir(parents=True, exist_ok=True)
    fs.write_whole(note, msgspec.json.encode(what))


def _one_file(target: str, target_format: str) -> bool:
    """Say whether a target is one file, not a folder of them."""
    to = formats.get(target_format)
    return to.ONE_FILE or Path(target).suffix in to.SUFFIXES


def _size(path: str) -> int:
    here = Path(path)
    return here.stat().st_size if here.is_file() else 0


def schema_of(source: str, source_format: str) -> dict[str, str]:
    """Find the type of every column over all rows, so that no first row decides it."""
    if source_format == "records":
        return records_set.schema(source)
    module, kinds = formats.get(source_format), dict[str, Any]()
    for unit in module.units(source):
        for row in module.rows(unit):
            for name, value in row.items():
                kinds[name] = STANDARD.get(name) or join(kinds.get(name, NULL), of(value))
    return {name: str(kind) for name, kind in kinds.items()}


def _run(jobs: Sequence[Job], target: str, target_format: str, workers: int, progress: Progress | None) -> Converted:
    total = Converted(pieces=len(jobs))
    for n, done in enumerate(_finished(jobs, workers), 1):
        total.rows += done.rows
        total.tokens += done.tokens
        total.quarantined += done.quarantined
        total.skipped += done.skipped
        if progress is not None:
            progress(n, len(jobs), total.rows, total.tokens)
    if target_format == "records":
        merged = merge_parts(target)
        if (merged.rows, merged.tokens) != (total.rows, total.tokens):
            raise RecordsError(
                f"{total.rows} rows and {total.tokens} tokens were read, the set has {merged.rows} and {merged.tokens}",
                where=target,
            )
    keeps = getattr(formats.get(target_format), "KEEPS", None)
    if keeps is not None:
        first: Sample = next(iter(formats.get(jobs[0].source).rows(jobs[0].units[0])), {})
        total.left_out = [name for name in first if name not in keeps]
    return total


def _finished(jobs: Sequence[Job], workers: int) -> Iterator[Done]:
    if workers <= 1 or len(jobs) == 1:
        yield from map(piece, jobs)
        return
    with ProcessPoolExecutor(min(workers, len(jobs)), mp_context=get_context("spawn")) as pool:
        waiting = [pool.submit(piece, job) for job in jobs]
        try:
            for future in as_completed(waiting):
                yield future.result()
        except BaseException:
            for future in waiting:
                future.cancel()
            raise


def piece(job: Job) -> Done:
    """Convert one piece, unless it is done."""
    done = _done_before(job)
    if done is not None:
        return done
    bad = Quarantine(Path(job.quarantine)) if job.quarantine else None
    if bad is not None:
        bad.abandon()
    out: Any
    if job.target == "records":
        before = records_set.lineage(job.units[0].path) if job.source == "records" else {}
        lineage = {**before, "inputs": job.inputs, "format": job.source}
        out = PartWriter(job.path, job.number, job.pieces, lineage=lineage)
    else:
        out = formats.get(job.target).writer(Path(job.path), job.schema)
    rows = tokens = 0
    with out as writer:
        for row, where in _rows(job):
            try:
                writer.write(row)
            except ValueError as error:
                if bad is None:
                    error.add_note(f"while converting {where}")
                    raise
                bad.put(row, error, source=where)
                continue
            rows += 1
            tokens += len(row.get(INPUT_IDS, ()))
    return Done(rows, tokens, bad.count if bad else 0)


def _rows(job: Job) -> Iterator[tuple[Sample, str]]:
    module = formats.get(job.source)
    for unit in job.units:
        for n, row in enumerate(module.rows(unit), unit.start if job.source != "parquet" else 0):
            yield row, f"{unit.path}, row {n}"


def _done_before(job: Job) -> Done | None:
    if job.target != "records":
        if not Path(job.path).exists() or job.pieces == 1:
            return None
        rows = tokens = 0
        for unit in formats.get(job.target).units(job.path):
            for row in formats.get(job.target).rows(unit):
                rows += 1
                tokens += len(row.get(INPUT_IDS, ()))
        return Done(rows, tokens, skipped=True)
    generation = place.declarations(Path(job.path))[-1]
    path = place.part_path(Path(job.path), generation, job.number)
    try:
        manifest = unpack(path.read_bytes(), Manifest, str(path))
    except FileNotFoundError:
        return None
    if manifest.lineage.get("inputs") != job.inputs:
        changed = sorted(set(job.inputs.items()) ^ set(dict(manifest.lineage.get("inputs") or {}).items()))
        raise RecordsError(
            f"the target was begun from other inputs, such as {changed[0][0]}",
            where=job.path,
            fix="choose another path",
        )
    return Done(manifest.rows, manifest.tokens, manifest.quarantined, skipped=True)
