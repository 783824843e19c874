"""Counts, sizes and durations as people read them.

Decides the units: powers of 1000. Knows nothing of what is measured.
"""


def counted(number: int, one: str, more: str | None = None) -> str:
    """Write a number and what it counts: 1 rank, 2 ranks."""
    return f"{number:,} {one if number == 1 else more or one + 's'}"


def show_bytes(size: float) -> str:
    """Write a size for people: "1.2 GB"."""
    for unit, scale in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{int(size)} B"


def show_seconds(seconds: float) -> str:
    """Write a duration for people: "1 h 05 min", "42 s"."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 60} min {whole % 60:02d} s" if whole >= 60 else f"{whole} s"
