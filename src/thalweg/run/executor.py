"""What all executors share: a pipeline, a logging directory, which ranks are missing, and one way to fail.

Decides what a launch does before and after its ranks run. Knows not where they run.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle
import msgspec

from thalweg.core.errors import ConfigError, RunError
from thalweg.core.stats import PipelineStats, merge
from thalweg.run.copies import Copies, copies_of
from thalweg.run.foreign import read_file
from thalweg.run.logging_dir import LoggingDir, logging_dir_at
from thalweg.run.plan import Plan, open_run, plan
from thalweg.run.posix import PosixDir
from thalweg.run.show import counted
from thalweg.run.task import Task

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from thalweg.run.logging_dir import Run
    from thalweg.work.processes import Failure

log = logging.getLogger("thalweg.run")


@dataclass
class Launch:
    """Settings of the command line that win over a script's own, and a mode in which nothing runs.

    Args:
        describe: called with (executor, plan) instead of running; see `thalweg explain`.
        overrides: attributes set on every executor before it runs, such as {"workers": 4}.
        quiet: show no progress.
        executors: those whose `run` was called.
    """

    describe: Callable[[Any, Plan], None] | None = None
    overrides: dict[str, Any] = field(default_factory=dict[str, Any])
    quiet: bool = False
    executors: list[Any] = field(default_factory=list[Any])


LAUNCH = Launch()


class PipelineExecutor(ABC):
    """Runs a pipeline over `tasks` ranks; each rank is run once and counts once, whatever dies.

    Args:
        pipeline: steps: callables `(data, rank, world_size) -> iterator`, or documents as the first.
        tasks: number of ranks: into how many shares the units are dealt.
        logging_dir: directory of the run's record, marks, statistics and logs; one run each. A path, a URL such as
            "s3://bucket/logs", or (URL, options of the fsspec file system).
        skip_completed: False runs all ranks again, as a new generation.
        randomize_start_duration: ranks start after a random part of this many seconds.
        depends: another executor that must be complete first; it is run if it is not.
        run_on_dependency_fail: run also when `depends` failed.
        adopt: begin anew where the logging directory belongs to a run that differs, instead of refusing.
    """

    def __init__(
        self,
        pipeline: Sequence[Any],
        tasks: int,
        logging_dir: Any,
        *,
        skip_completed: bool = True,
        randomize_start_duration: float = 0,
        depends: PipelineExecutor | None = None,
        run_on_dependency_fail: bool = False,
        adopt: bool = False,
    ) -> None:
        if logging_dir is None:
            raise ConfigError(
                "logging_dir is missing: without a name a run cannot be found again to go on",
                where=type(self).__name__,
                fix="name a directory, logging_dir='logs/my_run'",
            )
        if tasks < 1:
            raise ConfigError(f"tasks={tasks} is no number of ranks", fix="give 1 or more")
        if not pipeline:
            raise ConfigError("the pipeline is empty", fix="give at least one step")
        self.pipeline, self.tasks = list(pipeline), tasks
        self.home = logging_dir_at(logging_dir)
        self.skip_completed, self.adopt = skip_completed, adopt
        self.randomize_start_duration = randomize_start_duration
        self.depends, self.run_on_dependency_fail = depends, run_on_dependency_fail
        self.failures: dict[int, Failure] = {}

    @property
    def logging_dir(self) -> Path:
        """The logging directory as a local path.

        Raises:
            ConfigError: it is on an object store, and what asks needs files.
        """
        if not isinstance(self.home, PosixDir):
            raise ConfigError(
                f"{type(self).__name__} needs a logging directory on a file system that all processes see",
                where=str(self.home),
                fix="name a directory",
            )
        return self.home.root

    @property
    def world_size(self) -> int:
        """Number of ranks of the run."""
        return self.tasks

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables that are set while a rank runs, by the names that steps of the datatrove package read."""
        return {"DATATROVE_EXECUTOR": type(self).__name__, "DATATROVE_NODE_RANK": "-1"}

    def run(self) -> PipelineStats:
        """Run all ranks that are not complete and return the statistics of all ranks.

        Raises:
            RunError: ranks failed (a table names them), or the logging directory belongs to another run.
        """
        for name, value in LAUNCH.overrides.items():
            if hasattr(self, name):
                setattr(self, name, value)
        LAUNCH.executors.append(self)
        self._run_dependency()
        for place, step in enumerate(self.pipeline):
            if hasattr(step, "inherit"):
                step.inherit(self.pipeline[:place])
        planned = plan(self.pipeline, self.tasks)
        if LAUNCH.describe is not None:
            LAUNCH.describe(self, planned)
            return PipelineStats()
        for warning in planned.warnings:
            log.warning(warning)
        pickled = self.pickle_pipeline()
        run = open_run(self.home, planned, skip_completed=self.skip_completed, adopt=self.adopt)
        if run.generation and not run.committed():
            for place, step in enumerate(self.pipeline):
                if hasattr(step, "restart_outputs"):
                    aside = Path(str(self.home)) / f"old/g{run.generation - 1}/outputs/{place}"
                    step.restart_outputs(aside, run.generation)
        environment = tuple(self.environment.items())
        task = Task(pickled, self.home, run, self.tasks, environment, self.randomize_start_duration)
        return self.launch(task, planned)

    def check_launch(self, planned: Plan) -> None:
        """Refuse what a launch must not write where others read it; of ranks that run from here nothing is written.

        Raises:
            ConfigError: with the place and the remedy.
        """
        del planned

    @abstractmethod
    def launch(self, task: Task, planned: Plan) -> PipelineStats:
        """Run the ranks of this launch that are missing."""

    def _run_dependency(self) -> None:
        if self.depends is None:
            return
        try:
            self.depends.run()
        except RunError:
            if not self.run_on_dependency_fail:
                raise
            log.warning("a dependency failed; going on, as asked", exc_info=True)

    def pickle_pipeline(self) -> Copies:
        """Pickle the steps.

        Raises:
            ConfigError: a step does not pickle; it is named.
        """
        try:
            return copies_of(self.pipeline)
        except Exception:
            for place, step in enumerate(self.pipeline):
                try:
                    cloudpickle.dumps(step)
                except Exception as error:
                    raise ConfigError(
                        f"step {place} ({type(step).__name__}) cannot be sent to a worker: {error}",
                        fix="open files, models and connections when the step runs, not when it is built",
                    ) from error
            raise

    def get_incomplete_ranks(self) -> list[int]:
        """List the ranks without a completion mark."""
        marked = self.home.marked()
        return [rank for rank in range(self.tasks) if rank not in marked]

    def finish(self, run: Run) -> PipelineStats:
        """Merge the statistics of all complete ranks; when all are, let steps merge their outputs.

        Raises:
            RunError: ranks of this launch failed.
        """
        marked = run.marked()
        stats = merge_stats(self.home)
        if len(marked) == self.tasks:
            run.tidy(marked)
            for step in self.pipeline:
                if hasattr(step, "merge_outputs"):
                    step.merge_outputs(self.tasks, run.generation)
        for step in stats.unbalanced:
            log.error("the books of step %s do not balance: %s", step.id, step.tally.to_dict())
        if self.failures:
            raise failed(self.failures, self.tasks, len(marked), self.home)
        return stats


