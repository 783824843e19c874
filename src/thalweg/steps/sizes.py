"""Sizes as people write them: 1048576, "64MB", "1.5 GiB".

Decides the units: kB, MB, GB and TB are powers of 1000, KiB, MiB, GiB and TiB of 1024.
"""

import re

from thalweg.core.errors import ConfigError

_DECIMAL = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
UNITS = _DECIMAL | {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}


def parse_bytes(size: int | str) -> int:
    """Read a size in bytes.

    Raises:
        ConfigError: not a size, or negative.
    """
    if isinstance(size, int):
        if size < 0:
            raise ConfigError(f"{size} is no size", fix='give bytes, or such as "128MB"')
        return size
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", size)
    if not match or match[2].lower() not in UNITS:
        raise ConfigError(f"{size!r} is no size", fix='give bytes, or such as "128MB"')
    return int(float(match[1]) * UNITS[match[2].lower()])


def show_bytes(size: float) -> str:
    """Write a size for people: "1.2 GB"."""
    for unit, scale in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{int(size)} B"
