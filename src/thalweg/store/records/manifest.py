"""The manifest: what a record set holds, where each shard lies, and checksums of all of it.

Two lines: a JSON object and the checksum of its bytes. Written once, under a name that carries its generation, never
changed. Decides the fields and how they are read. Knows no Arrow.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from xxhash import xxh3_128_hexdigest

from thalweg.core.errors import ConfigError, IntegrityError, RecordsError
from thalweg.store.records.fingerprint import Print

FORMAT, VERSION = "thalweg.records", 2
T = TypeVar("T", bound=msgspec.Struct)


class File(msgspec.Struct, frozen=True):
    """A file beside the shards: name in the set's directory, bytes, xxh3_128 in hex."""

    name: str
    size: int
    checksum: str


class Fact(msgspec.Struct, frozen=True):
    """One number per row: a .npy file, or one value for all rows."""

    dtype: str
    file: File | None
    constant: float | int = 0


class Stored(msgspec.Struct, frozen=True):
    """A column in a shard. `kind`: the word of its type there; `width`: element type at rest; `shape`: has extents."""

    name: str
    kind: str
    width: str
    shape: bool = False

    @property
    def slots(self) -> int:
        """How many buffer positions a block keeps for it: validity, offsets, values, shape."""
        return 4


class Layout(msgspec.Struct, frozen=True):
    """How a shard is laid out. `keys`: the key lists of its rows; `keyed`: rows carry the number of theirs.

    `ids`: "row" (the row number), "column" (the column `id`) or "own" (a private column).
    """

    columns: list[Stored]
    keys: list[list[str]]
    keyed: bool
    ids: str

    @property
    def hidden(self) -> list[Stored]:
        """Private fixed-width columns after the user's."""
        own = [Stored(OWN_ID, "str", "uint8")] if self.ids == "own" else []
        hashed = [Stored(ID_HASH, "uint64", "uint64")] if self.ids != "row" else []
        return own + hashed + ([Stored(KEYS, "int32", "int32")] if self.keyed else [])

    @property
    def all_columns(self) -> list[Stored]:
        """The user's columns, then the private ones."""
        return [*self.columns, *self.hidden]

    @property
    def width(self) -> int:
        """Numbers that the index keeps for one block."""
        return HEAD + sum(c.slots for c in self.all_columns)


OWN_ID, ID_HASH, KEYS, SHAPE = "__id", "__id_hash", "__keys", "__shape:"
HEAD = 5  # first row in the shard, first byte, end byte, checksum (bits of xxh3_64), place of its ends in the index


class Shard(msgspec.Struct, frozen=True):
    """A shard. `checksum`: xxh3_128 of the checksums of its pieces; `at`: place in the index, in bytes."""

    name: str
    rows: int
    size: int
    checksum: str
    blocks: int
    layout: int
    index: int
    at: int


class Manifest(msgspec.Struct, frozen=True):
    """A whole set, or one part of it."""

    format: str
    version: int
    generation: int
    rows: int
    tokens: int
    fingerprint: str
    print: Print
    columns: dict[str, str]
    lineage: dict[str, Any]
    layouts: list[Layout]
    indexes: list[File]
    shards: list[Shard]
    facts: dict[str, Fact]
    quarantined: int = 0
    replaces: int = 0  # generations below this one are replaced and may be removed
    part: int | None = None
    parts: int | None = None


def checked_lineage(lineage: Mapping[str, Any] | None) -> dict[str, Any]:
    """Give a lineage of one's own, before a row is written under it.

    Raises:
        ConfigError: a value that JSON does not have.
    """
    try:
        msgspec.json.encode(lineage)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"lineage: {error}", fix="text, numbers, lists and dicts") from error
    return dict(lineage or {})


def pack(value: msgspec.Struct) -> bytes:
    """Write with the checksum as second line."""
    body = msgspec.json.encode(value)
    return body + b'\n"' + xxh3_128_hexdigest(body).encode() + b'"\n'


def unpack(data: bytes, cls: type[T], where: str) -> T:
    """Read what `pack` wrote.

    Raises:
        IntegrityError: a byte of it changed, or the end is missing.
        RecordsError: another format, or a newer version.
    """
    body, tail = data[:-36], data[-36:]
    if tail != b'\n"' + xxh3_128_hexdigest(body).encode() + b'"\n':
        raise IntegrityError(
            "the manifest is damaged or cut short", where=where, fix="restore it, or write the set again"
        )
    try:
        value = msgspec.json.decode(body, type=cls)
        known = (getattr(value, "format", FORMAT), getattr(value, "version", VERSION)) == (FORMAT, VERSION)
    except msgspec.ValidationError:
        known, value = False, None
    if not known or value is None:
        head = msgspec.json.decode(body)
        said = f"format {head.get('format')!r} version {head.get('version')!r}"
        raise RecordsError(f"{said} is not known here", where=where, fix="upgrade thalweg")
    return value
