"""What a look is pointed at: records, feeds, loaders, files, settings, loaders of other libraries.

Decides what kind of thing a target is, and what a raw file becomes. Judges nothing.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from thalweg.check.foreign import is_loader
from thalweg.check.target import load_target, refuse_words, split_settings, split_target
from thalweg.check.trainers import FOREIGN
from thalweg.check.trainers import read as read_foreign
from thalweg.core.errors import ConfigError, InputError, ThalwegError
from thalweg.feed.feed import Feed
from thalweg.feed.loader import FeedLoader

RAW = (".jsonl", ".json", ".ndjson", ".csv", ".tsv", ".txt", ".parquet", ".md")
SETTINGS = (".yaml", ".yml")
LARGEST = 1 << 20  # bytes of a file of settings
PACKED = (".gz", ".zst", ".bz2", ".xz")


@dataclass(frozen=True, slots=True)
class Target:
    """Something to look at.

    Args:
        title: as it was named.
        kind: "records" | "feed" | "loader" | "loaders" | "settings" | "raw" | "data set".
        thing: records, a feed, a loader, a list of loaders, a dict of feeds.
        tokenizer: of its samples, where it is not found in the thing.
    """

    title: str
    kind: str
    thing: Any
    tokenizer: Any = None


def open_target(x: Any, words: Sequence[str] = ()) -> Target:
    """Say what something is, and open it where it is a path.

    Args:
        x: an object or a path.
        words: settings over those of a file of settings.

    Raises:
        InputError: nothing is there.
        ConfigError: it cannot be looked at.
    """
    if isinstance(x, str | os.PathLike):
        return _path(os.fspath(cast("os.PathLike[str]", x)), words)
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
    if hasattr(thing, "names") and hasattr(thing, "feed"):
        return Target(title, "settings", _feeds(thing, title))
    if hasattr(thing, "__len__") and hasattr(thing, "__getitem__") and not isinstance(thing, Mapping):
        return Target(title, "data set", import_module("thalweg.feed.open").from_dataset(thing))
    fix = "give records, a feed, a loader, a path, or file.py:name; a loader of another library gives batches"
    raise ConfigError(f"this holds no samples to look at: {type(thing).__name__}", where=title, fix=fix)


def _path(path: str, words: Sequence[str]) -> Target:
    if split_target(path) is not None or path.endswith(".py"):
        return seen(path, load_target(path, words))
    told = split_settings(path)
    if told is not None and told[1] is not None:
        return seen(path, load_target(path, words))
    if "://" not in path and not _is_glob(path):
        must_exist(Path(path))
    if path.endswith(SETTINGS) or _is_settings(path):
        return Target(path, "settings", *settings(path, words))
    refuse_words(path, words)
    files = _raw_files(path)
    if files:
        return Target(path, "raw", import_module("thalweg.feed.open").from_files(files))
    records = import_module("thalweg.store.records")  # pyarrow loads here, not before
    return Target(path, "records", records.open_records(path))


def _raw_files(path: str) -> str:
    """Give the path or glob of the raw files that a path means; "" where it means a record set.

    Raises:
        InputError: a folder of several kinds of raw files.
    """
    if _raw_end(path) and ("://" in path or _is_glob(path) or Path(path).is_file()):
        return path
    if "://" in path or not Path(path).is_dir() or is_record_set(Path(path)):
        return ""
    every = {end for one in Path(path).iterdir() if one.is_file() and (end := _raw_end(one.name))}
    ends = sorted(every - {".md"} or every)  # a README beside the data
    if len(ends) > 1:
        raise InputError(
            f"the folder holds raw files of several kinds: {', '.join(ends)}", where=path,
            fix=f"name those of one kind, '{Path(path) / f'*{ends[0]}'}', or one file",
        )  # fmt: skip
    return str(Path(path) / f"*{ends[0]}") if ends else ""


def _raw_end(name: str) -> str:
    """Give the ending of a raw file, that of its packing included; "" for another name."""
    packed = next((end for end in PACKED if name.endswith(end)), "")
    return next((end + packed for end in RAW if name.endswith(end + packed)), "")


def _is_glob(path: str) -> bool:
    return any(c in path for c in "*?[") and not Path(path).exists()


def is_record_set(path: Path) -> bool:
    """Say whether a folder holds a record set, finished or not."""
    place = import_module("thalweg.store.records.place")
    return bool(place.generations(path) or place.declarations(path))


def _is_settings(path: str) -> bool:
    """Tell a JSON file of settings (one object that holds lists of stages, or a trainer's) from one of records."""
    name = Path(path)
    if not path.endswith(".json") or not name.is_file() or name.stat().st_size > LARGEST:
        return False
    try:
        value: Any = json.loads(name.read_text(encoding="utf-8"))
    except ValueError:
        return False
    if not isinstance(value, dict):
        return False
    held = cast("dict[str, Any]", value)
    return _foreign(held) or any(isinstance(v, list) and v and isinstance(v[0], dict) for v in held.values())


def is_foreign(path: str) -> bool:
    """Say whether a file of settings is in the words of another trainer."""
    text = Path(path).read_text(encoding="utf-8") if "://" not in path else ""
    return any(f"{word}:" in text.replace('"', "") for word in FOREIGN)


def _foreign(held: Mapping[str, Any]) -> bool:
    return any(word in held for word in FOREIGN)


def settings(path: str, words: Sequence[str] = ()) -> tuple[dict[str, Feed], Any]:
    """Give the feeds that a file of settings describes, by name, and their tokenizer where they don't hold it.

    Args:
        path: of a file in thalweg's own words, or of a trainer whose words `bind` reads (MindSpeed-MM).
        words: settings over those of the file, such as "train.batch.size=2".

    Raises:
        ConfigError: the file describes no feed, or has an unknown word.
    """
    if is_foreign(path):
        refuse_words(path, words)
        return read_foreign(path)
    return _feeds(import_module("thalweg.bind.config").load_config(path, words), path), None


def _feeds(config: Any, title: str) -> dict[str, Feed]:
    found: dict[str, Feed] = {}
    for name in config.names:
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
