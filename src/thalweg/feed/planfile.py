"""Arrays of a plan in one file: the narrowest integers that hold them, and a checksum over everything.

Decides the bytes: a mark with the version, the checksum of all that follows, a head in JSON, the arrays. A file that
is torn, damaged or of another version is refused. Knows no plan.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64

VERSION = 2
MARK = b"tw plan%d" % VERSION  # 8 bytes, so that what follows is aligned


def write(path: Path, arrays: Mapping[str, NDArray[np.integer[Any]]], more: Any) -> None:
    """Write arrays without negative numbers, and something that JSON takes."""
    narrow = {k: v.astype(np.min_scalar_type(int(v.max(initial=0)))) for k, v in arrays.items()}
    names = sorted(narrow, key=lambda k: -narrow[k].itemsize)  # wide ones first, so that all are aligned
    kinds = [[k, narrow[k].dtype.str, len(narrow[k])] for k in names]
    head = json.dumps([kinds, more]).encode()
    head += b" " * (-len(head) % 8)
    parts: list[Any] = [np.uint64(len(head)).tobytes(), head, *(narrow[k] for k in names)]
    sum_of = xxh3_64()
    for part in parts:
        sum_of.update(part)
    with path.open("wb") as file:
        for part in (MARK, np.uint64(sum_of.intdigest()).tobytes(), *parts):
            file.write(part)


def read(path: Path) -> tuple[dict[str, NDArray[np.unsignedinteger[Any]]], Any]:
    """Read what was written: the arrays, unsigned, and the rest.

    Raises:
        ValueError: the file is not what was written.
    """
    data = np.fromfile(path, np.uint8)
    if (
        data[:8].tobytes() != MARK
        or len(data) < 24
        or data[8:16].view(np.uint64)[0] != xxh3_64(data[16:].data).intdigest()
    ):
        raise ValueError(f"{path} is no whole plan")
    at = 24 + int(data[16:24].view(np.uint64)[0])
    kinds, more = json.loads(data[24:at].tobytes())
    arrays: dict[str, NDArray[np.unsignedinteger[Any]]] = {}
    for name, kind, n in kinds:
        end = at + n * np.dtype(kind).itemsize
        arrays[name] = data[at:end].view(kind)
        at = end
    return arrays, more