def merge_stats(logging_dir: Any) -> PipelineStats:
    """Fold the statistics of all complete ranks and write `stats.json`; any process may, at any time.

    Args:
        logging_dir: as executors take it.
    """
    home = logging_dir_at(logging_dir)
    parts: list[PipelineStats] = []
    ids: list[str] | None = None
    for data in home.stats():
        if not isinstance(data, dict) and ids is None:
            run = home.newest()
            ids = [] if run is None else list(run[1]["manifest"]["steps"])
        parts.append(PipelineStats.from_dict(data) if isinstance(data, dict) else read_file(data, ids or []))
    stats = merge(parts)
    home.write("stats.json", msgspec.json.format(msgspec.json.encode(stats.to_dict())))
    return stats


def failed(failures: Mapping[int, Failure], tasks: int, complete: int, home: LoggingDir) -> RunError:
    """Make the one error of a run: a table of failed ranks with their exceptions and logs."""
    rows = [
        f"\n  rank {rank:05d}  {f.kind}: {f.message.splitlines()[0] if f.message else ''}"
        f"\n              {home.log_place(rank)}"
        for rank, f in sorted(failures.items())[:50]
    ]
    more = f"\n  and {len(failures) - 50} more" if len(failures) > 50 else ""
    error = RunError(
        f"{len(failures)} of {counted(tasks, 'rank')} failed, {complete} {'is' if complete == 1 else 'are'} complete"
        + "".join(rows)
        + more,
        where=str(home),
        fix="repair the cause and run the same command again: only what is missing runs",
    )
    error.__dict__["failures"] = dict(failures)
    return error
