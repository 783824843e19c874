"""A virtual environment for each peer, made on demand from its pinned requirements.

Decides where an environment lies and when it has to be made again. Knows no benchmark.
"""

import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path


class NoEnvironmentError(RuntimeError):
    """The peer's environment is not there, and may not or cannot be made; the message says why."""


def python_for(
    peer: str, needs: Sequence[str], root: Path, *, make: bool = True, say: Callable[[str], None] = lambda _: None
) -> Path:
    """Give the interpreter of `root/peer`, making the environment where it is absent or was pinned otherwise.

    Args:
        peer: name of the peer, which is the folder's name.
        needs: pinned requirements, "name==version".
        root: folder of all environments.
        make: False (smoke): make none. The running interpreter will do where it has just these versions.
        say: told what takes long.

    Raises:
        NoEnvironmentError: a requirement without a pin, pip failed, or `make` is False and nothing fits.
    """
    loose = [need for need in needs if not re.fullmatch(r"[A-Za-z0-9._-]+(\[[a-z0-9,_-]+\])?==[^=<>~]+", need)]
    if loose:
        raise NoEnvironmentError(f"requirements of {peer} must be pinned as name==version: {', '.join(loose)}")
    folder = root / re.sub(r"[^A-Za-z0-9._-]+", "-", peer)
    python, ready = folder / "bin" / "python", folder / ".ready"
    wanted = "\n".join([f"python {sys.version_info[0]}.{sys.version_info[1]}", *needs, ""])
    if ready.exists() and ready.read_text() == wanted:
        return python
    if all(map(_here, needs)):
        return Path(sys.executable)
    if not make:
        raise NoEnvironmentError(f"no environment with {', '.join(needs)}; a run without --smoke makes it")
    say(f"making the environment of {peer}: {', '.join(needs)}")
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    done = subprocess.run(
        [python, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--progress-bar", "off", *needs],
        capture_output=True,
        text=True,
        check=False,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
    )
    if done.returncode:
        tail = " ".join(done.stderr.strip().splitlines()[-2:])
        raise NoEnvironmentError(f"pip could not install {', '.join(needs)}: {tail}")
    ready.write_text(wanted)
    return python


def _here(need: str) -> bool:
    """Whether the running interpreter has this very version; a local build tag (+cpu) may differ."""
    name, _, version = need.partition("==")
    try:
        return metadata.version(name.partition("[")[0]).partition("+")[0] == version.partition("+")[0]
    except metadata.PackageNotFoundError:
        return False
