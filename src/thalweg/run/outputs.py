"""Where a pipeline writes: the output folders of its steps, ours and those of the datatrove package.

Decides which attributes of a step are output folders, and points them at a staging directory before a rank runs.
Knows nothing of commits.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thalweg.steps.folder import OutputFolder
from thalweg.steps.step import PipelineStep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FOREIGN = "datatrove"
UNPROTECTED = {"HuggingFaceDatasetWriter", "HuggingFaceBucketWriter"}  # upload while they run


@dataclass(frozen=True, slots=True)
class Slot:
    """One place in a pipeline that holds an output folder: `owner.name`."""

    owner: Any
    name: str
    step: int

    @property
    def folder(self) -> Any:
        """The folder that is there now."""
        return getattr(self.owner, self.name)

    @property
    def path(self) -> str:
        """Its final path or URL."""
        folder = self.folder
        if isinstance(folder, OutputFolder):
            return folder.path
        return str(folder.resolve_paths("")).rstrip("/")


def slots(pipeline: list[Any]) -> list[Slot]:
    """Find all output folders of a pipeline, exclusion writers and quarantines included."""
    found: list[Slot] = []
    for place, step in enumerate(pipeline):
        found += _walk(step, place, set())
    return found


def _walk(owner: Any, place: int, seen: set[int]) -> Iterator[Slot]:
    if id(owner) in seen or not hasattr(owner, "__dict__"):
        return
    seen.add(id(owner))
    for name, value in vars(owner).items():
        if isinstance(value, OutputFolder):
            yield Slot(owner, name, place)
        elif _foreign_folder(value):
            if name.startswith("output") or (name == "fs" and type(owner).__name__ == "OutputFileManager"):
                yield Slot(owner, name, place)
        elif _may_hold(value):
            yield from _walk(value, place, seen)


def _foreign_folder(value: Any) -> bool:
    return any(c.__name__ == "DataFolder" and c.__module__.startswith(FOREIGN) for c in type(value).__mro__)


def _may_hold(value: Any) -> bool:
    module = type(value).__module__ or ""
    return isinstance(value, PipelineStep) or module.startswith(("thalweg.steps", FOREIGN))


def final_paths(pipeline: list[Any]) -> list[str]:
    """List the distinct output folders, in the order in which they are found; the place names the stage."""
    return list(dict.fromkeys(slot.path for slot in slots(pipeline)))


def redirect(pipeline: list[Any], stage_of: Callable[[int, str], str], generation: int = 0) -> dict[str, str]:
    """Point every output folder at its stage.

    Args:
        pipeline: this rank's own copy.
        stage_of: (number of the folder, final path) -> local staging directory.
        generation: of the run; steps whose file names carry it ask their folder.

    Returns: final path -> staging directory.
    """
    found = slots(pipeline)
    stages: dict[str, str] = {}
    for slot in found:
        if slot.path not in stages:
            stages[slot.path] = stage_of(len(stages), slot.path)
    for slot in found:
        stage, folder = stages[slot.path], slot.folder
        if isinstance(folder, OutputFolder):
            folder.stage, folder.generation = stage, generation
        else:
            setattr(slot.owner, slot.name, _foreign_at(folder, stage))
    return stages


def _foreign_at(folder: Any, stage: str) -> Any:
    from fsspec.implementations.local import LocalFileSystem  # noqa: PLC0415

    os.makedirs(stage, exist_ok=True)  # noqa: PTH103
    # fsspec caches file systems by their arguments: a cached one must never be changed in place
    return type(folder)(stage, fs=LocalFileSystem(auto_mkdir=True), skip_instance_cache=True)


def options_of(pipeline: list[Any]) -> dict[str, Any]:
    """Give the file system's options of each remote output folder, by URL."""
    found: dict[str, Any] = {}
    for slot in slots(pipeline):
        if "://" in slot.path:
            folder = slot.folder
            own = isinstance(folder, OutputFolder) and folder.fs is None
            found[slot.path] = dict(folder.options if own else _true_fs(folder).storage_options)
    return found


def _true_fs(folder: Any) -> Any:
    fs = folder.fs
    while hasattr(fs, "fs"):  # a file system that only shifts paths
        fs = fs.fs
    return fs


def kept(pipeline: list[Any]) -> frozenset[str]:
    """List the final folders whose file names carry the generation of the run by themselves."""
    return frozenset(s.path for s in slots(pipeline) if getattr(s.owner, "names_carry_generation", False))


def checksums(pipeline: list[Any]) -> dict[tuple[str, str], tuple[int, str | None]]:
    """Give size and checksum of the files that were summed while written: (final folder, name) -> (bytes, sum)."""
    sums: dict[tuple[str, str], tuple[int, str | None]] = {}
    for slot in slots(pipeline):
        if isinstance(slot.folder, OutputFolder):
            sums |= {(slot.folder.path, name): value for name, value in slot.folder.written.items()}
    return sums


def name_patterns(pipeline: list[Any], rank: int) -> dict[str, list[str]]:
    """Give, for each output folder, regular expressions of the names that this rank may ever write."""
    patterns: dict[str, list[str]] = {}
    for slot in slots(pipeline):
        ask = getattr(slot.owner, "name_pattern", None)
        pattern = ask(rank) if ask else _foreign_pattern(slot.owner, rank)
        if pattern:
            patterns.setdefault(slot.path, []).append(pattern)
    return patterns


def _foreign_pattern(owner: Any, rank: int) -> str | None:
    template = getattr(owner, "output_filename", None)
    if template is None or "rank" not in getattr(template, "get_identifiers", list)():
        return None
    from thalweg.steps.writers.base import pattern_of  # noqa: PLC0415

    return pattern_of(template, rank)


def unprotected(pipeline: list[Any]) -> list[str]:
    """Name the steps whose writes, if they make any, do not go through a staging directory."""
    found = {slot.step for slot in slots(pipeline)}
    names: list[str] = []
    for place, step in enumerate(pipeline):
        label = f"{place}:{getattr(step, '__name__', type(step).__name__)}"
        if type(step).__name__ in UNPROTECTED:
            names.append(f"{label} uploads while it runs")
        elif callable(step) and place not in found and not _known_harmless(step):
            names.append(f"{label} is code of your own: files that it writes by itself are not staged")
    return names


def _known_harmless(step: Any) -> bool:
    return (type(step).__module__ or "").startswith(("thalweg.", FOREIGN))
