"""The executor of Slurm clusters: ranks as elements of job arrays.

Decides what is submitted, in which order, depending on what. The node's side is `thalweg rank executor.pik`.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import time as clock
from copy import copy
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import cloudpickle

from thalweg.core.errors import ConfigError, RunError
from thalweg.run.credentials import refuse_credentials
from thalweg.run.element import command_of, place_of
from thalweg.run.executor import PipelineExecutor, merge_stats
from thalweg.run.posix import PosixDir
from thalweg.run.sbatch import Resources, array_option, arrays, dependency, environment_lines, script

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from thalweg.core.stats import PipelineStats
    from thalweg.run.plan import Plan
    from thalweg.run.task import Task

log = logging.getLogger("thalweg.run")
_WAY = "sbatch hands the environment on to the nodes"
NOTHING = "-1"  # job id where everything is complete


class SlurmPipelineExecutor(PipelineExecutor):
    """Runs a pipeline as job arrays of a Slurm cluster. `run` submits and returns; the ranks run when the cluster will.

    Args:
        pipeline, tasks, logging_dir, skip_completed, depends, randomize_start_duration, run_on_dependency_fail,
            adopt: see `PipelineExecutor`. `logging_dir` must be where all nodes reach it: a file system that they see,
            or s3:// with the credentials in the environment, which `sbatch` hands on.
        time: limit of one element, as `sbatch` takes it.
        partition, qos, cpus_per_task, mem_per_cpu_gb, gpus_per_task, mail_type, mail_user, sbatch_args: as `sbatch`.
        workers: elements at once; -1 for no limit.
        job_name: of the arrays.
        env_command, condaenv, venv_path: how a node enters the Python environment; default: this interpreter.
        max_array_size: most elements of one array.
        max_array_launch_parallel: let several arrays run at once; else one after the other.
        stagger_max_array_jobs: seconds between submissions of arrays.
        depends_job_id: a job to wait for, besides `depends`.
        job_id_position, job_id_retriever: where in the answer of `sbatch` the job id stands.
        slurm_logs_folder: logs of the elements, on a file system that all nodes see; default: below `logging_dir`, or
            below the working directory where that is a URL.
        requeue, requeue_signals: put an element back into the queue when the node fails, or on these signals.
        srun_args, with_srun: options of `srun`, and whether it is used.
        tasks_per_job: ranks in one element, one after the other.

    Attributes:
        job_ids: ids of the arrays submitted; empty where everything was complete.
        job_id: of the last array, "-1" where everything was complete.
        merge_job_id: of the job that merges statistics and fails when ranks are missing; what dependents wait for.
    """

    def __init__(  # noqa: PLR0917
        self,
        pipeline: Sequence[Any],
        tasks: int,
        time: str,
        partition: str,
        cpus_per_task: int = 1,
        mem_per_cpu_gb: float = 2,
        gpus_per_task: int = 0,
        workers: int = -1,
        job_name: str = "data_processing",
        qos: str | None = None,
        env_command: str | None = None,
        condaenv: str | None = None,
        venv_path: str | None = None,
        sbatch_args: Mapping[str, Any] | None = None,
        max_array_size: int = 1001,
        depends: PipelineExecutor | None = None,
        depends_job_id: str | None = None,
        job_id_position: int = -1,
        job_id_retriever: Callable[[str], str] | None = None,
        logging_dir: Any = None,
        skip_completed: bool = True,
        slurm_logs_folder: str | None = None,
        max_array_launch_parallel: bool = False,
        stagger_max_array_jobs: float = 0,
        run_on_dependency_fail: bool = False,
        randomize_start_duration: float = 0,
        requeue_signals: Sequence[str] = ("SIGUSR1", "SIGTERM"),
        mail_type: str = "ALL",
        mail_user: str | None = None,
        requeue: bool = True,
        srun_args: Mapping[str, Any] | None = None,
        tasks_per_job: int = 1,
        with_srun: bool = True,
        *,
        adopt: bool = False,
    ) -> None:
        common: dict[str, Any] = {"skip_completed": skip_completed, "depends": depends, "adopt": adopt}
        common |= {"randomize_start_duration": randomize_start_duration}
        super().__init__(pipeline, tasks, logging_dir, run_on_dependency_fail=run_on_dependency_fail, **common)
        if min(tasks_per_job, max_array_size) < 1:
            raise ConfigError(f"{tasks_per_job=}, {max_array_size=}: one is no size", fix="give 1 or more")
        gpu_mail = (gpus_per_task, qos, mail_type, mail_user, requeue)
        self.resources = Resources(time, partition, cpus_per_task, mem_per_cpu_gb, *gpu_mail, sbatch_args or {})
        self.workers, self.job_name = workers, job_name
        self.enter = environment_lines(env_command, condaenv, venv_path)
        self.python = "python" if self.enter else sys.executable
        self.max_array_size, self.tasks_per_job = max_array_size, tasks_per_job
        self.parallel, self.stagger = max_array_launch_parallel, stagger_max_array_jobs
        self.depends_job_id = depends_job_id
        self.job_id_position, self.job_id_retriever = job_id_position, job_id_retriever
        near = str(self.home) if isinstance(self.home, PosixDir) else os.getcwd()  # noqa: PTH109
        self.slurm_logs_folder = slurm_logs_folder or f"{near}/slurm_logs"
        self.requeue_signals = tuple(requeue_signals)
        self.srun = " ".join(f"--{k}={v}" for k, v in (srun_args or {}).items()) if with_srun else None
        self.job_ids: list[str] = []
        self.job_id: str | None = None
        self.merge_job_id: str | None = None

    def _run_dependency(self) -> None:
        """Submit a dependency on the same cluster first; run any other to its end."""
        if not isinstance(self.depends, SlurmPipelineExecutor):
            super()._run_dependency()
        elif self.depends.job_id is None:
            self.depends.run()

    def check_launch(self, planned: Plan) -> None:
        """Refuse credentials in what nodes read."""
        refuse_credentials(_WAY, place_of(self.home), self.pipeline, list(planned.folders.items()))

    def launch(self, task: Task, planned: Plan) -> PipelineStats:
        """Submit arrays for the missing ranks, and the job that merges their statistics."""
        marked = task.run.marked()
        ranks = [rank for rank in range(self.tasks) if rank not in marked]
        if not ranks:
            log.info("all %d ranks are complete; nothing is submitted", self.tasks)
            self.job_id, self.job_ids = NOTHING, []
            return self.finish(task.run)
        self.check_launch(planned)
        launch = f"launches/{task.run.generation:05d}.{token_hex(4)}"
        pickled = {"task": task, "executor": self._without_the_chain(), "signals": self.requeue_signals}
        self.home.write(f"{launch}/executor.pik", cloudpickle.dumps(pickled), private=True)
        self.home.write(f"{launch}/ranks_to_run.json", json.dumps(ranks).encode())
        os.makedirs(self.slurm_logs_folder, exist_ok=True)  # noqa: PTH103
        self._submit_arrays(launch, len(ranks))
        self._submit_merge(launch)
        log.info("submitted %s, statistics by %s", ", ".join(self.job_ids), self.merge_job_id)
        return merge_stats(self.home)

    def _without_the_chain(self) -> SlurmPipelineExecutor:
        """Copy this executor for the node: a dependency that is submitted is not taken along."""
        alone = copy(self)
        alone.depends, alone.job_id_retriever = None, None
        return alone

    def _submit_arrays(self, launch: str, ranks: int) -> None:
        options = self.resources.arguments(self.job_name, f"{self.slurm_logs_folder}/%A_%a.out")
        command = [self.python, *command_of(self.home, launch)]
        text = script(options, self.enter, command, self.srun)
        self.job_ids = []
        for number, (offset, size) in enumerate(arrays(ranks, self.tasks_per_job, self.max_array_size)):
            if number and self.stagger:
                clock.sleep(self.stagger)
            waits = self._dependencies()
            if self.job_ids and not self.parallel:
                waits.append(dependency("afterany", [self.job_ids[-1]]))
            given = [f"--array={array_option(size, self.workers)}", f"--export=ALL,RUN_OFFSET={offset}"]
            self.job_ids.append(self._sbatch([*given, *_wait(waits)], f"{launch}/launch_script.slurm", text))
        self.job_id = self.job_ids[-1]

    def _dependencies(self) -> list[str]:
        waits = [dependency("afterok", [self.depends_job_id])] if self.depends_job_id else []
        before = self.depends
        if isinstance(before, SlurmPipelineExecutor) and before.merge_job_id:
            kind = "afterany" if self.run_on_dependency_fail else "afterok"
            waits.append(dependency(kind, [before.merge_job_id]))
        return waits

    def _submit_merge(self, launch: str) -> None:
        """The merge waits for all arrays, however they end, and fails itself when ranks are missing."""
        keep = {"partition", "time", "qos", "requeue", "no-requeue", "open-mode"}
        options = self.resources.arguments(f"{self.job_name}-stats", f"{self.slurm_logs_folder}/%j_stats.out")
        options = {k: v for k, v in options.items() if k in keep | {"job-name", "output", "error"}}
        command = [self.python, *command_of(self.home, launch), "--finish"]
        text = script(options, self.enter, command, None)
        waits = [dependency("afterany", self.job_ids)]
        self.merge_job_id = self._sbatch(_wait(waits), f"{launch}/finish_script.slurm", text)

    def _sbatch(self, options: list[str], name: str, text: str) -> str:
        """Submit a script: kept in the logging directory, read by `sbatch` from there or, of a URL, from its input."""
        self.home.write(name, text.encode(), private=True)  # commands of the user's own are in it
        path = [f"{self.home}/{name}"] if isinstance(self.home, PosixDir) else []
        if shutil.which("sbatch") is None:
            raise RunError("there is no `sbatch` on this machine", fix="submit from a login node of the cluster")
        done = subprocess.run(  # noqa: S603
            ["sbatch", *options, *path],  # noqa: S607
            input=None if path else text,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RunError(
                f"sbatch refused: {done.stderr.strip()}",
                where=f"{self.home}/{name}",
                fix="see the script and its options",
            )
        if self.job_id_retriever is not None:
            return self.job_id_retriever(done.stdout)
        return done.stdout.split()[self.job_id_position].partition(";")[0]


def _wait(dependencies: list[str]) -> list[str]:
    """A dependency that can never be met cancels the job instead of leaving it in the queue for ever."""
    return [f"--dependency={','.join(dependencies)}", "--kill-on-invalid-dep=yes"] if dependencies else []
