"""`dataset_info.json`: which data sets a folder names, where their files are, and each as a feed.

Decides what an entry may say and from where its data come: files beside it, or the hub through `datasets`. How its
records are read is `attributes` and `align`.
"""

import os
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from thalweg.bind.llamafactory.align import Align, conversation
from thalweg.bind.llamafactory.attributes import Attributes
from thalweg.core.errors import ConfigError, InputError, nearest
from thalweg.core.extras import need
from thalweg.core.seeds import generator
from thalweg.core.state import digest
from thalweg.feed.feed import Feed
from thalweg.feed.open import from_dataset, from_files
from thalweg.feed.source import samples_of
from thalweg.feed.stages import Select
from thalweg.feed.views import Part
from thalweg.store.settings import read_settings

PLACES = ("file_name", "hf_hub_url", "ms_hub_url", "om_hub_url", "script_url", "cloud_file_name")
KEYS = (*PLACES, "formatting", "ranking", "subset", "split", "folder", "num_samples", "columns", "tags")
TYPES = ("json", "jsonl", "csv", "parquet", "arrow", "txt")


@dataclass(frozen=True, slots=True)
class Entry:
    """One data set of a folder.

    Args:
        name: as `dataset=` names it.
        folder: of dataset_info.json; files and media start there.
        place: (one of `PLACES`, its value).
        attributes: where its records keep what.
        subset, split, sub_folder: of a hub data set.
        num_samples: how many samples are taken of it, more than there are with repetitions; None: all, once.
    """

    name: str
    folder: Path
    place: tuple[str, str]
    attributes: Attributes = field(default_factory=Attributes)
    subset: str | None = None
    split: str = "train"
    sub_folder: str | None = None
    num_samples: int | None = None

    @classmethod
    def read(cls, name: str, told: Mapping[str, Any], folder: Path) -> "Entry":
        """Read one entry.

        Raises:
            ConfigError: an unknown key, with the nearest right one; no place; a value of the wrong kind.
        """
        where = f"{folder / 'dataset_info.json'}, {name}"
        for key in told:
            if key not in KEYS:
                raise ConfigError(f"unknown key {key!r}", where=where, fix=nearest(key, KEYS))
        there = next(((key, str(told[key])) for key in PLACES if told.get(key)), None)
        if there is None:
            raise ConfigError("no place of its data", where=where, fix="say file_name or hf_hub_url")
        number = told.get("num_samples")
        if number is not None and (not isinstance(number, int) or number < 1):
            raise ConfigError(f"num_samples={number!r} must be a whole number of at least 1", where=where)
        attributes = Attributes.read(
            told.get("formatting", "alpaca"), told.get("columns") or {}, told.get("tags") or {},
            ranking=bool(told.get("ranking", False)), where=where,
        )  # fmt: skip
        return cls(
            name, folder, there, attributes, told.get("subset"), told.get("split", "train"), told.get("folder"), number
        )

    def files(self) -> list[str]:
        """Find its files: one, or those of a folder, all of one type.

        Raises:
            InputError: there is none, or several types lie together.
            ConfigError: its data are elsewhere, and not reachable from here.
        """
        kind, value = self.place
        if kind != "file_name":
            raise ConfigError(f"{self.name!r} is at {kind}: {value}, not in a file", where=str(self.folder))
        path = self.folder / value
        if path.is_dir():
            found = sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
        else:
            found = [path] if path.is_file() else []
        if not found:
            raise InputError("nothing is there", where=str(path), fix="check file_name and dataset_dir")
        types = {p.suffix.removeprefix(".") for p in found}
        if len(types) > 1 or not types <= set(TYPES):
            raise InputError(
                f"files of the types {sorted(types)} lie together", where=str(path), fix=f"one of {', '.join(TYPES)}"
            )
        return [str(p) for p in found]

    def records(self, cache_dir: str | None = None, seed: int = 0) -> Feed:
        """Open its records as they are."""
        kind, value = self.place
        if kind == "file_name":
            files = self.files()
            feed = from_files(files) if not files[0].endswith(".arrow") else from_dataset(_arrow(files, cache_dir))
        elif kind == "hf_hub_url":
            datasets = need("datasets", why=f"the data set {self.name!r} of the hub")
            more = {"data_dir": self.sub_folder} if self.sub_folder else {}
            feed = from_dataset(
                datasets.load_dataset(value, self.subset, split=self.split, cache_dir=cache_dir, **more)
            )
        else:
            raise ConfigError(
                f"{self.name!r} is only at {kind}: {value}", where=str(self.folder / "dataset_info.json"),
                fix="download it and say file_name, or give hf_hub_url",
            )  # fmt: skip
        return feed if self.num_samples is None else _number(feed, self.num_samples, seed)

    def feed(self, *, media_dir: str | None = None, cache_dir: str | None = None, seed: int = 0) -> Feed:
        """Give its conversations in the one layout that `ChatEncoder` finds by itself; texts have the column "text".

        Args:
            media_dir: where relative paths of media start; None: the folder of dataset_info.json.
            cache_dir: of hub data.
            seed: of num_samples.
        """
        align = Align(self.attributes, media_dir if media_dir is not None else str(self.folder))
        records = self.records(cache_dir, seed)
        text = self.attributes.columns["prompt"]
        return records.map(Read(align, text if self.attributes.text_only else None), remove_columns="all")


