"""The formats of `dataset_format`: each opened as rows that are read by number.

Decides what a path may be for each format. Files are indexed or mapped, never loaded whole, but for what `datasets`
itself keeps. Knows no sample.
"""

from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

from thalweg.bind.lmms.config import DatasetConfig
from thalweg.core.errors import ConfigError, InputError
from thalweg.core.extras import need
from thalweg.core.state import digest
from thalweg.store.lines import open_files
from thalweg.store.settings import read_settings

_SUFFIX = {"json": "json", "jsonl": "jsonl", "csv": "csv", "parquet": "parquet"}


class Rows(Protocol):
    """Records by number."""

    def __len__(self) -> int:
        """Count them."""
        ...

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        """Give one."""
        ...


class Joined:
    """Several sets of rows end to end, each with a folder where its media start."""

    def __init__(self, parts: list[tuple[Rows, str | None]]) -> None:
        self.parts = parts
        self._ends = list(accumulate(len(rows) for rows, _ in parts))

    @property
    def fingerprint(self) -> str:
        """Identity of all of them."""
        return digest([[fingerprint(rows), folder] for rows, folder in self.parts])

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Give one record, its media under its folder."""
        k = bisect_right(self._ends, index)
        rows, folder = self.parts[k]
        row = dict(rows[index - (self._ends[k - 1] if k else 0)])
        return row if folder is None else _under(row, folder)


def fingerprint(rows: Any) -> str:
    """Give the identity of rows: their own, else that of a sample of them."""
    own = getattr(rows, "fingerprint", None) or getattr(rows, "_fingerprint", None)
    if isinstance(own, str):
        return own
    picks = sorted({i * max(len(rows) - 1, 0) // 63 for i in range(64)}) if len(rows) else []
    return digest([len(rows), [repr(rows[i]) for i in picks]])


def open_rows(config: DatasetConfig, path: str | None = None) -> Rows:
    """Open the records of a configuration.

    Args:
        config: format and place.
        path: another place, such as that of evaluation data.

    Raises:
        InputError: nothing is there, or it is not of that format.
        ConfigError: a place that the format cannot have.
    """
    place = path or config.dataset_path
    if config.dataset_format == "yaml":
        return _yaml(config, place)
    if place is None:
        raise ConfigError("dataset_path is missing", where="DatasetConfig")
    return _open(config.dataset_format, place)


def _open(kind: str, place: str) -> Rows:
    if kind in _SUFFIX:
        path = Path(place)
        files = sorted(str(p) for p in path.glob(f"*.{_SUFFIX[kind]}")) if path.is_dir() else [place]
        if not files:
            raise InputError(f"no file *.{_SUFFIX[kind]} is there", where=place)
        rows: Rows = open_files(files, format=kind)
        return rows
    datasets = need("datasets", why=f"dataset_format {kind}")
    there = Path(place)
    if kind == "arrow":
        if there.is_dir() and not (there / "state.json").is_file():
            files = sorted(str(p) for p in there.glob("*.arrow"))
            if not files:
                raise InputError("no file *.arrow is there", where=place)
            return _undecoded(datasets, datasets.concatenate_datasets([datasets.Dataset.from_file(f) for f in files]))
        if there.is_file():
            return _undecoded(datasets, datasets.Dataset.from_file(place))
    if there.is_dir() and ((there / "state.json").is_file() or (there / "dataset_dict.json").is_file()):
        loaded: Any = datasets.load_from_disk(place)
    elif kind == "arrow":
        raise InputError("no arrow file is there", where=place)
    else:
        loaded = _of_hub(datasets, place)
    if isinstance(loaded, Mapping):
        loaded = loaded["train"] if "train" in loaded else next(iter(loaded.values()))
    return _undecoded(datasets, loaded)


def _of_hub(datasets: Any, name: str) -> Any:
    """Find a data set of the hub: in the cache of `datasets`, else downloaded into it."""
    try:
        return datasets.load_dataset(name)
    except (OSError, datasets.exceptions.DatasetsError, ValueError) as error:
        raise InputError(
            f"no folder, and no data set of the hub that can be had: {error}", where=name,
            fix="a folder of save_to_disk, or a hub id that is in the cache of datasets or can be downloaded",
        ) from error  # fmt: skip


def _undecoded(datasets: Any, table: Any) -> Rows:
    """Leave pictures and sounds as bytes or paths: they are decoded when a batch is built."""
    for name, feature in table.features.items():
        if isinstance(feature, datasets.Image | datasets.Audio):
            table = table.cast_column(name, type(feature)(decode=False))
    rows: Rows = table
    return rows


def _yaml(config: DatasetConfig, place: str | None) -> Rows:
    told = config.datasets if place is None or config.datasets is not None else read_settings(place).get("datasets")
    if not isinstance(told, list) or not told:
        raise ConfigError(
            "no list of datasets", where=place or "DatasetConfig", fix="datasets: [{path: a.jsonl, data_folder: media}]"
        )
    parts: list[tuple[Rows, str | None]] = []
    for entry in told:
        kind = str(entry.get("data_type") or Path(str(entry["path"])).suffix.removeprefix("."))
        parts.append(
            (_open(kind if kind in {*_SUFFIX, "arrow"} else "hf_dataset", str(entry["path"])), entry.get("data_folder"))
        )
    return Joined(parts)


def _under(row: dict[str, Any], folder: str) -> dict[str, Any]:
    """Put the media paths of a record under a folder, in columns and in typed parts alike."""
    out = dict(row)
    for name in ("image", "images", "video", "videos", "audio", "audios"):
        if isinstance(value := out.get(name), str):
            out[name] = _path(value, folder)
        elif isinstance(value, list):
            out[name] = [_path(v, folder) for v in value]
    if isinstance(messages := out.get("messages"), list):
        out["messages"] = [{**m, "content": _parts(m.get("content"), folder)} for m in messages]
    return out


def _parts(content: Any, folder: str) -> Any:
    if not isinstance(content, list):
        return content
    out: list[Any] = []
    for part in content:
        made = dict(part)
        for key in ("image_url", "video_url", "audio_url", "image", "video", "audio"):
            inner = made.get(key)
            if isinstance(inner, Mapping) and "url" in inner:
                made[key] = {**inner, "url": _path(inner["url"], folder)}
            elif isinstance(inner, str):
                made[key] = _path(inner, folder)
        out.append(made)
    return out


def _path(value: Any, folder: str) -> Any:
    return (
        value
        if not isinstance(value, str) or "://" in value or Path(value).is_absolute()
        else str(Path(folder) / value)
    )
