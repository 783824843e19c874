"""MosaicML's MDS: shards of rows with an offset table, and index.json. Uncompressed shards are written and read.

Decides which encoding a column has. An array without elements has no place in MDS and is refused.
"""

import itertools
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from thalweg.core.errors import InputError, SampleError
from thalweg.core.sample import Sample
from thalweg.store.formats.format import Unit, WholeFile
from thalweg.store.records.kinds import Kind, parse
from thalweg.store.records.nested import plain_json, utf8

SUFFIXES, ONE_FILE = (".mds",), True
_LIMIT = 64 << 20
_SHAPES = ("uint8", "uint16", "uint32", "uint64")
_VALUES = {
    8: "uint8",
    9: "int8",
    16: "uint16",
    17: "int16",
    18: "float16",
    32: "uint32",
    33: "int32",
    34: "float32",
    64: "uint64",
    65: "int64",
    66: "float64",
}


def units(path: str) -> list[Unit]:
    """Name the shards, in order of the index.

    Raises:
        InputError: a compressed shard.
    """
    return [Unit(path, k, k + 1) for k in range(len(_index(path)))]


def _index(path: str) -> list[dict[str, Any]]:
    file = Path(path) / "index.json"
    try:
        shards: list[dict[str, Any]] = json.loads(file.read_text())["shards"]
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"no MDS index: {error}", where=str(file)) from error
    for shard in shards:
        if shard.get("compression") or shard["format"] != "mds":
            raise InputError("a compressed or foreign shard", where=str(file), fix="write it with compression=None")
    return shards


