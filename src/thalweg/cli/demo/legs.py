"""Legs of the demo's training job: start the ranks, follow them, kill them.

Decides how a leg runs and when it is killed. A killed leg gets SIGKILL on all ranks as soon as the checkpoint of the
wanted step lies on disk; the ranks are then on their way into later steps, as in life. No rank outlives this process's
interest in it. Knows nothing of models or data.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thalweg.core.errors import RunError

TRAIN = "thalweg.cli.demo.train"


@dataclass(frozen=True, slots=True)
class Leg:
    """One start of the training job.

    Args:
        name: also the name of its folder.
        world: data-parallel ranks.
        accumulation: micro-batches a step on each rank.
        resume: checkpoint to go on from.
        kill_at: SIGKILL to all ranks once the checkpoint after so many steps is written; None runs to the end.
    """

    name: str
    world: int
    accumulation: int
    resume: Path | None = None
    kill_at: int | None = None


def run_leg(leg: Leg, spec: dict[str, Any], root: Path, say: Callable[[str], None], module: str = TRAIN) -> Path:
    """Run a leg to its end or its kill; returns its folder, with `rank-N.jsonl` and `step-N.pt`.

    Args:
        leg: what to start.
        spec: what `train` reads, without the keys of the leg.
        root: the leg's folder is made in here.
        say: takes lines of progress.
        module: the training program.

    Raises:
        RunError: a rank failed; the end of what it wrote is in the message.
    """
    folder = root / leg.name
    folder.mkdir(parents=True)
    path = folder / "spec.json"
    whole = {**spec, "accumulation": leg.accumulation, "resume": leg.resume, "meet": folder / "meet"}
    path.write_text(json.dumps(whole, default=str), "utf-8")
    with ExitStack() as stack:
        ranks = [_start(stack, module, path, rank, leg.world) for rank in range(leg.world)]
        stack.callback(_kill, ranks)
        if _follow(ranks[0], leg, int(spec["steps"]), say):
            _kill(ranks)
            say(f"{leg.name}: all {leg.world} ranks killed with SIGKILL after the checkpoint of step {leg.kill_at}")
            return folder
        for rank, process in enumerate(ranks):
            if process.wait() != 0:
                raise _failure(folder, rank, process.returncode)
    if leg.kill_at is not None:
        raise RunError(f"the job ended before step {leg.kill_at}", where=str(folder), fix="kill it at an earlier step")
    return folder


def _start(stack: ExitStack, module: str, spec: Path, rank: int, world: int) -> "subprocess.Popen[str]":
    quiet = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    env = {**os.environ, **quiet, "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}
    errors = stack.enter_context((spec.parent / f"rank-{rank}.err").open("w", encoding="utf-8"))
    command = [sys.executable, "-m", module, str(spec)]
    out = subprocess.PIPE if rank == 0 else subprocess.DEVNULL
    process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=errors, text=True)  # noqa: S603 (our own interpreter and module)
    return stack.enter_context(process)


def _follow(process: "subprocess.Popen[str]", leg: Leg, steps: int, say: Callable[[str], None]) -> bool:
    """Read rank 0's progress; True as soon as the leg is to be killed, False when the rank has closed its output."""
    for line in process.stdout or ():
        try:
            done = int(json.loads(line)["done"])
        except (ValueError, KeyError, TypeError):
            continue  # a library's own line
        if leg.kill_at is not None and done >= leg.kill_at:
            return True
        if done % 10 == 0 or done == steps:
            say(f"{leg.name}: step {done} of {steps}")
    return False


def _kill(ranks: "list[subprocess.Popen[str]]") -> None:
    for process in ranks:
        process.kill()  # SIGKILL; nothing happens to one that has ended
    for process in ranks:
        process.wait()


def _failure(folder: Path, rank: int, status: int) -> RunError:
    path = folder / f"rank-{rank}.err"
    fix = f"read {path}; the last lines stand above"
    error = RunError(f"rank {rank} of the training job ended with status {status}", where=str(folder), fix=fix)
    for line in path.read_text("utf-8", "replace").splitlines()[-6:]:
        error.add_note(line)
    return error