class Read:
    """Record -> conversation, or text. Picklable.

    Args:
        align: how the records are read.
        text: column of text, where there is no answer.
    """

    def __init__(self, align: Align, text: str | None) -> None:
        self.align, self.text = align, text

    @property
    def fingerprint(self) -> str:
        """Name all that decides what it gives."""
        return f"{self.align.fingerprint}:{self.text}"

    def __call__(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Read one record."""
        named = {"id": record["id"]} if "id" in record else {}
        if self.text is not None:
            return {**named, "text": record[self.text] if self.text in record else record.get("text", "")}
        out = {**named, **conversation(self.align(record))}
        tag = self.align.attributes.columns["kto_tag"]
        return out if tag is None else {**out, "kto_tag": bool(record[tag])}


class DatasetInfo(Mapping[str, Entry]):
    """All data sets of a folder, by name; each entry is read when it is asked for."""

    def __init__(self, told: Mapping[str, Any], folder: Path) -> None:
        self._told, self.folder = dict(told), folder

    def __getitem__(self, name: str) -> Entry:
        if name not in self._told:
            raise ConfigError(f"no data set {name!r}", where=str(self.folder), fix=nearest(name, self._told))
        return Entry.read(name, self._told[name], self.folder)

    def __contains__(self, name: object) -> bool:
        return name in self._told

    def __iter__(self) -> Any:
        return iter(self._told)

    def __len__(self) -> int:
        return len(self._told)

    def feed(self, names: str | Sequence[str], **options: Any) -> Feed:
        """Give one or several data sets as one feed, all of each once.

        Args:
            names: "identity,alpaca_en_demo", or a list.
            options: as `Entry.feed`.
        """
        wanted = [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names)
        if len(wanted) == 1:
            return self[wanted[0]].feed(**options)
        return from_dataset(Conversations({name: self[name].feed(**options) for name in wanted}), id="id")


class Conversations:
    """Several data sets end to end, each read in its own way: an object with `len` and `[i]`.

    Args:
        feeds: name -> what `Entry.feed` gave.
    """

    def __init__(self, feeds: Mapping[str, Feed]) -> None:
        self._parts: list[tuple[str, Any, Read]] = []
        for name, feed in feeds.items():
            head: Any = feed.stages[0]
            read: Any = feed.stages[-1]
            chosen = next((s for s in feed.stages if isinstance(s, Select)), None)
            source = head.source if chosen is None else Part(head.source, np.asarray(chosen.indices, np.int64))
            self._parts.append((name, source, read.fn))
        self._ends = np.cumsum([len(source) for _, source, _ in self._parts]).tolist()

    @property
    def fingerprint(self) -> str:
        """Name the records and how they are read."""
        return digest([[name, source.fingerprint, read.fingerprint] for name, source, read in self._parts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, i: int) -> dict[str, Any]:
        """Give one conversation; its id is "data set:row" where the record has none."""
        k = bisect_right(self._ends, i)
        name, source, read = self._parts[k]
        row = i - (self._ends[k - 1] if k else 0)
        (record,) = samples_of(source.read(np.array([row])), 1)
        return {"id": f"{name}:{row}", **read(record)}


def load_dataset_info(dataset_dir: str | os.PathLike[str] = "data") -> DatasetInfo:
    """Read the dataset_info.json of a folder.

    Raises:
        InputError: there is none.
    """
    path = Path(dataset_dir)
    path = path if path.suffix == ".json" else path / "dataset_info.json"
    return DatasetInfo(read_settings(path), path.parent)


def _arrow(files: Sequence[str], cache_dir: str | None) -> Any:
    datasets = need("datasets", why="arrow files")
    return datasets.load_dataset("arrow", data_files=list(files), split="train", cache_dir=cache_dir)


def _number(feed: Feed, number: int, seed: int) -> Feed:
    """Take `number` samples: a seeded choice without repetition as far as that goes, then with."""
    head: Any = feed.stages[0]
    n = len(head.source)
    rng = generator("num_samples", seed)
    chosen = rng.permutation(n)[:number]
    if number > n:
        chosen = np.concatenate([chosen, rng.integers(0, n, number - n)])
    return feed.select(chosen)