def rows(unit: Unit) -> Iterator[Sample]:
    """Read a shard.

    Raises:
        InputError: it is cut short, or has an encoding that is not known here.
    """
    shard = _index(unit.path)[unit.start]
    path = Path(unit.path) / shard["raw_data"]["basename"]
    raw = path.read_bytes()
    if len(raw) != shard["raw_data"]["bytes"]:
        raise InputError(f"a shard has {len(raw)} bytes, {shard['raw_data']['bytes']} were written", where=str(path))
    (n,) = struct.unpack("<I", raw[:4])
    offsets = np.frombuffer(raw, np.uint32, n + 1, 4).tolist()
    names, encodings, sizes = shard["column_names"], shard["column_encodings"], shard["column_sizes"]
    for a, b in itertools.pairwise(offsets):
        data, at = raw[a:b], 4 * sum(size is None for size in sizes)
        heads = iter(np.frombuffer(data, np.uint32, at // 4).tolist())
        sample: Sample = {}
        for name, encoding, size in zip(names, encodings, sizes, strict=True):
            length = next(heads) if size is None else size
            sample[name] = decode(encoding, data[at : at + length], str(path))
            at += length
        yield sample


def decode(encoding: str, data: bytes, where: str) -> Any:
    """Read one value."""
    word, _, rest = encoding.partition(":")
    if word == "ndarray":
        return _array(data, *rest.split(":")) if rest else _array(data)
    if word in ("str", "bytes", "json"):
        return data if word == "bytes" else data.decode() if word == "str" else json.loads(data)
    if word in ("int", *_VALUES.values()):
        value = np.frombuffer(data, "int64" if word == "int" else word)[0]
        return int(value) if word == "int" else value
    if word in ("jpeg", "png"):
        return data
    raise InputError(f"encoding {encoding!r} is not read here", where=where, fix="write it as bytes, json or ndarray")


def _array(data: bytes, dtype: str = "", shape: str = "") -> Any:
    at = 0
    if not dtype:
        dtype, at = _VALUES[data[0]], 1
    if shape:
        dims = [int(d) for d in shape.split(",")]
    else:
        rank, width = data[at] >> 2, _SHAPES[data[at] & 3]
        dims = np.frombuffer(data, width, rank, at + 1).tolist()
        at += 1 + rank * np.dtype(width).itemsize
    return np.frombuffer(data, dtype, offset=at).reshape(dims)


def encoding_of(kind: Kind) -> tuple[str, int | None]:
    """Give the encoding of a type and its size, None where it varies."""
    if kind.is_array:
        return f"ndarray:{kind.dtype.name}", None
    if kind.base in ("str", "bytes"):
        return kind.base, None
    if kind.base == "int":
        return "int", 8
    if kind.base in ("float", *_VALUES.values()):
        return kind.dtype.name, kind.dtype.itemsize
    return "json", None


def _encode(value: Any, kind: Kind, name: str) -> bytes:
    if kind.is_array:
        if value is None or value.size == 0:
            raise SampleError(f"column {name!r}: MDS holds no array without elements", fix="leave such rows out")
        shape = np.array(value.shape)
        width = next(w for w in _SHAPES if shape.max() <= np.iinfo(w).max)
        head = bytes([value.ndim << 2 | _SHAPES.index(width)]) + shape.astype(width).tobytes()
        return head + np.ascontiguousarray(value, kind.dtype).tobytes()
    encoding, size = encoding_of(kind)
    if value is None and encoding != "json":
        raise SampleError(f"column {name!r}: MDS has no null in {encoding}", fix="leave such rows out")
    if encoding == "json":
        return plain_json(value.tolist() if isinstance(value, np.ndarray | np.generic) else value)
    if size is None:
        return value if isinstance(value, bytes) else utf8(str(value))
    return bytes(np.array(value, kind.dtype).tobytes())


class MdsWriter:
    """Writes one directory."""

    def __init__(self, path: Path, schema: dict[str, str]) -> None:
        self._file = WholeFile(path)
        self._file.temporary.mkdir(parents=True)
        self._kinds = {n: parse(w) for n, w in sorted(schema.items())}
        self._codes = [encoding_of(k) for k in self._kinds.values()]
        self._shards: list[dict[str, Any]] = []
        self._rows: list[bytes] = []
        self._size = 0

    def write(self, sample: Sample) -> None:
        """Add one row.

        Raises:
            SampleError: a value that MDS has not.
        """
        values = [_encode(sample.get(name), kind, name) for name, kind in self._kinds.items()]
        heads = [struct.pack("<I", len(v)) for v, (_, size) in zip(values, self._codes, strict=True) if size is None]
        row = b"".join([*heads, *values])
        if self._rows and self._size + len(row) > _LIMIT:
            self._flush()
        self._rows.append(row)
        self._size += len(row)

    def _flush(self) -> None:
        name, n = f"shard.{len(self._shards):05d}.mds", len(self._rows)
        about = {
            "version": 2,
            "format": "mds",
            "compression": None,
            "hashes": [],
            "size_limit": _LIMIT,
            "column_names": list(self._kinds),
            "column_encodings": [code for code, _ in self._codes],
            "column_sizes": [size for _, size in self._codes],
        }
        config = json.dumps(about, sort_keys=True).encode()
        offsets = np.cumsum([0, *map(len, self._rows)]) + 4 + 4 * (n + 1) + len(config)
        data = struct.pack("<I", n) + offsets.astype(np.uint32).tobytes() + config + b"".join(self._rows)
        (self._file.temporary / name).write_bytes(data)
        raw = {"basename": name, "bytes": len(data), "hashes": {}}
        self._shards.append({**about, "samples": n, "raw_data": raw, "zip_data": None})
        self._rows, self._size = [], 0

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finish, or throw away."""
        done = False
        try:
            if kind is None:
                if self._rows or not self._shards:
                    self._flush()
                text = json.dumps({"version": 2, "shards": self._shards}, sort_keys=True)
                (self._file.temporary / "index.json").write_text(text)
                done = True
        finally:
            self._file.finish(keep=done)


def writer(path: Path, schema: dict[str, str]) -> MdsWriter:
    """Open a directory for writing."""
    return MdsWriter(path, schema)
