"""What a command is pointed at: a path, `file.py:name`, or a file of settings.

Decides how a name in a Python file is found. The file is imported, never run as a script: its `__main__` block stays
still. Of settings, `data.yaml:val` names a feed, `data.yaml` alone the one called train. Knows nothing of what is done
with the value.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from inspect import isclass, isfunction, ismodule
from pathlib import Path
from typing import Any

from thalweg.core.errors import ConfigError, InputError, ThalwegError, nearest
from thalweg.core.topology import Topology

SETTINGS = (".yaml", ".yml", ".json")


def split_target(target: str) -> tuple[Path, str] | None:
    """Part `file.py:name` into file and name; None for anything else, a plain path above all."""
    file, colon, name = target.rpartition(":")
    return (Path(file), name) if colon and file.endswith(".py") else None


def split_settings(target: str) -> tuple[Path, str | None] | None:
    """Part `data.yaml:name` into file and name, `data.yaml` into file and None; None for anything else."""
    if target.endswith(SETTINGS):
        return Path(target), None
    file, colon, name = target.rpartition(":")
    return (Path(file), name) if colon and file.endswith(SETTINGS) else None


def load_target(target: str, words: Sequence[str] = ()) -> Any:
    """Give what a target names: a value of a Python file (a function is called), or a loader made of settings.

    Args:
        target: `file.py:name`, `data.yaml` or `data.yaml:name`.
        words: settings over those of the file, such as "train.batch.size=2".

    Raises:
        InputError: there is no such file.
        ConfigError: the file has no such name, or has one but no `:name` was given; an unknown setting.
    """
    told = split_settings(target)
    if told is not None:
        config = import_module("thalweg.bind.config").load_config(told[0], words)
        return config.loader(told[1] or config.default(), topology=Topology())
    refuse_words(target, words)
    parted = split_target(target)
    if parted is None:
        raise _unnamed(target)
    file, name = parted
    if not file.is_file():
        raise InputError("no such file", where=str(file), fix="give the path of a Python file, then :name")
    module = _import(file)
    if not hasattr(module, name):
        public = [n for n, v in vars(module).items() if not n.startswith("_") and _is_own(v, module)]
        raise ConfigError(f"no name {name!r} in the file", where=str(file), fix=nearest(name, public))
    value = getattr(module, name)
    return value() if isfunction(value) else value


def _unnamed(target: str) -> ThalwegError:
    """Say what is missing in a target that is no `file.py:name`."""
    if target.endswith(".py"):
        fix = f"say {target}:feed, with the name of a feed or loader in that file"
        return ConfigError("a Python file alone names nothing to look at", where=target, fix=fix)
    if "://" not in target and not Path(target).exists():
        return InputError("nothing is there", where=target, fix="check the path; a feed in a file is file.py:name")
    fix = f"in a Python file: feed = tw.from_records({target!r}).shuffle().batch(8); then say file.py:feed"
    return ConfigError("data alone has no order to ask: a feed says it", where=target, fix=fix)


def _is_own(value: Any, module: Any) -> bool:
    """Say whether a name of a file can be meant: a value or function of its own, not what it imports."""
    return not (ismodule(value) or isclass(value) or (isfunction(value) and value.__module__ != module.__name__))


def refuse_words(target: str, words: Sequence[str]) -> None:
    """Refuse words for a file of settings behind a target that is none.

    Raises:
        ConfigError: there are some.
    """
    if words:
        raise ConfigError(
            f"{words[0]!r} is a word for a file of settings of ours, and {target} is none", where="command line",
            fix="name a .yaml file, or change the file itself",
        )  # fmt: skip


def _import(file: Path) -> Any:
    """Import a file under its own name, with its folder on the path, as `python -m` in that folder would."""
    folder = str(file.resolve().parent)
    spec = spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise InputError("not a Python file", where=str(file))
    module = module_from_spec(spec)
    known, here = sys.modules.get(file.stem), folder in sys.path
    sys.modules[file.stem] = module  # so that its functions can be pickled for workers
    if not here:
        sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[file.stem]
        if known is not None:
            sys.modules[file.stem] = known
        error.add_note(f"while importing {file} to look at a name in it")
        raise
    return module
