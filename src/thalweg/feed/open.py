"""Where a feed begins: records, files, objects, streams.

Decides how what the user names becomes a `Source`, and says at once what is missing. Heavy rooms (records, lines)
load when a path of their kind is opened.
"""

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.core.errors import ConfigError, InputError, nearest
from thalweg.core.sample import ABSENT
from thalweg.feed.feed import Feed
from thalweg.feed.source import Columns, ObjectSource
from thalweg.feed.stages import From, FromStream


class RecordsSource:
    """A record set as a source: its own read, lengths and ids, restricted to some columns.

    Args:
        records: what `thalweg.open_records` gives.
        columns: columns to read; None reads all.
    """

    ours = True  # no code of the user's is run when it is read, so any thread may

    def __init__(self, records: Any, columns: Sequence[str] | None = None) -> None:
        self.records = records
        names = column_names(records)
        for wanted in columns or ():
            if wanted not in names:
                raise ConfigError(f"no column {wanted!r}", where=str(records.path), fix=nearest(wanted, names))
        self.columns: tuple[str, ...] | None = tuple(columns) if columns is not None else names

    def __len__(self) -> int:
        return len(self.records)

    @property
    def lengths(self) -> NDArray[np.int32] | None:
        """Token counts of the manifest, mapped; None for records without tokens."""
        lengths: NDArray[np.int32] | None = self.records.lengths
        return lengths

    @property
    def facts(self) -> Mapping[str, NDArray[Any]]:
        """Table columns of the manifest."""
        facts: Mapping[str, NDArray[Any]] = self.records.facts
        return facts

    @property
    def fingerprint(self) -> str:
        """Hash of the rows in order, made when they were written."""
        return str(self.records.fingerprint)

    @property
    def lineage(self) -> Mapping[str, Any]:
        """Tokenizer digest, pad and eos id, inputs."""
        lineage = self.records.lineage
        if isinstance(lineage, Mapping):
            return lineage
        return {k: getattr(lineage, k) for k in ("pad_id", "eos_id", "vocab_size", "tokenizer") if hasattr(lineage, k)}

    def read(self, indices: NDArray[np.int64], columns: Sequence[str] | None = None) -> Columns:
        """Gather rows in the order asked."""
        wanted = self.columns if columns is None else columns
        read: Columns = self.records.read(indices, columns=wanted, absent=ABSENT)
        return read

    def token_places(self, indices: NDArray[np.int64], together: int) -> Any:
        """Say where tokens lie in memory, as `Records.token_places`; None where they are not mapped."""
        return self.records.token_places(indices, together) if hasattr(self.records, "token_places") else None

    def ahead(self, indices: NDArray[np.int64], calls: int) -> bool:
        """Tell which rows are read next; False where records need no telling."""
        return bool(self.records.ahead(indices, calls)) if hasattr(self.records, "ahead") else False

    def ids(self, indices: NDArray[np.int64]) -> list[str]:
        """Give ids of the data."""
        ids: list[str] = self.records.ids(indices)
        return ids

    def id_hashes(self, indices: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Read the hash column of the data."""
        hashes: NDArray[np.uint64] = self.records.id_hashes(indices)
        return hashes


def column_names(records: Any) -> tuple[str, ...]:
    """Name the columns of a record set, however its schema is written."""
    names: Any = getattr(records.schema, "names", records.schema)
    return tuple(str(name) for name in names)


def from_records(
    records: Any, *, columns: Sequence[str] | None = None, storage_options: Mapping[str, Any] | None = None
) -> Feed:
    """Feed a record set.

    Args:
        records: a path, a URL, or what `open_records` gave.
        columns: columns to read; None reads all.
        storage_options: for a URL, as fsspec takes them.

    Raises:
        RecordsError: the set is missing or unfinished.
        ConfigError: a column that it does not have.
    """
    given = {"records": records, "columns": columns, "storage_options": storage_options}
    if isinstance(records, str | os.PathLike):
        records_room = import_module("thalweg.store.records")  # pyarrow loads here, not before
        more: dict[str, Any] = {"storage_options": dict(storage_options)} if storage_options else {}
        records = records_room.open_records(str(records), **more)
    elif not hasattr(records, "schema") or not hasattr(records, "read"):
        raise ConfigError(
            f"{type(records).__name__} is no record set", where="from_records", fix="a path, or tw.open_records(path)"
        )
    else:
        given["records"] = str(records.path)
    return Feed((From(RecordsSource(records, columns), str(records.path), "from_records", given),))


def from_dataset(obj: Any, *, id: str | None = None, fingerprint: str | None = None, lengths: Any = None) -> Feed:  # noqa: A002
    """Feed any object with `len` and `[i]`: a list of dicts, a `datasets.Dataset`, a torch map-style dataset.

    Args:
        obj: gives a dict per sample (anything else becomes the column "value").
        id: column that holds the id; None takes the row number.
        fingerprint: identity of the data; None takes the object's own, else hashes up to 64 rows.
        lengths: token counts, int (n,), where they are known.
    """
    if isinstance(obj, Feed):
        raise ConfigError("this is a feed already", where="from_dataset", fix="use it as it is")
    return Feed((From(ObjectSource(obj, id=id, fingerprint=fingerprint, lengths=lengths), type(obj).__name__),))


def from_stream(make: Any, *, shards: int | None = None, shard_by: str = "auto") -> Feed:
    """Feed an iterable, or a function that makes one: in its order, bounded, with no length.

    Args:
        make: an iterable (with `state_dict` it is resumed by it), or a function; a function that takes
            (shard, shards) opens each sub-stream on its own.
        shards: sub-streams; None is the first world size. A later world size must divide it.
        shard_by: "auto" | "sample" (i % shards) | "file".
    """
    if not callable(make) and not hasattr(make, "__iter__"):
        raise InputError(
            f"{type(make).__name__} cannot be iterated", where="from_stream", fix="give an iterable or a function"
        )
    if shards is not None and shards < 1:
        raise ConfigError(f"shards must be an integer of at least 1, not {shards!r}", where="from_stream")
    if shard_by not in ("auto", "sample", "file"):
        raise ConfigError(
            f"shard_by={shard_by!r} is unknown", where="from_stream", fix=nearest(shard_by, ("auto", "sample", "file"))
        )
    return Feed((FromStream(make, shards, shard_by),))


def from_files(
    files: Any,
    *,
    format: str = "auto",  # noqa: A002
    id: str | None = None,  # noqa: A002
    columns: Sequence[str] | None = None,
) -> Feed:
    """Feed raw files by an index of their rows, made once and kept: jsonl, a JSON array, txt, csv, parquet.

    Args:
        files: a path, a glob, or several of them.
        format: "auto" goes by the name's end and the content.
        id: column that holds the id; None makes it of file and row.
        columns: columns to read; None reads all.

    Raises:
        InputError: no file matches, or one is not what its name says.
        ConfigError: a column that the files do not have.
    """
    lines = import_module("thalweg.store.lines")
    paths = [files] if isinstance(files, str | os.PathLike) else list(files)
    source = lines.open_files(paths, format=format, id=id, columns=columns)
    given = {"files": files, "format": format, "id": id, "columns": columns}
    return Feed((From(source, ", ".join(map(str, paths)), "from_files", given),))
