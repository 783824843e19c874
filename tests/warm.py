"""Scripts in processes of their own that need not import torch anew: each is a fork of one that has imported it.

A run is a process like any other: it has its own folder, environment and output, dies of SIGKILL, and ends as an
interpreter does. Run as a script this is the process that forks: a line of JSON asks for a run or for its end.
"""

import ast
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType

QUIET = {
    "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "TOKENIZERS_PARALLELISM": "false",
}  # fmt: skip
ALWAYS = ["torch._dynamo", "thalweg:Loader", "thalweg:from_dataset"]  # the first comes with the first optimizer step
HERE = Path(__file__).resolve().parent


class Run:
    """A started script. `out` and `err` are what it has printed so far."""

    def __init__(self, warm, pid, folder):
        self.pid, self._warm, self._folder = pid, warm, folder
        self.returncode = None

    @property
    def out(self):
        return (self._folder / "out").read_text("utf-8", "replace")

    @property
    def err(self):
        return (self._folder / "err").read_text("utf-8", "replace")

    def told(self):
        """Give the objects of the lines of JSON that it printed."""
        return [json.loads(line) for line in self.out.splitlines() if line.startswith('{"')]

    def lines(self):
        """Give the lines of a piped run as they come."""
        with (self._folder / "out").open(encoding="utf-8") as out:
            yield from out

    def kill(self):
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout=300):
        """Give its exit status, -9 after SIGKILL; it is killed where it takes longer."""
        if self.returncode is None:
            late = threading.Timer(timeout, self.kill)
            late.start()
            self.returncode = self._warm._asked(wait=self.pid)
            late.cancel()
        return self.returncode


class Warm:
    """The process that forks; started with the first run, ended by `close`.

    Args:
        more: environment of all runs, beside this process's own.
    """

    def __init__(self, **more):
        self._more = more
        self._process, self._folder, self._runs = None, tempfile.TemporaryDirectory(prefix="warm-"), 0

    def start(self, script, *words, needs=(), cwd=None, env=None, piped=False):
        """Start a script.

        Args:
            script, words: what runs.
            needs: modules, or names in them ("module:Name"), that are imported before.
            cwd, env: its folder, and what its environment has beside this one.
            piped: its output is read by `lines` while it runs, and is not kept.
        """
        self._runs += 1
        folder = Path(self._folder.name) / str(self._runs)
        folder.mkdir()
        if piped:
            os.mkfifo(folder / "out")
        told = {
            "script": str(script),
            "words": list(map(str, words)),
            "needs": [*ALWAYS, *needs],
            "folder": str(folder),
        }
        pid = self._asked(**told, cwd=str(cwd or folder), env={**os.environ, **self._env(), **(env or {})})
        return Run(self, pid, folder)

    def run(self, script, *words, **more):
        """Run a script to its end."""
        run = self.start(script, *words, **more)
        run.wait()
        return run

    def _env(self):
        path = os.pathsep.join(filter(None, [str(HERE.parent / "src"), str(HERE), os.environ.get("PYTHONPATH")]))
        return {**QUIET, "PYTHONPATH": path, **self._more}

    def _asked(self, **what):
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "ignore", __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                env={**os.environ, **self._env()},
            )  # fmt: skip
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self):
        if self._process is not None:
            self._process.stdin.close()
            self._process.wait()
            self._process.stdout.close()
        self._folder.cleanup()


def needs_of(script):
    """Give what a script and the modules beside it import."""
    found = []
    for node in ast.walk(ast.parse(script.read_text("utf-8"))):
        names = [node.module] if isinstance(node, ast.ImportFrom) else [n.name for n in getattr(node, "names", [])]
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        beside = script.with_name(f"{names[0]}.py")
        if beside.exists():
            found += needs_of(beside)
        elif isinstance(node, ast.ImportFrom):
            found += [f"{node.module}:{name.name}" for name in node.names]
        else:
            found += names
    return found


def import_all(needs):
    """Import modules and touch names in them; one that is not there is the script's business."""
    for name in needs:
        module, _, inner = name.partition(":")
        with suppress(ImportError, AttributeError):
            getattr(import_module(module), inner or "__name__")


def serve():
    """Answer until there is nothing more to answer, and end here; in a fork: give what it is to run."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a module prints while it is imported is no answer
    for line in iter(sys.stdin.readline, ""):
        told = json.loads(line)
        if "wait" in told:
            answer = os.waitstatus_to_exitcode(os.waitpid(told["wait"], 0)[1])
        else:
            import_all(told["needs"])
            answer = os.fork()
            if answer == 0:
                answers.close()
                return told
        print(json.dumps(answer), file=answers, flush=True)
    return None


def become(told):
    """Give this process the folder, environment, words and output of a script, and run it as `__main__`."""
    os.chdir(told["cwd"])
    os.environ.clear()
    os.environ.update(told["env"])
    for number, name in enumerate((os.devnull, "out", "err")):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT
        file = os.open(Path(told["folder"]) / name, flags)  # an absolute name stays itself
        os.dup2(file, number)
        os.close(file)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    script = told["script"]
    sys.argv, sys.path[0] = [script, *told["words"]], str(Path(script).parent)
    main = ModuleType("__main__")
    main.__dict__.update(__file__=script, __builtins__=__builtins__)
    sys.modules["__main__"] = main
    exec(compile(Path(script).read_text("utf-8"), script, "exec"), main.__dict__)


if __name__ == "__main__":
    ours = serve()
    if ours is not None:
        become(ours)
