"""Job arrays of Slurm as text: how many, which ranks each element runs, the script, the arguments, the dependencies.

Decides all of that from values. Submits nothing.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Resources:
    """What each element of an array asks for, by the names that `sbatch` uses for them."""

    time: str
    partition: str
    cpus_per_task: int = 1
    mem_per_cpu_gb: float = 2
    gpus_per_task: int = 0
    qos: str | None = None
    mail_type: str = "ALL"
    mail_user: str | None = None
    requeue: bool = True
    sbatch_args: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def arguments(self, name: str, logs: str) -> dict[str, Any]:
        """Give the options of `sbatch`, the user's own last."""
        found: dict[str, Any] = {
            "job-name": name,
            "partition": self.partition,
            "time": self.time,
            "cpus-per-task": self.cpus_per_task,
            "mem-per-cpu": f"{round(self.mem_per_cpu_gb * 1024)}M",
            "output": logs,
            "error": logs,
            "open-mode": "append",
        }
        found |= {"gpus-per-task": self.gpus_per_task} if self.gpus_per_task else {}
        found |= {"qos": self.qos} if self.qos else {}
        found |= {"mail-type": self.mail_type, "mail-user": self.mail_user} if self.mail_user else {}
        found |= {"requeue": True} if self.requeue else {"no-requeue": True}
        return found | {k.replace("_", "-"): v for k, v in self.sbatch_args.items()}


def arrays(ranks: int, tasks_per_job: int, max_array_size: int) -> list[tuple[int, int]]:
    """Cut ranks into arrays: (offset of the first element, number of elements) each, none above the cluster's limit."""
    jobs = -(-ranks // tasks_per_job)
    return [(at, min(max_array_size, jobs - at)) for at in range(0, jobs, max_array_size)]


def ranks_of_element(ranks: Sequence[int], element: int, offset: int, tasks_per_job: int) -> list[int]:
    """Give the ranks that an array's element runs."""
    first = (element + offset) * tasks_per_job
    return list(ranks[first : first + tasks_per_job])


def array_option(size: int, workers: int) -> str:
    """Write `--array`, with the number of elements at once where it is bounded."""
    return f"0-{size - 1}" + (f"%{workers}" if workers > 0 else "")


def dependency(kind: str, jobs: Sequence[str]) -> str:
    """Write a dependency on several jobs, `kind` being "afterok" or "afterany"."""
    return ":".join([kind, *jobs])


def script(options: Mapping[str, Any], environment: Sequence[str], command: Sequence[str], srun: str | None) -> str:
    """Write the job script.

    Args:
        options: of `sbatch`; True for a switch.
        environment: lines of shell before the command.
        command: what an element runs.
        srun: arguments of `srun`; None runs the command in the batch step itself.
    """
    lines = ["#!/bin/bash"]
    lines += [f"#SBATCH --{k}" if v is True else f"#SBATCH --{k}={v}" for k, v in options.items() if v is not False]
    lines += ["set -e", *environment]
    run = shlex.join(command)
    # exec: signals for the batch step reach the command and not a shell that waits for it
    lines.append(f"exec {run}" if srun is None else f"exec srun {srun} {run}".replace("  ", " "))
    return "\n".join(lines) + "\n"


def environment_lines(env_command: str | None, condaenv: str | None, venv_path: str | None) -> list[str]:
    """Write the shell lines that enter an environment."""
    if env_command:
        return [env_command]
    if condaenv:
        return ['eval "$(conda shell.bash hook)"', f"conda activate {shlex.quote(condaenv)}"]
    return [f"source {shlex.quote(venv_path)}"] if venv_path else []
