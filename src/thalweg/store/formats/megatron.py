"""Megatron's .bin/.idx: token ids end to end, and an index of where sequences and documents begin.

Only `input_ids` has a place there; other columns are left out. Decides how the index is read and written (version 1).
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from thalweg.core.errors import InputError, SampleError
from thalweg.core.sample import INPUT_IDS, Sample
from thalweg.store.formats.format import Unit, WholeFile

SUFFIXES, ONE_FILE = (".idx", ".bin"), True
KEEPS = (INPUT_IDS,)
_MAGIC, _ROWS = b"MMIDIDX\x00\x00", 100_000
_CODES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float64", 7: "float32", 8: "uint16"}


def prefix_of(path: str) -> str:
    """Give the name without .bin or .idx."""
    return path.removesuffix(".bin").removesuffix(".idx")


class Indexed:
    """A .bin/.idx pair, mapped.

    Attributes:
        lengths: tokens of each sequence, int32 (n,).
        pointers: first byte of each sequence, int64 (n,).
        documents: number of the first sequence of each document, and n at the end, int64.

    Raises:
        InputError: no such pair, another format, or a .bin of another size.
    """

    def __init__(self, prefix: str) -> None:
        index = Path(prefix + ".idx")
        if not index.exists():
            raise InputError("no such index", where=str(index), fix="name the prefix of a .bin/.idx pair")
        raw = index.read_bytes()
        if raw[:9] != _MAGIC or len(raw) < 34:
            raise InputError("the file is no Megatron index", where=str(index))
        version, code, n, documents = struct.unpack("<QBQQ", raw[9:34])
        if version != 1 or code not in _CODES or len(raw) != 34 + 12 * n + 8 * documents:
            raise InputError("the index is cut short or of another version", where=str(index), fix="write it again")
        self.lengths = np.frombuffer(raw, np.int32, n, 34)
        self.pointers = np.frombuffer(raw, np.int64, n, 34 + 4 * n)
        self.documents = np.frombuffer(raw, np.int64, documents, 34 + 12 * n)
        self.dtype = np.dtype(_CODES[code])
        self.path = prefix + ".bin"
        ends = self.pointers + self.lengths * np.int64(self.dtype.itemsize)
        if n and (self.lengths.min() < 0 or self.pointers.min() < 0):
            raise InputError("the index has places below 0", where=str(index), fix="write it again")
        wanted = int(ends.max(initial=0))
        size = Path(self.path).stat().st_size if Path(self.path).exists() else -1
        if size < wanted:
            raise InputError(
                f"the .bin has {size} bytes, its index says {wanted}", where=self.path, fix="fetch it again"
            )
        self.data: NDArray[Any] = np.memmap(self.path, self.dtype, "r") if wanted else np.empty(0, self.dtype)

    def __len__(self) -> int:
        """Count the sequences."""
        return len(self.lengths)

    def __getitem__(self, i: int) -> NDArray[Any]:
        """Give one sequence, mapped."""
        first = int(self.pointers[i]) // self.dtype.itemsize
        return self.data[first : first + int(self.lengths[i])]


def units(path: str) -> list[Unit]:
    """Cut the sequences into runs."""
    prefix = prefix_of(path)
    n = len(Indexed(prefix))
    return [Unit(prefix, a, min(a + _ROWS, n)) for a in range(0, n, _ROWS)]


def rows(unit: Unit) -> Iterator[Sample]:
    """Read sequences as `input_ids`."""
    found = Indexed(unit.path)
    for i in range(unit.start, unit.end):
        yield {INPUT_IDS: np.asarray(found[i]).astype(np.int32)}


class BinIdxWriter:
    """Writes one pair; each row is a sequence and a document. Ids below 65,500 take 2 bytes, as Megatron has it."""

    def __init__(self, path: Path, vocab_size: int | None = None) -> None:
        prefix = Path(prefix_of(str(path)))
        self._bin, self._idx = WholeFile(Path(str(prefix) + ".bin")), WholeFile(Path(str(prefix) + ".idx"))
        self._dtype = np.dtype(np.uint16 if vocab_size is not None and vocab_size < 65_500 else np.int32)
        self._out = self._bin.temporary.open("wb")
        self._lengths: list[int] = []

    def write(self, sample: Sample) -> None:
        """Add one row.

        Raises:
            SampleError: it has no ids.
        """
        ids = sample.get(INPUT_IDS)
        if ids is None:
            raise SampleError("a row without input_ids has no place in .bin/.idx", fix="encode it first")
        self._out.write(np.ascontiguousarray(ids, self._dtype).tobytes())
        self._lengths.append(len(ids))

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finish, or throw away. The index appears last."""
        done = False
        try:
            self._out.close()
            if kind is None:
                n = len(self._lengths)
                lengths = np.array(self._lengths, np.int32)
                ends = np.cumsum(lengths, dtype=np.int64) * self._dtype.itemsize
                pointers = np.concatenate([np.zeros(1, np.int64), ends])[:n]
                code = next(c for c, name in _CODES.items() if name == self._dtype.name)
                head = _MAGIC + struct.pack("<QBQQ", 1, code, n, n + 1)
                documents = np.arange(n + 1, dtype=np.int64).tobytes()
                self._idx.temporary.write_bytes(head + lengths.tobytes() + pointers.tobytes() + documents)
                done = True
        finally:
            self._bin.finish(keep=done)
            self._idx.finish(keep=done)


def writer(path: Path, schema: dict[str, str]) -> BinIdxWriter:  # noqa: ARG001
    """Open a pair for writing."""
    return BinIdxWriter(path)
