"""Sizes in bytes as people write them: 256000000, "256MB", "1.5 GiB".

Decides the units: kB, MB, GB and TB are powers of 1000, KiB, MiB, GiB and TiB of 1024.
"""

import re

from thalweg.core.errors import ConfigError

_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_SIZE = re.compile(r"\s*([\d_.]+)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)


def to_bytes(size: int | str) -> int:
    """Read a size.

    Raises:
        ConfigError: it is no size, or below one byte.
    """
    if isinstance(size, str):
        match = _SIZE.fullmatch(size)
        try:
            amount = float(match[1]) if match else 0.0
        except ValueError:
            amount = 0.0
        number = int(amount * (1024 if match[3] else 1000) ** _POWERS[match[2].lower()]) if match else 0
    else:
        number = int(size)
    if number < 1:
        raise ConfigError(f"{size!r} is no size", fix='say bytes, or "256MB"')
    return number
