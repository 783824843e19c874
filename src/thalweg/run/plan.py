"""What a launch would do: inputs, units, ranks, what is complete, what the run's record would refuse.

Decides whether a launch continues a run, begins one, or is refused. Reads; `open_run` alone begins a generation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from thalweg.core.errors import RunError
from thalweg.plan.shard import Unit, deal
from thalweg.run.manifest import SHOWN, describe_pipeline, differences, step_ids
from thalweg.run.outputs import final_paths, options_of, unprotected
from thalweg.run.show import counted
from thalweg.steps.readers.base import BaseDiskReader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from thalweg.run.logging_dir import LoggingDir, Run


@dataclass(frozen=True, slots=True)
class Plan:
    """A launch before it happens.

    Args:
        tasks: ranks of the run.
        manifest: what the run is, for comparison.
        units: units of each reader, by step id; empty where a reader does not cut its input.
        bytes_of_rank: bytes that each rank will read.
        outputs: final output folders.
        warnings: what should be known before launch.
        unprotected: steps whose writes, if they make any, appear before their rank is complete.
        folders: options of remote output folders, by URL; for this process alone, never written.
    """

    tasks: int
    manifest: dict[str, Any]
    units: dict[str, list[Unit]]
    bytes_of_rank: list[int]
    outputs: list[str]
    warnings: list[str]
    unprotected: list[str]
    folders: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)

    @property
    def idle(self) -> int:
        """Ranks without a unit of any reader; 0 where nothing is known about units."""
        most = max((len(u) for u in self.units.values()), default=self.tasks)
        return max(0, self.tasks - most)


def plan(pipeline: list[Any], tasks: int) -> Plan:
    """List the inputs once, cut them, and describe the run. Readers get their units.

    Raises:
        InputError: an input folder is missing or empty.
    """
    units: dict[str, list[Unit]] = {}
    inputs: dict[str, Any] = {}
    for name, step in zip(step_ids(pipeline), pipeline, strict=True):
        files = _files(step)
        if files is None:
            continue
        listed = [[f.path, f.size, f.version] for f in files]
        inputs[name] = {"files": listed}
        if isinstance(step, BaseDiskReader):
            step.planned = units[name] = step.units(files)
            inputs[name]["units"] = len(step.planned)
        else:
            units[name] = [Unit(f.path, size=f.size) for f in files]
    shares = [sum(u.size for us in units.values() for u in deal(us, r, tasks)) for r in range(tasks)]
    manifest = {"tasks": tasks, "inputs": inputs, "steps": describe_pipeline(pipeline)}
    harm, options = unprotected(pipeline), options_of(pipeline)
    found = Plan(tasks, manifest, units, shares, final_paths(pipeline), [], harm, options)
    if found.idle:
        found.warnings.insert(0, f"{found.idle} of {counted(tasks, 'task')} will have nothing to do")
    return found


def _files(step: Any) -> list[Any] | None:
    if isinstance(step, BaseDiskReader):
        return step.files()
    folder = getattr(step, "data_folder", None)
    if folder is None or not hasattr(folder, "list_files") or not hasattr(step, "read_file"):
        return None
    from thalweg.steps.folder import Folder  # noqa: PLC0415

    names = set(folder.list_files(recursive=step.recursive, glob_pattern=step.glob_pattern))
    return [f for f in Folder.of(folder).list_files(recursive=step.recursive) if f.path in names]


def changes(home: LoggingDir, manifest: Mapping[str, Any]) -> list[str] | None:
    """Name how a launch differs from the run in a logging directory; None where there is no run yet."""
    run = home.newest()
    return None if run is None else differences(run[1]["manifest"], manifest)


def open_run(home: LoggingDir, planned: Plan, *, skip_completed: bool, adopt: bool) -> Run:
    """Join the run in a logging directory, or begin one.

    Raises:
        RunError: the directory holds another run, and the difference is named; or marks that no record explains.
    """
    newest = home.newest()
    if newest is None:
        marks = home.foreign_marks()
        if marks and skip_completed:
            return _adopt_foreign(home, planned, marks, adopt=adopt)
        return home.start(0, _record(home, planned), planned.folders)
    number, record = newest
    run = home.join(number, record, planned.folders)
    found = differences(record["manifest"], planned.manifest)
    if skip_completed and not found:
        run.sweep()
        return run
    if found and not adopt and skip_completed:
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        raise RunError(
            "this logging directory belongs to another run: " + "; ".join(found[:SHOWN]) + more,
            where=str(home),
            fix="name another logging_dir, or begin this run anew with adopt=True (--adopt): its ranks all run again",
        )
    return home.start(number + 1, _record(home, planned), planned.folders)


def _record(home: LoggingDir, planned: Plan) -> dict[str, Any]:
    return {"manifest": planned.manifest, "tasks": planned.tasks, **home.facts(planned.outputs, planned.folders)}


def _adopt_foreign(home: LoggingDir, planned: Plan, marks: list[str], *, adopt: bool) -> Run:
    """Take over the completed ranks of a run that another program began, if asked."""
    shown = ", ".join(marks[:20]) + (", ..." if len(marks) > 20 else "")
    if not adopt:
        raise RunError(
            f"{len(marks)} ranks are marked complete here by another program ({shown}), without a record of their run",
            where=f"{home}/completions",
            fix="adopt=True (--adopt) trusts these marks, skip_completed=False runs all; or name another logging_dir",
        )
    ranks = [int(m) for m in marks if m.isdigit()]
    if ranks and max(ranks) >= planned.tasks:
        raise RunError(
            f"rank {max(ranks)} is marked complete, but the run has {counted(planned.tasks, 'task')}",
            where=f"{home}/completions",
            fix="give the number of tasks of the run that is to be taken over",
        )
    home.take_over()
    return home.start(0, _record(home, planned) | {"adopted": ranks, "fresh_outputs": False}, planned.folders)
