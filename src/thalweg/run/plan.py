"""What a launch would do: inputs, units, ranks, what is complete, what the run's record would refuse.

Decides whether a launch continues a run, begins one, or is refused. Reads; `open_run` alone begins a generation.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thalweg.core.errors import RunError
from thalweg.plan.shard import Unit, deal
from thalweg.run.commit import sweep
from thalweg.run.ledger import Ledger, newest, settle, start
from thalweg.run.manifest import SHOWN, describe_pipeline, differences, step_ids
from thalweg.run.outputs import final_paths, unprotected
from thalweg.steps.readers.base import BaseDiskReader

if TYPE_CHECKING:
    from collections.abc import Mapping


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
    """

    tasks: int
    manifest: dict[str, Any]
    units: dict[str, list[Unit]]
    bytes_of_rank: list[int]
    outputs: list[str]
    warnings: list[str]
    unprotected: list[str]

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
    found = Plan(tasks, manifest, units, shares, final_paths(pipeline), [], unprotected(pipeline))
    if found.idle:
        found.warnings.insert(0, f"{found.idle} of {tasks} tasks will have nothing to do")
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


def changes(root: Path, manifest: Mapping[str, Any]) -> list[str] | None:
    """Name how a launch differs from the run in a logging directory; None where there is no run yet."""
    run = newest(root)
    return None if run is None else differences(run[1]["manifest"], manifest)


def open_run(root: Path, planned: Plan, *, skip_completed: bool, adopt: bool) -> Ledger:
    """Join the run in a logging directory, or begin one.

    Raises:
        RunError: the directory holds another run, and the difference is named; or marks that no record explains.
    """
    run = newest(root)
    if run is None:
        marks = sorted(p.name for p in (root / "completions").glob("*")) if (root / "completions").is_dir() else []
        if marks and skip_completed:
            return _adopt_foreign(root, planned, marks, adopt=adopt)
        return start(root, 0, _record(root, planned))
    number, record = run
    ledger = Ledger(root, number, record)
    settle(ledger)
    found = differences(record["manifest"], planned.manifest)
    if skip_completed and not found:
        sweep(ledger)
        return ledger
    if found and not adopt and skip_completed:
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        raise RunError(
            "this logging directory belongs to another run: " + "; ".join(found[:SHOWN]) + more,
            where=str(root),
            fix="name another logging_dir, or begin this run anew with adopt=True (--adopt): its ranks all run again",
        )
    return start(root, number + 1, _record(root, planned))


def _record(root: Path, planned: Plan) -> dict[str, Any]:
    root.mkdir(parents=True, exist_ok=True)
    device = root.stat().st_dev
    outside = [p for p in planned.outputs if "://" not in p and _device(p) != device]
    fresh = all(not os.path.isdir(p) or not any(_visible(p)) for p in planned.outputs if "://" not in p)  # noqa: PTH112
    return {"manifest": planned.manifest, "tasks": planned.tasks, "outside": outside, "fresh_outputs": fresh}


def _visible(path: str) -> list[str]:
    return [p.name for p in Path(path).iterdir() if not p.name.startswith(".")]


def _device(path: str) -> int:
    place = Path(path)
    while not place.exists():
        place = place.parent
    return place.stat().st_dev


def _adopt_foreign(root: Path, planned: Plan, marks: list[str], *, adopt: bool) -> Ledger:
    """Take over the completed ranks of a run that another program began, if asked."""
    shown = ", ".join(marks[:20]) + (", ..." if len(marks) > 20 else "")
    if not adopt:
        raise RunError(
            f"{len(marks)} ranks are marked complete here by another program ({shown}), without a record of their run",
            where=str(root / "completions"),
            fix="adopt=True (--adopt) trusts these marks, skip_completed=False runs all; or name another logging_dir",
        )
    ranks = [int(m) for m in marks if m.isdigit()]
    if ranks and max(ranks) >= planned.tasks:
        raise RunError(
            f"rank {max(ranks)} is marked complete, but the run has {planned.tasks} tasks",
            where=str(root / "completions"),
            fix="give the number of tasks of the run that is to be taken over",
        )
    if not (root / "completions" / ".generation").exists():
        for kind in ("completions", "stats"):
            (root / kind).mkdir(exist_ok=True)
            (root / kind / ".generation").write_text("0")
    return start(root, 0, _record(root, planned) | {"adopted": ranks, "fresh_outputs": False})
