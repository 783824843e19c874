"""One element of a job array: which ranks it runs, and what it does when the cluster wants its node back.

Decides how an element ends: 0 when all its ranks are complete, 1 when one failed, requeued on a signal. Knows the
variables that Slurm sets.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any

import cloudpickle

from thalweg.core.errors import ConfigError, InputError, RunError
from thalweg.run.executor import failed
from thalweg.run.logging_dir import logging_dir_at
from thalweg.run.sbatch import ranks_of_element
from thalweg.work.processes import Failure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from thalweg.core.stats import PipelineStats
    from thalweg.run.logging_dir import LoggingDir

log = logging.getLogger("thalweg.run")
INDEX = "THALWEG_ARRAY_INDEX"  # tells a hosted job its element


def place_of(home: LoggingDir) -> tuple[str, dict[str, Any]]:
    """Give a logging directory as (path or URL, options of the file system)."""
    return str(home), dict(getattr(home, "options", {}))


def command_of(home: LoggingDir, launch: str) -> list[str]:
    """Write the command of the node's side of a launch, without the interpreter.

    Raises:
        ConfigError: options of the store that cannot be written as JSON.
    """
    url, options = place_of(home)
    words = ["-m", "thalweg.cli", "rank", f"{url}/{launch}/executor.pik"]
    if not options:
        return words
    try:
        return [*words, "--options", json.dumps(options)]
    except TypeError as error:
        raise ConfigError(
            f"options of the store cannot be handed to a node: {error}", where=url, fix="give plain values"
        ) from error


def run_element(path: str, environ: Mapping[str, str], options: Mapping[str, Any] | None = None) -> list[int]:
    """Run the ranks of this element, each with its own copy of the pipeline.

    Args:
        path: `executor.pik` of a launch: a path or URL.
        environ: SLURM_ARRAY_TASK_ID and RUN_OFFSET, or THALWEG_ARRAY_INDEX.
        options: of the fsspec file system of a URL.

    Returns: the ranks that were run; those that another copy of this element has completed are left alone.

    Raises:
        RunError: ranks failed.
        ConfigError: this is no element of an array.
    """
    index = environ.get(INDEX, environ.get("SLURM_ARRAY_TASK_ID"))
    if index is None:
        raise ConfigError("SLURM_ARRAY_TASK_ID is not set", fix="this command is for the scripts of job arrays")
    known = _launch(path, options)
    ranks: list[int] = json.loads(_beside(path, "ranks_to_run.json", options))
    executor, task = known["executor"], known["task"]
    element, offset = int(index), int(environ.get("RUN_OFFSET", "0"))
    mine = ranks_of_element(ranks, element, offset, executor.tasks_per_job)
    requeue_on(known["signals"], environ)
    failures: dict[int, Failure] = {}
    done: list[int] = []
    for rank in mine:
        if rank in task.run.marked():
            continue
        try:
            task(rank, lambda read: None)  # noqa: ARG005  (progress is written to the logging directory)
            done.append(rank)
        except Exception as error:  # noqa: BLE001  (one failing rank does not stop the others)
            failures[rank] = Failure.of(error)
    if failures:
        raise failed(failures, executor.tasks, len(task.run.marked()), executor.home)
    return done


def _beside(path: str, name: str, options: Mapping[str, Any] | None) -> bytes:
    folder = path.rpartition("/")[0] or "."
    data = logging_dir_at((folder, dict(options)) if options else folder).read(name)
    if data is None:
        raise InputError(f"there is no {name}", where=path, fix="give executor.pik of a launch")
    return data


def _launch(path: str, options: Mapping[str, Any] | None) -> dict[str, Any]:
    known: dict[str, Any] = cloudpickle.loads(_beside(path, path.rpartition("/")[2], options))
    return known


def finish(path: str, options: Mapping[str, Any] | None = None) -> PipelineStats:
    """Merge the statistics and outputs of a run after its arrays have ended.

    Raises:
        RunError: ranks are missing; they are named.
    """
    known = _launch(path, options)
    executor, task = known["executor"], known["task"]
    task.run.sweep()
    stats: PipelineStats = executor.finish(task.run)
    missing = executor.get_incomplete_ranks()
    if missing:
        shown = ", ".join(map(str, missing[:20])) + (", ..." if len(missing) > 20 else "")
        raise RunError(
            f"{len(missing)} of {executor.tasks} ranks are not complete: {shown}",
            where=str(executor.home),
            fix="see thalweg logs --failed, then submit the same pipeline again: only these ranks run",
        )
    return stats


def requeue_on(names: Sequence[str], environ: Mapping[str, str]) -> None:
    """Put this element back into the queue when one of these signals comes, and leave.

    What the element has done of its rank does not count; a cancelled job is not put back.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    job = environ.get("SLURM_ARRAY_JOB_ID", environ.get("SLURM_JOB_ID"))
    element = environ.get("SLURM_ARRAY_TASK_ID")

    def handle(number: int, frame: Any) -> None:
        del frame
        name = f"{job}_{element}" if element is not None else str(job)
        os.write(2, f"{signal.Signals(number).name}: putting {name} back into the queue\n".encode())
        for other in names:
            signal.signal(getattr(signal, other), signal.SIG_DFL)
        if job is not None and not _cancelled(name):
            done = subprocess.run(["scontrol", "requeue", name], check=False)  # noqa: S603, S607
            if done.returncode == 0:
                time.sleep(60)  # the cluster ends this process now; leaving first would count as a failure of the job
        os._exit(128 + number)

    for name in names:
        signal.signal(getattr(signal, name), handle)


def _cancelled(job: str) -> bool:
    shown = subprocess.run(["scontrol", "show", "job", job], capture_output=True, text=True, check=False)  # noqa: S603, S607
    return "JobState=CANCELLED" in shown.stdout
