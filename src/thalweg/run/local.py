"""The executor of one machine: ranks in supervised processes, or one after the other in this one.

Decides how many run at once. What a rank is, and when it counts, is the business of `task` and `commit`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from thalweg.core.errors import ConfigError
from thalweg.run.executor import LAUNCH, PipelineExecutor
from thalweg.run.progress import Progress
from thalweg.run.show import counted
from thalweg.work.processes import Failure, Outcome, StartMethod, supervise

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from thalweg.core.stats import PipelineStats
    from thalweg.run.plan import Plan
    from thalweg.run.task import Task

log = logging.getLogger("thalweg.run")


class LocalPipelineExecutor(PipelineExecutor):
    """Runs a pipeline on this machine.

    Args:
        pipeline, tasks, logging_dir, skip_completed, depends, randomize_start_duration, run_on_dependency_fail,
            adopt: see `PipelineExecutor`.
        workers: ranks at once; -1 for all. 1 runs them in this process.
        start_method: how worker processes begin: "forkserver" or "spawn".
        local_tasks: how many ranks this machine runs; -1 for all.
        local_rank_offset: the first of them. Several machines may share a logging directory this way.
        retries: how often a rank is tried again after its worker process died.

    A failing rank does not stop the others; `run` raises one error with a table at the end.
    """

    def __init__(  # noqa: PLR0917
        self,
        pipeline: Sequence[Any],
        tasks: int = 1,
        workers: int = -1,
        logging_dir: Any = None,
        depends: PipelineExecutor | None = None,
        skip_completed: bool = True,
        start_method: StartMethod = "forkserver",
        local_tasks: int = -1,
        local_rank_offset: int = 0,
        randomize_start_duration: float = 0,
        *,
        run_on_dependency_fail: bool = False,
        adopt: bool = False,
        retries: int = 0,
    ) -> None:
        super().__init__(
            pipeline,
            tasks,
            logging_dir,
            skip_completed=skip_completed,
            randomize_start_duration=randomize_start_duration,
            depends=depends,
            run_on_dependency_fail=run_on_dependency_fail,
            adopt=adopt,
        )
        if workers < 1 and workers != -1:
            raise ConfigError(f"workers={workers} cannot work", fix="give 1 or more, or -1 for one a task")
        self.local_tasks = tasks if local_tasks == -1 else local_tasks
        self.local_rank_offset = local_rank_offset
        if local_rank_offset < 0 or local_rank_offset + self.local_tasks > tasks:
            last = local_rank_offset + self.local_tasks - 1
            raise ConfigError(
                f"local ranks {local_rank_offset}..{last} go beyond {counted(tasks, 'task')}",
                fix="local_rank_offset + local_tasks must not exceed tasks",
            )
        self.workers, self.retries = workers, retries
        self.start_method: StartMethod = start_method

    def launch(self, task: Task, planned: Plan) -> PipelineStats:
        """Run this machine's missing ranks."""
        marked = task.run.marked()
        mine = range(self.local_rank_offset, self.local_rank_offset + self.local_tasks)
        ranks = [rank for rank in mine if rank not in marked]
        self.failures = {}
        if not ranks:
            log.info("all %d ranks are complete; nothing to do", len(mine))
            return self.finish(task.run)
        if len(ranks) < len(mine):
            log.info("%d of %d ranks are complete already", len(mine) - len(ranks), len(mine))
        size = sum(planned.bytes_of_rank[rank] for rank in ranks)
        progress = Progress(len(ranks), size, quiet=LAUNCH.quiet)
        try:
            self._work(task, ranks, progress)
        except KeyboardInterrupt:
            complete = task.run.marked()
            for rank in set(ranks) - complete:
                task.home.ended(rank, None)  # its process was ended, and cannot say so itself
            done = len(complete)
            raise KeyboardInterrupt(
                f"interrupted: {done} of {self.tasks} ranks are complete; the same command again runs the rest"
            ) from None
        return self.finish(task.run)

    def _work(self, task: Task, ranks: list[int], progress: Progress) -> None:
        with progress:
            for outcome in self._outcomes(task, ranks, progress):
                if outcome.failure:
                    self.failures[outcome.job] = outcome.failure
                    log.error("rank %d failed: %s: %s", outcome.job, outcome.failure.kind, outcome.failure.message)
                progress.ended(outcome.job, ok=outcome.failure is None)

    def _outcomes(self, task: Task, ranks: list[int], progress: Progress) -> Iterator[Outcome]:
        workers = self.tasks if self.workers == -1 else self.workers
        if workers == 1:
            for rank in ranks:
                yield _here(task, rank, progress)
            return
        yield from supervise(
            task,
            ranks,
            workers=workers,
            start_method=self.start_method,
            retries=self.retries,
            on_message=lambda rank, read: progress.read(rank, *read),
            on_retry=lambda rank, f: log.warning("rank %d is tried again: %s", rank, f.message),
        )


def _here(task: Task, rank: int, progress: Progress) -> Outcome:
    try:
        return Outcome(rank, task(rank, lambda read: progress.read(rank, *read)))
    except (Exception, SystemExit) as error:  # noqa: BLE001  (one failing rank does not stop the others)
        return Outcome(rank, failure=Failure.of(error))
