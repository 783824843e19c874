"""What a look is pointed at: records, feeds, loaders, files, settings, loaders of other libraries.

Decides what kind of thing a target is, and what a raw file becomes. Judges nothing.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from thalweg.check.foreign import is_loader
from thalweg.check.target import load_target, split_target
from thalweg.core.errors import ConfigError, InputError, ThalwegError
from thalweg.feed.feed import Feed
from thalweg.feed.loader import FeedLoader

RAW = (".jsonl", ".json", ".ndjson", ".csv", ".tsv", ".txt", ".parquet", ".md")
SETTINGS = (".yaml", ".yml")
PACKED = (".gz", ".zst", ".bz2", ".xz")


@dataclass(frozen=True, slots=True)
class Target:
    """Something to look at.

    Args:
        title: as it was named.
        kind: "records" | "feed" | "loader" | "loaders" | "settings" | "raw" | "data set".
        thing: records, a feed, a loader, a list of loaders, a dict of feeds.
    """

    title: str
    kind: str
    thing: Any


def open_target(x: Any) -> Target:
    """Say what something is, and open it where it is a path.

    Raises:
        InputError: nothing is there.
        ConfigError: it cannot be looked at.
    """
    if isinstance(x, str | os.PathLike):
        return _path(os.fspath(cast("os.PathLike[str]", x)))
    return seen(type(x).__name__, x)


def seen(title: str, thing: Any) -> Target:
    """Say what an object is."""
    if isinstance(thing, Feed):
        return Target(title, "feed", thing)
    if isinstance(thing, FeedLoader):
        return Target(title, "loader", thing)
    if hasattr(thing, "lengths") and hasattr(thing, "fingerprint") and hasattr(thing, "lineage"):
        return Target(title, "records", thing)
    if is_loader(thing):
        return Target(title, "loaders", [thing])
    if isinstance(thing, list | tuple) and thing and all(is_loader(one) for one in cast("list[Any]", thing)):
        return Target(f"{len(thing)} ranks", "loaders", list(thing))
    if isinstance(thing, Mapping) and thing and all(isinstance(v, Feed) for v in thing.values()):
        return Target(title, "settings", dict(thing))
    if hasattr(thing, "feed") and hasattr(thing, "loader"):
        return Target(title, "settings", _feeds(thing, title))
    if hasattr(thing, "__len__") and hasattr(thing, "__getitem__") and not isinstance(thing, Mapping):
        return Target(title, "data set", import_module("thalweg.feed.open").from_dataset(thing))
    fix = "give records, a feed, a loader, a path, or file.py:name; a loader of another library gives batches"
    raise ConfigError(f"a {type(thing).__name__} holds no samples to look at", where=title, fix=fix)


def _path(path: str) -> Target:
    if split_target(path) is not None or path.endswith(".py"):
        return seen(path, load_target(path))
    if path.partition(".yaml:")[1] or path.partition(".yml:")[1]:
        file, _, name = path.rpartition(":")
        feeds = settings(file)
        if name not in feeds:
            raise ConfigError(f"no feed {name!r}", where=file, fix="one of " + ", ".join(feeds))
        return Target(path, "feed", feeds[name])
    if "://" not in path:
        must_exist(Path(path))
    if path.endswith(SETTINGS) or _is_settings(path):
        return Target(path, "settings", settings(path))
    if _is_raw(path):
        return Target(path, "raw", import_module("thalweg.feed.open").from_files(path))
    records = import_module("thalweg.store.records")  # pyarrow loads here, not before
    return Target(path, "records", records.open_records(path))


def _is_raw(path: str) -> bool:
    name = path
    for end in PACKED:
        name = name.removesuffix(end)
    return name.endswith(RAW) and ("://" in path or Path(path).is_file())


def _is_settings(path: str) -> bool:
    """Tell a JSON file of settings (an object at its top) from one of records."""
    if not path.endswith(".json") or not Path(path).is_file():
        return False
    with Path(path).open(encoding="utf-8") as file:
        head = file.read(4096).lstrip()
    return head.startswith("{") and ('"dataset_param"' in head or '"dataset_config"' in head)


def settings(path: str) -> dict[str, Feed]:
    """Give the feeds that a file of settings describes, by name.

    Raises:
        ConfigError: this installation reads no settings, or the file describes no feed.
    """
    load = getattr(import_module("thalweg"), "load_config", None)
    if load is None:
        raise ConfigError("settings in files cannot be read here", where=path, fix="build the feed in a file.py:name")
    return _feeds(load(path), path)


def _feeds(config: Any, title: str) -> dict[str, Feed]:
    names = list(getattr(config, "feeds", None) or getattr(config, "names", None) or [])
    found: dict[str, Feed] = {}
    for name in names:
        try:
            found[str(name)] = config.feed(name)
        except ThalwegError as error:
            error.add_note(f"while building the feed {name!r} of {title}")
            raise
    if not found:
        raise ConfigError("no feed is described", where=title, fix="name one, such as train:")
    return found


def must_exist(path: Path) -> None:
    """Refuse a path where nothing is, and an empty directory.

    Raises:
        InputError: with what to do.
    """
    if not path.exists():
        raise InputError("nothing is there", where=str(path), fix="check the path; a feed in a file is file.py:name")
    if path.is_dir() and not any(path.iterdir()):
        raise InputError("the directory is empty", where=str(path), fix="name the directory that a writer filled")
