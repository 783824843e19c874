"""The executor of hosted jobs of the Hugging Face hub: ranks as jobs with an index, through the official client.

Decides how many jobs live at once, which are sent again, and what of this executor a job gets to see: never a secret.
The node's side is `thalweg rank executor.pik`.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time as clock
from collections import deque
from copy import copy
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import cloudpickle

from thalweg.core.errors import ConfigError
from thalweg.core.extras import need
from thalweg.run.credentials import refuse_credentials
from thalweg.run.element import INDEX, command_of, place_of
from thalweg.run.executor import LAUNCH, PipelineExecutor
from thalweg.run.progress import Progress
from thalweg.run.sbatch import ranks_of_element
from thalweg.work.processes import Failure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from thalweg.core.stats import PipelineStats
    from thalweg.run.plan import Plan
    from thalweg.run.task import Task

log = logging.getLogger("thalweg.run")
ENDED = {"COMPLETED", "ERROR", "CANCELED", "DELETED"}
PRIVATE = ("token", "secrets", "env", "api")  # attributes that stay in this process
_WAY = 'the jobs get what is in secrets={"AWS_ACCESS_KEY_ID": ..., "AWS_SECRET_ACCESS_KEY": ...}'
DEAF = 10  # looks at jobs that may fail in a row before the hub counts as gone
IMAGE = "ghcr.io/astral-sh/uv:python{}-bookworm"


class JobsPipelineExecutor(PipelineExecutor):
    """Runs a pipeline as jobs of the hub. `run` sends the jobs, waits for them and merges their statistics.

    Args:
        pipeline, tasks, logging_dir, skip_completed, depends, randomize_start_duration, run_on_dependency_fail,
            adopt: see `PipelineExecutor`. `logging_dir` and outputs must be where the jobs reach them: s3://.
        workers: jobs at once; -1 for all.
        flavor: hardware of each job.
        image: of the container; it must have `uv`.
        dependencies: requirements of the job's environment; what the steps import must be among them.
        timeout: of each job: seconds, or such as "2h".
        tasks_per_job: ranks that one job runs, one after the other.
        python: version in the job; steps travel as code of this version, which is the default.
        namespace: under which the jobs run; default: the owner of the token.
        labels: of each job, besides its name and index.
        token: of the hub; default: the one that is logged in.
        secrets: variables of each job that are kept secret; the token is HF_TOKEN among them.
        env: other variables of each job.
        max_retries: how often a job that did not complete is sent again.
        poll_interval: seconds between looks at the jobs.
        job_name: label of the jobs.
        launcher: words before `-m thalweg.cli rank ...`; default: `uv run` with the dependencies.

    Interrupting cancels the jobs. Token, secrets and variables are sent to the hub and written nowhere; a pipeline
    that holds one of them is refused.
    """

    def __init__(  # noqa: PLR0917  (names and order that callers know)
        self,
        pipeline: Sequence[Any],
        tasks: int,
        workers: int = -1,
        logging_dir: Any = None,
        flavor: str = "cpu-basic",
        image: str | None = None,
        dependencies: Sequence[str] | None = None,
        timeout: float | str | None = None,
        tasks_per_job: int = 1,
        depends: PipelineExecutor | None = None,
        skip_completed: bool = True,
        randomize_start_duration: float = 0,
        python: str | None = None,
        namespace: str | None = None,
        labels: Mapping[str, str] | None = None,
        token: str | None = None,
        secrets: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        max_retries: int = 1,
        poll_interval: float = 15,
        run_on_dependency_fail: bool = False,
        job_name: str = "data_processing",
        *,
        adopt: bool = False,
        launcher: Sequence[str] | None = None,
    ) -> None:
        common: dict[str, Any] = {"skip_completed": skip_completed, "depends": depends, "adopt": adopt}
        common |= {"randomize_start_duration": randomize_start_duration}
        super().__init__(pipeline, tasks, logging_dir, run_on_dependency_fail=run_on_dependency_fail, **common)
        if (workers < 1 and workers != -1) or tasks_per_job < 1 or max_retries < 0:
            raise ConfigError(f"{workers=}, {tasks_per_job=}, {max_retries=}: one is no number", fix="give 1 or more")
        if env and INDEX in env:
            raise ConfigError(f"env sets {INDEX}, which tells a job its ranks", fix="leave it out")
        need("huggingface_hub", why="JobsPipelineExecutor")
        self.workers, self.tasks_per_job, self.max_retries = workers, tasks_per_job, max_retries
        self.flavor, self.timeout, self.poll_interval = flavor, timeout, poll_interval
        version = python or f"{sys.version_info.major}.{sys.version_info.minor}"
        self.image = image or IMAGE.format(version)
        with_all = [w for d in (dependencies or ["thalweg[s3]"]) for w in ("--with", d)]
        self.launcher = list(launcher or ["uv", "run", "--python", version, *with_all, "python"])
        self.namespace, self.labels, self.job_name = namespace, dict(labels or {}), job_name
        self.token, self.secrets, self.env = token, dict(secrets or {}), dict(env or {})
        self.job_ids: list[str] = []

    def __getstate__(self) -> dict[str, Any]:
        """Leave behind what is private: the state is written where jobs read it."""
        return {k: v for k, v in self.__dict__.items() if k not in PRIVATE}

    def check_launch(self, planned: Plan) -> None:
        """Refuse credentials, and the job's own secrets, in what a job reads from the logging directory."""
        refuse_credentials(_WAY, place_of(self.home), self.pipeline, list(planned.folders.items()))
        _refuse_secrets(cloudpickle.dumps(self.pipeline), self.secrets)

    def launch(self, task: Task, planned: Plan) -> PipelineStats:
        """Send jobs for the missing ranks and wait for them.

        Raises:
            ConfigError: there is no token, or a secret is part of what a job would read from the logging directory.
        """
        marked = task.run.marked()
        ranks = [rank for rank in range(self.tasks) if rank not in marked]
        self.failures = {}
        if not ranks:
            log.info("all %d ranks are complete; nothing is sent", self.tasks)
            return self.finish(task.run)
        self.check_launch(planned)
        place = f"launches/{task.run.generation:05d}.{token_hex(4)}"
        without = copy(self)
        without.depends, without.pipeline = None, []
        data = cloudpickle.dumps({"task": task, "executor": without, "signals": ()})
        crew = _Crew(self, task, ranks, place)
        _refuse_secrets(data, crew.secrets)
        self.home.write(f"{place}/executor.pik", data, private=True)
        self.home.write(f"{place}/ranks_to_run.json", json.dumps(ranks).encode())
        size = sum(planned.bytes_of_rank[rank] for rank in ranks)
        with Progress(len(ranks), size, quiet=LAUNCH.quiet) as progress:
            crew.work(progress)
        return self.finish(task.run)


