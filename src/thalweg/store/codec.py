"""Compressed input as a stream of bytes whose damage is never taken for its end.

Decides which decompressor belongs to a file name and what counts as whole: every member of the file must reach its
own end mark. Bytes after the last member that are not another member are left alone, as gunzip does.
"""

from __future__ import annotations

import bz2
import io
import lzma
import zlib
from typing import TYPE_CHECKING, Any

from thalweg.core.errors import ConfigError, InputError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CHUNK = 1 << 18  # compressed bytes read at once
ENDINGS = {".gz": "gzip", ".gzip": "gzip", ".zst": "zstd", ".zstd": "zstd", ".bz2": "bz2", ".xz": "xz"}
MAGIC = {"gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd", "bz2": b"BZh", "xz": b"\xfd7zXZ"}


def codec_of(path: str, compression: str | None = "infer") -> str | None:
    """Name the codec of a file; None for plain bytes.

    Raises:
        ConfigError: an unknown codec.
    """
    if compression == "infer":
        return next((codec for end, codec in ENDINGS.items() if path.endswith(end)), None)
    if compression is not None and compression not in MAGIC:
        raise ConfigError(f"compression {compression!r} is unknown", fix=nearest(compression, MAGIC))
    return compression


def _decompressor(codec: str) -> Callable[[], Any]:
    if codec == "gzip":
        return lambda: zlib.decompressobj(wbits=31)
    if codec == "bz2":
        return bz2.BZ2Decompressor
    if codec == "xz":
        return lzma.LZMADecompressor
    import zstandard  # noqa: PLC0415  (only where a file needs it)

    return zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj


def chunks(file: Any, codec: str | None, path: str, members: list[tuple[int, int]] | None = None) -> Iterator[bytes]:
    """Give the decompressed bytes of an open binary file, piece by piece.

    Args:
        file: at its start.
        codec: as `codec_of` says.
        path: for messages.
        members: filled with where each member begins: byte of the file, and of what comes out.

    Raises:
        InputError: the data is damaged or ends in the middle of a member; the file is named.
    """
    if codec is None:
        while piece := file.read(CHUNK * 4):
            yield piece
        return
    fresh = _decompressor(codec)
    member, raw, begun, given = fresh(), b"", False, 0
    members = [] if members is None else members
    members.append((0, 0))
    while True:
        raw = raw or file.read(CHUNK)
        if not raw:
            break
        if member.eof:
            rest = raw.lstrip(b"\0")
            rest += file.read(4 - len(rest)) if len(rest) < 4 else b""
            if not _begins(rest, codec):
                return
            member, raw = fresh(), rest
            members.append((file.tell() - len(rest), given))
        try:
            out = member.decompress(raw)
        except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, _zstd_error()) as error:
            raise InputError(f"{codec} data is damaged: {error}", where=path, fix=_ADVICE) from error
        raw = member.unused_data if member.eof else b""
        begun = True
        if out:
            given += len(out)
            yield out
    if begun and not member.eof:
        raise InputError(f"{codec} data ends in the middle", where=path, fix=_ADVICE)


def _begins(data: bytes, codec: str) -> bool:
    """Whether bytes begin another member; zstd has frames without data too, which parallel compressors write."""
    skippable = codec == "zstd" and data[1:4] == b"\x2a\x4d\x18" and 0x50 <= data[0] <= 0x5F
    return skippable or data.startswith(MAGIC[codec])


def unpack(data: bytes, codec: str, path: str) -> bytes:
    """Decompress one whole member.

    Raises:
        InputError: it is damaged.
    """
    try:
        member = _decompressor(codec)()
        out: bytes = member.decompress(data)
    except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, _zstd_error()) as error:
        raise InputError(f"{codec} data is damaged: {error}", where=path, fix=_ADVICE) from error
    return out


def stream(pieces: Iterator[bytes]) -> io.RawIOBase:
    """Give pieces of bytes as an open binary file, for libraries that want one; wrap it in `io.BufferedReader`."""
    return _Stream(pieces)


class _Stream(io.RawIOBase):
    """Pieces of bytes as a file."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        super().__init__()
        self.pieces, self.rest = pieces, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self.rest:
            self.rest = next(self.pieces, b"")
        n = min(len(buffer), len(self.rest))
        buffer[:n] = self.rest[:n]
        self.rest = self.rest[n:]
        return n


_ADVICE = "fetch the file again, or keep what is readable with on_damage='keep'"


def _zstd_error() -> type[Exception]:
    import zstandard  # noqa: PLC0415

    return zstandard.ZstdError
