"""Kill a program, run it again, and go on until it is done: what a machine does to a job, on purpose.

Decides when the program is killed: after seeded delays (`kill_loop`), or before its n-th file operation
(`run_crashing`, by an audit hook, so that each crash point can be tried in turn). What must hold afterwards is the
caller's business.
"""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_HOOK = Path(__file__).with_name("crash.py")


def kill_loop(
    command: Sequence[str | os.PathLike[str]],
    *,
    seed: int,
    kills: int = 3,
    within: float = 2.0,
    orphans: bool = False,
    after_kill: Callable[[], None] | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    timeout: float = 300.0,
) -> int:
    """Run a command, SIGKILL it after a seeded delay, run it again; at last let it finish.

    Args:
        command: words of the command; the same each time.
        seed: decides the delays, uniform in [0, within) seconds from the start of a run.
        kills: how often it is killed; fewer where it finishes before.
        within: about as long as an undisturbed run takes.
        orphans: True kills only the process itself, so that its workers live on into the next run. They are killed at
            the end. False kills its whole process group.
        after_kill: called after each kill, for what must hold at any moment (no half file under a final name).
        env: environment of the command; None means this process's.
        cwd: its working directory.
        timeout: seconds that the last, undisturbed run may take.

    Returns:
        How many times it was killed.

    Raises:
        AssertionError: a run ended by itself with another status than 0; its last output is in the message.
        TimeoutError: the last run did not end in time.
    """
    delays = random.Random(seed)  # noqa: S311 (a test's delays, reproducible)
    groups: list[int] = []
    done = 0
    try:
        while done < kills:
            status, output = _run(command, env, cwd, delays.uniform(0, within), groups, orphans=orphans)
            if status is not None:
                assert status == 0, f"run {done + 1} ended with status {status}: {output}"
                break
            done += 1
            if after_kill is not None:
                after_kill()
        status, output = _run(command, env, cwd, timeout, groups, orphans=False)
    finally:
        for group in groups:
            _kill_group(group)
    if status is None:
        raise TimeoutError(f"not done after {timeout:.0f} s, killed {done} times before: {output}")
    assert status == 0, f"after {done} kills it ended with status {status}: {output}"
    return done


def run_crashing(
    script: Sequence[str | os.PathLike[str]],
    *,
    at: int,
    under: str | os.PathLike[str],
    env: Mapping[str, str] | None = None,
    timeout: float = 300.0,
) -> bool:
    """Run a Python script that dies by SIGKILL before its `at`-th file operation below a folder.

    File operations are those that change names or make files: open for writing, rename, link, mkdir, remove, rmdir,
    truncate, symlink. Counted from 0 in the script's own process; worker processes are not counted.

    Args:
        script: file and arguments, without the interpreter.
        at: number of the operation.
        under: folder whose operations count.
        env: environment; None means this process's.
        timeout: seconds a run may take.

    Returns:
        True where it was killed, False where it finished first: the script has no operation of that number.

    Raises:
        AssertionError: it ended in another way; its last output is in the message.
        TimeoutError: it did not end in time.
    """
    command = [sys.executable, _HOOK, str(at), os.path.realpath(under), *script]
    groups: list[int] = []
    status, output = _run(command, env, None, timeout, groups, orphans=False)
    if status is None:
        raise TimeoutError(f"not done after {timeout:.0f} s: {output}")
    assert status in {0, -signal.SIGKILL}, f"ended with status {status}: {output}"
    return status != 0


def _run(
    command: Sequence[str | os.PathLike[str]],
    env: Mapping[str, str] | None,
    cwd: str | os.PathLike[str] | None,
    seconds: float,
    groups: list[int],
    *,
    orphans: bool,
) -> tuple[int | None, str]:
    """Run for at most so many seconds; (exit status, or None where it was killed here, and its last output)."""
    with subprocess.Popen(  # noqa: S603 (the caller's own command)
        list(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, cwd=cwd, start_new_session=True
    ) as process:
        groups.append(process.pid)
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            if orphans:
                process.kill()
                return None, ""  # its workers hold the pipe open: nothing to wait for
            _kill_group(process.pid)
            output, _ = process.communicate()
            return None, _tail(output)
        return process.returncode, _tail(output)


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def _tail(output: bytes) -> str:
    return output.decode("utf-8", "replace")[-2000:]
