"""Rows read again for the fingerprint, where two sets are joined.

Knows how to open the files of a part whose manifest is at hand, and nothing else.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from thalweg.store.records.column import content_of
from thalweg.store.records.fingerprint import Content
from thalweg.store.records.manifest import Manifest
from thalweg.store.records.opened import Opened, Source


class Reread:
    """Reads the array contents of rows of several sets in one directory."""

    def __init__(self, folder: Path, parts: Sequence[Manifest]) -> None:
        self._folder, self._parts = folder, parts

    def __call__(self, which: int, first: int, end: int) -> dict[str, Content]:
        """Give the contents of rows [first, end) of one of the sets."""
        opened = Opened(Source(str(self._folder), io="pread"), self._folder, self._parts[which], facts={})
        rows = np.arange(first, end)
        blocks = opened.table.of_rows(rows)
        opened.touch(blocks)
        out: dict[str, Content] = {}
        for name in opened.manifest.columns:
            column = opened.decoder.column(name, rows, blocks)
            content = content_of(column) if isinstance(column, list) else column.content()
            if content is not None:
                out[name] = content
        return out
