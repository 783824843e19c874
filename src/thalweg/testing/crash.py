"""Runs a Python script and kills its process before the n-th file operation below a folder.

Decides what counts as a file operation: what changes names or makes a file, as Python's audit events tell it. Run as
a file by `killing.run_crashing`: crash.py N FOLDER SCRIPT [ARGUMENTS]. Standard library only.
"""

import os
import runpy
import signal
import sys
from typing import Any

# Event -> positions of paths among its arguments.
_EVENTS = {
    "os.rename": (0, 1),
    "os.link": (0, 1),
    "os.symlink": (1,),
    "os.mkdir": (0,),
    "os.remove": (0,),
    "os.rmdir": (0,),
    "os.truncate": (0,),
}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def _install(at: int, under: str) -> None:
    """Count events below `under`, and die before number `at`."""
    left = at

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        if event == "open":
            path, _, flags = arguments
            paths = [path] if isinstance(flags, int) and flags & _WRITING else []
        else:
            paths = [arguments[i] for i in _EVENTS.get(event, ())]
        if any(_below(path, under) for path in paths):
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1

    sys.addaudithook(watch)


def _below(path: Any, under: str) -> bool:
    if not isinstance(path, str | bytes | os.PathLike):
        return False  # an open descriptor
    full = os.path.realpath(os.fsdecode(path))
    return full == under or full.startswith(under + os.sep)


def main() -> None:
    """Take the words of the command line and run the script as if it had been called alone."""
    at, under, script = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    sys.argv = sys.argv[3:]
    sys.path[0] = os.path.dirname(os.path.abspath(script))  # noqa: PTH100, PTH120
    _install(at, under)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