def _refuse_secrets(data: bytes, secrets: Mapping[str, Any]) -> None:
    for name, value in secrets.items():
        if len(str(value)) >= 4 and str(value).encode() in data:
            raise ConfigError(
                f"the secret {name} is part of a step, and steps are written to the logging directory",
                fix=f'read it where it is used: os.environ["{name}"]',
            )


class _Crew:
    """The sending side: which job has which index, and what became of it."""

    def __init__(self, executor: JobsPipelineExecutor, task: Task, ranks: list[int], launch: str) -> None:
        import huggingface_hub  # noqa: PLC0415  (only where jobs are sent)

        self.executor, self.task, self.ranks, self.place = executor, task, ranks, launch
        token = executor.token or huggingface_hub.get_token()
        if token is None:
            raise ConfigError("there is no token of the hub", fix="log in with `hf auth login`, or give token=")
        self.api: Any = huggingface_hub.HfApi(endpoint=os.environ.get("HF_ENDPOINT"), token=token)
        self.secrets = {"HF_TOKEN": token, **executor.secrets}
        self.namespace = executor.namespace or str(self.api.whoami()["name"])
        self.waiting = deque(range(-(-len(ranks) // executor.tasks_per_job)))
        self.jobs: dict[str, int] = {}
        self.sent: dict[int, int] = {}
        self.deaf = 0

    def work(self, progress: Progress) -> None:
        """Keep jobs alive until every index has ended."""
        most = len(self.waiting) if self.executor.workers == -1 else self.executor.workers
        try:
            while self.waiting or self.jobs:
                while self.waiting and len(self.jobs) < most:
                    self._send_or_wait(self.waiting.popleft())
                    if self.deaf:
                        break
                clock.sleep(self.executor.poll_interval)
                self._look(progress)
        except BaseException as stop:
            self._cancel()
            if isinstance(stop, KeyboardInterrupt):
                done = len(self.task.run.marked())
                raise KeyboardInterrupt(
                    f"interrupted, jobs cancelled: {done} of {self.executor.tasks} ranks are complete; "
                    "the same command again runs the rest"
                ) from None
            raise

    def _send_or_wait(self, index: int) -> None:
        """Send a job. The first must be taken; later a hub that does not answer is asked again.

        A job whose answer was lost may live twice: of two copies of a rank one counts.
        """
        try:
            self._send(index)
            self.deaf = 0
        except Exception as error:
            if not self.sent or not self._patient(f"index {index} cannot be sent", error):
                raise
            self.waiting.appendleft(index)

    def _patient(self, what: str, error: Exception) -> bool:
        self.deaf += 1
        log.warning("%s; trying again: %s", what, error)
        return self.deaf <= DEAF

    def _send(self, index: int) -> None:
        e = self.executor
        job = self.api.run_job(
            image=e.image,
            command=[*e.launcher, *command_of(e.home, self.place)],
            env={"PYTHONUNBUFFERED": "1", **e.env, INDEX: str(index)},
            secrets=self.secrets,
            flavor=e.flavor,
            timeout=e.timeout,
            labels={"thalweg_job": e.job_name, "thalweg_index": str(index), **e.labels},
            namespace=self.namespace,
        )
        self.sent[index] = self.sent.get(index, 0) + 1
        self.jobs[str(job.id)] = index
        e.job_ids.append(str(job.id))

    def _look(self, progress: Progress) -> None:
        for name, index in list(self.jobs.items()):
            try:
                status = self.api.inspect_job(job_id=name, namespace=self.namespace).status
            except Exception as error:
                if not self._patient(f"job {name} cannot be looked at", error):
                    raise
                continue
            self.deaf = 0
            stage = str(getattr(status.stage, "value", status.stage))
            if stage in ENDED:
                del self.jobs[name]
                self._ended(index, f"job {name} ended as {stage}: {status.message or 'see its log'}", progress)

    def _ended(self, index: int, what: str, progress: Progress) -> None:
        """An index is done when its ranks are marked, whatever the hub says of the job."""
        marked = self.task.run.marked()
        mine = ranks_of_element(self.ranks, index, 0, self.executor.tasks_per_job)
        left = [rank for rank in mine if rank not in marked]
        if left and self.sent[index] <= self.executor.max_retries:
            log.warning("index %d is sent again: %s", index, what)
            self.waiting.append(index)
            return
        for rank in mine:
            if rank in left:
                self.executor.failures[rank] = Failure("JobFailed", what, died=True)
                log.error("rank %d failed: %s", rank, what)
            progress.ended(rank, ok=rank not in left)

    def _cancel(self) -> None:
        for name in self.jobs:
            try:
                self.api.cancel_job(job_id=name, namespace=self.namespace)
            except Exception:
                log.warning("job %s could not be cancelled", name, exc_info=True)
