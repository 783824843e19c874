"""The executor of Ray clusters: ranks on actors, each actor one rank at a time.

Decides how many actors there are, what happens when one dies, and when a rank has run too long.
"""

from __future__ import annotations

import logging
import time as clock
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thalweg.core.errors import ConfigError
from thalweg.core.extras import need
from thalweg.run.executor import LAUNCH, PipelineExecutor
from thalweg.run.progress import Progress
from thalweg.work.processes import Failure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from thalweg.core.stats import PipelineStats
    from thalweg.run.plan import Plan
    from thalweg.run.task import Task

log = logging.getLogger("thalweg.run")
LOOK = 1.0  # seconds between looks at progress and time limits


class RayPipelineExecutor(PipelineExecutor):
    """Runs a pipeline on a Ray cluster; connects to the one of the environment where none is connected.

    Args:
        pipeline, tasks, logging_dir, skip_completed, depends, randomize_start_duration, run_on_dependency_fail,
            adopt: see `PipelineExecutor`. `logging_dir` must be on a file system that all nodes see.
        workers: ranks at once; -1 for as many as the cluster takes.
        cpus_per_task, mem_per_cpu_gb, gpus_per_task: what each rank reserves.
        ray_remote_kwargs: more options of `ray.remote`.
        tasks_per_job: ranks that one actor runs, one after the other, before it is replaced.
        time: seconds after which a rank is stopped and counts as failed; None for no limit.
        retries: how often a rank is tried again after its actor died.

    A failing rank does not stop the others; `run` raises one error with a table at the end.
    """

    def __init__(  # noqa: PLR0917
        self,
        pipeline: Sequence[Any],
        tasks: int = 1,
        workers: int = -1,
        depends: PipelineExecutor | None = None,
        skip_completed: bool = True,
        logging_dir: Any = None,
        randomize_start_duration: float = 0,
        cpus_per_task: int = 1,
        mem_per_cpu_gb: float = 2,
        gpus_per_task: int = 0,
        ray_remote_kwargs: Mapping[str, Any] | None = None,
        tasks_per_job: int = 1,
        time: float | None = None,
        *,
        run_on_dependency_fail: bool = False,
        adopt: bool = False,
        retries: int = 3,
    ) -> None:
        common: dict[str, Any] = {"skip_completed": skip_completed, "depends": depends, "adopt": adopt}
        common |= {"randomize_start_duration": randomize_start_duration}
        super().__init__(pipeline, tasks, logging_dir, run_on_dependency_fail=run_on_dependency_fail, **common)
        if (workers < 1 and workers != -1) or tasks_per_job < 1:
            raise ConfigError(
                f"{workers=}, {tasks_per_job=}: one is no number", fix="give 1 or more; workers may be -1"
            )
        self.ray = need("ray", why="RayPipelineExecutor")
        self.workers, self.tasks_per_job, self.time, self.retries = workers, tasks_per_job, time, retries
        memory = int(mem_per_cpu_gb * cpus_per_task * 2**30)
        self.reserve = {"num_cpus": cpus_per_task, "num_gpus": gpus_per_task, "memory": memory}
        self.reserve |= dict(ray_remote_kwargs or {})

    def __getstate__(self) -> dict[str, Any]:
        """Leave the library behind: modules do not travel."""
        return {k: v for k, v in self.__dict__.items() if k != "ray"}

    def launch(self, task: Task, planned: Plan) -> PipelineStats:
        """Run the missing ranks on actors and wait for them."""
        marked = task.run.marked()
        ranks = [rank for rank in range(self.tasks) if rank not in marked]
        self.failures = {}
        if not ranks:
            log.info("all %d ranks are complete; nothing to do", self.tasks)
            return self.finish(task.run)
        if not self.ray.is_initialized():
            self.ray.init()
        size = sum(planned.bytes_of_rank[rank] for rank in ranks)
        with Progress(len(ranks), size, quiet=LAUNCH.quiet) as progress:
            _Crew(self, task, ranks, progress).run()
        return self.finish(task.run)


class _Runner:
    """The actor: runs ranks in a process of the cluster."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def run(self, rank: int) -> Failure | None:
        try:
            self.task(rank, _nobody)
        except BaseException as error:  # noqa: BLE001  (also SystemExit of user code: it is an answer, not a death)
            return Failure.of(error)
        return None


def _nobody(read: Any) -> None:
    """Progress is read from the logging directory."""
    del read


@dataclass(slots=True)
class _Job:
    rank: int
    actor: Any
    began: float
    left: int  # ranks that the actor may still run after this one


class _Crew:
    """The submitting side: which actor runs what."""

    def __init__(self, executor: RayPipelineExecutor, task: Task, ranks: list[int], progress: Progress) -> None:
        self.executor, self.task, self.progress = executor, task, progress
        self.ray = executor.ray
        self.waiting = deque(ranks)
        self.deaths: dict[int, int] = {}
        self.jobs: dict[Any, _Job] = {}
        self.handle = self.ray.put(task)
        self.kind = self.ray.remote(**executor.reserve, max_restarts=0)(_Runner)

    def run(self) -> None:
        most = len(self.waiting) if self.executor.workers == -1 else self.executor.workers
        try:
            while self.waiting or self.jobs:
                while self.waiting and len(self.jobs) < most:
                    self._give(self.kind.remote(self.handle), self.executor.tasks_per_job - 1)
                ready, _ = self.ray.wait(list(self.jobs), num_returns=1, timeout=LOOK)
                for reference in ready:
                    self._hear(reference, self.jobs.pop(reference))
                self._look()
        finally:
            for job in self.jobs.values():
                self.ray.kill(job.actor)

    def _give(self, actor: Any, left: int) -> None:
        rank = self.waiting.popleft()
        self.jobs[actor.run.remote(rank)] = _Job(rank, actor, clock.monotonic(), left)

    def _hear(self, reference: Any, job: _Job) -> None:
        try:
            failure = self.ray.get(reference)
        except self.ray.exceptions.RayActorError as error:
            self._died(job, str(error))
            return
        except self.ray.exceptions.RayError as error:
            failure = Failure.of(error)
        self._ended(job.rank, failure)
        if self.waiting and job.left:
            self._give(job.actor, job.left - 1)
        else:
            self.ray.kill(job.actor)

    def _died(self, job: _Job, why: str) -> None:
        self.deaths[job.rank] = self.deaths.get(job.rank, 0) + 1
        if self.deaths[job.rank] <= self.executor.retries:
            log.warning("the actor of rank %d died; the rank is tried again: %s", job.rank, why.splitlines()[0])
            self.waiting.append(job.rank)
        else:
            self._ended(job.rank, Failure("ActorDied", why, died=True))

    def _look(self) -> None:
        """Show progress; stop what runs too long."""
        at_work = {job.rank for job in self.jobs.values()}
        for rank, (documents, size, _) in self.task.home.heard(at_work).items():
            self.progress.read(rank, documents, size)
        limit = self.executor.time
        for reference, job in list(self.jobs.items()):
            if limit is not None and clock.monotonic() - job.began > limit:
                del self.jobs[reference]
                self.ray.kill(job.actor)
                self._ended(job.rank, Failure("TimeLimit", f"stopped after {limit:g} s", died=True))

    def _ended(self, rank: int, failure: Failure | None) -> None:
        if failure:
            self.executor.failures[rank] = failure
            log.error("rank %d failed: %s: %s", rank, failure.kind, failure.message)
        self.progress.ended(rank, ok=failure is None)
