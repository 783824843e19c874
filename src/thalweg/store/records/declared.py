"""What is declared before the first part of a set is written: how many parts there will be.

Decides the form of the declaration and what is said of a set with missing parts. Knows no file.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from thalweg.core.errors import RecordsError

CONVERT = "`thalweg convert`, run again, goes on where it stopped"


class Declaration(msgspec.Struct, frozen=True):
    """What is written when a set of parts begins."""

    parts: int
    generation: int


def unfinished(where: Path | str, count: int, missing: Sequence[int]) -> RecordsError:
    """Say which parts are missing."""
    shown = ", ".join(map(str, missing[:20])) + (f" and {len(missing) - 20} more" if len(missing) > 20 else "")
    fix = f"finish them ({CONVERT})" + ", or open with partial=True, verify with --partial" * isinstance(where, Path)
    return RecordsError(
        f"the set is unfinished: {len(missing)} of {count} parts are missing: {shown}", where=str(where), fix=fix
    )
